package observe

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Legacyness is what a stored value says about the dialect that wrote it.
type Legacyness struct {
	Dialect string // empty for no expiry
	Bridge  bool
	Forever bool
	Expires time.Time
}

// Classify tells whether a value is an expiry that a legacy client wrote near now.
func Classify(value string, now time.Time) Legacyness {
	s := shapeOf(value, protocol.InstantOf(now))
	switch s.kind {
	case Legacy:
		return Legacyness{Dialect: s.dialect, Forever: s.forever, Expires: s.expires.Time()}
	case Bridge:
		return Legacyness{Bridge: true}
	}
	return Legacyness{}
}

// Family names the kind of lock that a key belongs to: its name with numbers and ids taken out.
func Family(key string) string { return familyOf(key) }

// Compatible tells that clients of two dialects read each other's values.
func Compatible(a, b string) bool { return a == b || compatible(a, b) }
