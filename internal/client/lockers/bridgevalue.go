package lockers

import "github.com/lockmigrate/lockmigrate/internal/protocol"

// BridgeValue returns a fresh bridge value of a dialect, with an owner's part that no client has.
func (s *Random) BridgeValue(d *protocol.Dialect) string {
	owner := ""
	switch d.Layout {
	case protocol.UUIDColonNumber:
		owner = UUID()
	case protocol.NumberDashOwner:
		owner = "0-0" // a pid and a thread that no client has
	case protocol.NumberColonOwner:
		owner = "0"
	}
	return d.BridgeValue(s.Between(protocol.BridgeLow, protocol.BridgeHigh), owner)
}
