package observe

import (
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Kinds of clients, as in the command line's contract.
const (
	Legacy   = "legacy"
	Bridge   = "bridge"
	Sidecar  = "sidecar" // a service behind one, which locks with tokens
	Modern   = "modern"
	Redisson = "redisson"
	Unknown  = "unknown"
)

// Names of locks that are no dialect of an expiry.
const (
	setnxUUID   = "setnx-uuid"      // SETNX of a token, no TTL
	setnxExpire = "setnx-expire"    // SETNX of anything, then EXPIRE: it lives by its TTL
	setNXPX     = "set-nx-px"       // SET NX PX of anything: it lives by its TTL
	hashUID     = "hash-uid"        // a hash with a TTL
	ours        = "lockmigrate"     // our own scripts
	setnxOther  = "setnx"           // SETNX of something that no lock is known to write
	unlisted    = "other-expiry"    // an expiry in a form that no dialect of ours has
	blindSet    = protocol.BlindSet // SET or SETEX over a key that it had just read
)

// form is what a written value looks like.
type form struct {
	kind    string
	dialect string
	of      *protocol.Dialect // of an expiry, else nil
	expires protocol.Instant  // of an expiry
	forever bool              // an expiry that stands for none
	quantum time.Duration     // the step in which its writer counts
}

// formOf tells what a value that was written at an instant is.
func formOf(value string, now protocol.Instant) form {
	v := census.Recognise(value, now)
	switch v.Kind {
	case census.ExpiryValue:
		s := form{kind: Legacy, dialect: unlisted, expires: v.At, forever: v.Forever, quantum: v.Quantum}
		if len(v.Dialects) > 0 {
			s.of, s.dialect = v.Dialects[0], v.Dialects[0].Name
		}
		if s.forever {
			s.expires = 0
		}
		return s
	case census.BridgeValue:
		return form{kind: Bridge, dialect: ours}
	case census.RandomValue:
		return form{kind: Modern, dialect: setNXPX}
	}
	return form{kind: Unknown}
}

// timed tells a value that says when it was written: an expiry with a lease.
func (s form) timed() bool { return s.of != nil && s.expires != 0 }

// extraOf is what a dialect's writers add to now + lease.
func extraOf(d *protocol.Dialect) time.Duration {
	if d.Unit == protocol.FloatSeconds {
		return time.Duration(d.Extra) * time.Second
	}
	return time.Duration(d.Extra) * d.Unit.Resolution()
}

// Family makes one name of the keys of one kind of lock: numbers and hexadecimal ids become #, so that
// lock:order:17 and lock:order:18, which have one lease, are taken together.
func Family(key string) string {
	var b strings.Builder
	for i := 0; i < len(key); {
		j := i
		digit := false
		for j < len(key) && isAlnum(key[j]) {
			digit = digit || key[j] >= '0' && key[j] <= '9'
			j++
		}
		switch word := key[i:j]; {
		case j == i:
			b.WriteByte(key[i])
			j++
		case digit && strings.Trim(word, "0123456789abcdefABCDEF") == "":
			b.WriteByte('#')
		default:
			writeWithoutNumbers(&b, word)
		}
		i = j
	}
	return b.String()
}

// writeWithoutNumbers writes a word with # for each number in it.
func writeWithoutNumbers(b *strings.Builder, word string) {
	inNumber := false
	for i := range len(word) {
		isDigit := word[i] >= '0' && word[i] <= '9'
		switch {
		case !isDigit:
			b.WriteByte(word[i])
		case !inNumber:
			b.WriteByte('#')
		}
		inNumber = isDigit
	}
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
