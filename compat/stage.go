package compat

import (
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// Stage is a way to hold a key. Neighbours exclude each other; Legacy and Modern are never both in use
// in one namespace.
type Stage uint8

const (
	// Bridge holds a key so that old and new clients both respect it: a value that is a far-future expiry
	// to the old ones and a token to the new ones, a TTL, and a guard beside it.
	Bridge Stage = iota

	// Legacy is the old SETNX/GETSET lock of package legacy.
	Legacy

	// Modern is a token with a TTL. It takes nothing over from legacy clients, and keeps the guard, so
	// that a stale DEL costs nothing until the bridge is gone too.
	Modern
)

// String returns the stage's name.
func (s Stage) String() string { return s.internal().String() }

func (s Stage) internal() stages.Stage {
	switch s {
	case Bridge:
		return stages.Bridge
	case Legacy:
		return stages.Legacy
	case Modern:
		return stages.Modern
	default:
		return stages.Stage(-1)
	}
}

func stageOf(s stages.Stage) Stage {
	switch s {
	case stages.Legacy:
		return Legacy
	case stages.Modern:
		return Modern
	default:
		return Bridge
	}
}

// ParseDialect finds a dialect that the bridge can speak, by its name on the command line. Those that
// can share a key with nobody are refused, and the error says why.
func ParseDialect(name string) (legacy.Dialect, error) {
	return legacy.ParseDialect(name)
}
