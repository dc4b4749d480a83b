package observe

import (
	"regexp"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Kinds of clients, as in the command line's contract.
const (
	Legacy   = "legacy"
	Member   = "member" // of a namespace at stage legacy, where it speaks the old dialect
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
	return words.ReplaceAllStringFunc(key, func(word string) string {
		if numbers.MatchString(word) && !letters.MatchString(word) {
			return "#"
		}
		return numbers.ReplaceAllString(word, "#")
	})
}

// Letters are those that no hexadecimal id has.
var words, numbers, letters = regexp.MustCompile("[0-9A-Za-z]+"), regexp.MustCompile("[0-9]+"), regexp.MustCompile("[G-Zg-z]")
