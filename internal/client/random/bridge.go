package random

import (
	"crypto/rand"
	"encoding/hex"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// BridgeValue returns a fresh bridge value of a dialect, with an owner's part that no client has.
func (s *Source) BridgeValue(d *protocol.Dialect) string {
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

// UUID returns a random UUID, version 4.
func UUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
