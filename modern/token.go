package modern

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/lockmigrate/lockmigrate/internal/client/random"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
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

// token returns a random token.
func token(s *random.Source, form TokenForm) string {
	switch form {
	case UUID:
		var b [16]byte
		s.Read(b[:])
		b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
		return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	case Hex:
		var b [20]byte
		s.Read(b[:])
		return hex.EncodeToString(b[:])
	default:
		return strconv.FormatInt(s.Between(protocol.BridgeLow, protocol.BridgeHigh), 10)
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
