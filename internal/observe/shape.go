package observe

import (
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Kinds of clients, as in the command line's contract.
const (
	Legacy   = "legacy"
	Bridge   = "bridge"
	Modern   = "modern"
	Redisson = "redisson"
	Unknown  = "unknown"
)

// Names of locks that are no dialect of an expiry.
const (
	setnxUUID  = "setnx-uuid"  // SETNX of a token, no TTL
	setNXPX    = "set-nx-px"   // SET NX PX of a token
	hashUID    = "hash-uid"    // a hash with a TTL
	ours       = "lockmigrate" // our own scripts
	setnxOther = "setnx"       // SETNX of something that no lock is known to write
)

// shape is what a written value looks like.
type shape struct {
	kind    string
	dialect string
	of      *protocol.Dialect // of an expiry, else nil
	expires protocol.Instant  // of an expiry
	forever bool              // an expiry that stands for none
	// base is the writer's own clock plus its lease, cut to quantum; of an expiry that is not forever.
	base    protocol.Instant
	quantum time.Duration
}

// near is how far an expiry may lie from now to be one: no lease is longer, no clock is further off.
const near = 3 * 365 * 24 * time.Hour

// shapeOf tells what a value that was written at an instant is.
func shapeOf(value string, now protocol.Instant) shape {
	if len(value) == 0 || len(value) > 128 {
		return shape{kind: Unknown}
	}
	for _, d := range protocol.Dialects() {
		if _, ok := d.BridgeNumber(value); ok {
			return shape{kind: Bridge, dialect: ours}
		}
		if !formOf(d, value) {
			continue
		}
		if value == d.Forever && len(value) > 1 {
			return shape{kind: Legacy, dialect: d.Name, of: d, forever: true}
		}
		at, ok := d.ExpiresAt(value)
		if !ok || at.Sub(now).Abs() > near {
			continue
		}
		s := shape{kind: Legacy, dialect: d.Name, of: d, expires: at}
		s.quantum = quantumOf(d.Unit)
		s.base = at - protocol.Instant(d.Extra)*protocol.Instant(unitOf(d.Unit))
		return s
	}
	if looksLikeToken(value) {
		return shape{kind: Modern, dialect: setNXPX}
	}
	return shape{kind: Unknown}
}

// formOf tells whether a value has the form that a dialect's clients write: stricter than what they read.
func formOf(d *protocol.Dialect, value string) bool {
	digits := strings.Trim(value, "0123456789") == ""
	switch d {
	case protocol.JedisMS:
		return digits && len(value) == 13
	case protocol.RedisDoc:
		return digits && len(value) == 10
	case protocol.UnixNano:
		return digits && len(value) == 19
	case protocol.RedisPyFloat:
		whole, part, ok := strings.Cut(value, ".")
		return ok && len(whole) == 10 && part != "" && strings.Trim(whole+part, "0123456789") == ""
	case protocol.ServiceStack:
		return len(value) == 15 && value[0] == '"' && value[14] == '"'
	case protocol.JedisUUID:
		return len(value) == 36+1+13 && value[36] == ':'
	case protocol.SecPIDThread:
		return strings.Count(value, "-") == 2 && strings.IndexByte(value, '-') == 10
	default:
		return false
	}
}

func unitOf(u protocol.Unit) time.Duration {
	switch u {
	case protocol.Milliseconds:
		return time.Millisecond
	case protocol.Nanoseconds:
		return time.Nanosecond
	default:
		return time.Second
	}
}

// quantumOf is what a written time is cut to.
func quantumOf(u protocol.Unit) time.Duration {
	switch u {
	case protocol.FloatSeconds:
		return time.Microsecond
	default:
		return unitOf(u)
	}
}

// looksLikeToken tells a random text from a word or a counter: at least 8 characters, a digit among them.
func looksLikeToken(value string) bool {
	if len(value) < 8 || !strings.ContainsAny(value, "0123456789") {
		return false
	}
	for i := 0; i < len(value); i++ {
		if value[i] <= ' ' || value[i] > '~' {
			return false
		}
	}
	return strings.Trim(value, "0123456789") != ""
}

// isRedissonHolder tells the field of a Redisson lock: client uuid:thread.
func isRedissonHolder(field string) bool {
	return len(field) > 37 && field[36] == ':' && strings.Count(field[:36], "-") == 4 && strings.Trim(field[37:], "0123456789") == ""
}

// familyOf makes one name of the keys of one kind of lock: numbers and hexadecimal ids become #, so that
// lock:order:17 and lock:order:18, which have one lease, are taken together.
func familyOf(key string) string {
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
