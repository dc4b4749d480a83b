package compat

import (
	"github.com/lockmigrate/lockmigrate/internal/client/random"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// newValue returns a fresh bridge value of a dialect.
func newValue(source *random.Source, d *protocol.Dialect) string {
	owner := ""
	switch d.Layout {
	case protocol.UUIDColonNumber:
		owner = random.UUID()
	case protocol.NumberDashOwner:
		owner = "0-0" // a pid and a thread that no client has
	case protocol.NumberColonOwner:
		owner = "0"
	}
	return d.BridgeValue(source.Between(protocol.BridgeLow, protocol.BridgeHigh), owner)
}
