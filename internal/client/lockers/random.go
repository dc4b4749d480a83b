package lockers

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Random draws randomness from the system in larger pieces: a read of it costs more than a token.
type Random struct {
	mu   sync.Mutex
	buf  [1024]byte
	left int
}

// Read fills p.
func (s *Random) Read(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < len(p) {
		_, _ = rand.Read(s.buf[:]) // it never fails: the program ends instead
		s.left = len(s.buf)
	}
	at := len(s.buf) - s.left
	copy(p, s.buf[at:])
	clear(s.buf[at : at+len(p)]) // a token is a secret until it is used
	s.left -= len(p)
}

// Between draws evenly from low to below high; both are between 2^62 and 2^63.
func (s *Random) Between(low, high int64) int64 {
	for { // what falls outside is thrown away
		var b [8]byte
		s.Read(b[:])
		if n := int64(binary.LittleEndian.Uint64(b[:])>>1 | 1<<62); n >= low && n < high {
			return n
		}
	}
}

// UUID returns a random UUID, version 4.
func UUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

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
