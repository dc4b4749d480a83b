package modern

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// TokenForm is what the random value on a key looks like.
type TokenForm uint8

const (
	// LegacySafe is a random number n with 5*10^18 <= n < 9.2*10^18, about 62 bits of chance. A client of
	// the old scheme that was forgotten in the move reads it as an expiry in the far future and keeps
	// out; any other form makes it throw, or take the lock.
	LegacySafe TokenForm = iota
	// UUID is a random UUID, 122 bits of chance.
	UUID
	// Hex is 40 hexadecimal digits, 160 bits of chance.
	Hex
)

const (
	legacySafeLow  = 5_000_000_000_000_000_000
	legacySafeHigh = 9_200_000_000_000_000_000
)

// source draws randomness from the system in larger pieces: a read of it costs more than a token.
type source struct {
	mu   sync.Mutex
	buf  [1024]byte
	left int
}

func (s *source) read(p []byte) {
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

func (s *source) token(form TokenForm) string {
	switch form {
	case UUID:
		var b [16]byte
		s.read(b[:])
		b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
		return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	case Hex:
		var b [20]byte
		s.read(b[:])
		return hex.EncodeToString(b[:])
	default:
		return strconv.FormatUint(s.number(), 10)
	}
}

// number draws evenly from the legacy-safe range: what falls outside of it is thrown away.
func (s *source) number() uint64 {
	for {
		var b [8]byte
		s.read(b[:])
		if n := binary.LittleEndian.Uint64(b[:])>>1 | 1<<62; n >= legacySafeLow && n < legacySafeHigh {
			return n
		}
	}
}

// checkToken refuses what would not survive the scripts' message format, or is no secret at all.
func checkToken(token string) error {
	switch {
	case len(token) < 16:
		return fmt.Errorf("token %q is shorter than 16 bytes: tokens must be unguessable and never repeat", token)
	case strings.IndexFunc(token, unicode.IsSpace) >= 0:
		return fmt.Errorf("token %q contains a blank", token)
	}
	return nil
}
