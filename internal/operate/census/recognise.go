package census

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// ValueKind is what a value is.
type ValueKind uint8

// The kinds.
const (
	NoValue         ValueKind = iota // an empty value, or one that is longer than any lock's
	ExpiryValue                      // a moment of our days, as a legacy dialect writes it
	BridgeValue                      // a number that every legacy reader takes for an expiry that never comes
	RandomValue                      // a text of random characters: a token
	NumberValue                      // another number: a counter, a flag, a thread id
	TextValue                        // another printable text
	BinaryValue                      // other bytes
	OverwriterValue                  // the value of clients that overwrite any value they meet
)

// Recognised is what a value turns out to be.
type Recognised struct {
	Kind   ValueKind
	Format string // of an expiry: the name of its form
	// Dialects are those whose clients write this, the likelier first: of an expiry, and of a bridge value
	// that is wrapped for one dialect. The slice is shared.
	Dialects []*protocol.Dialect
	At       protocol.Instant // of an expiry: the instant that it stands for
	Forever  bool             // an expiry that stands for a lock without a lease
	Quantum  time.Duration    // of an expiry: the step in which its writer counts
	Surely   bool             // nothing but a lock writes this
	Note     string

	read *protocol.Dialect // reads text
	text string
}

// Live tells that an expiry is still to come in the eyes of its dialect's clients.
func (v Recognised) Live(now protocol.Instant) bool {
	return v.Forever || v.read.Judge(v.text, now, "") == protocol.Live
}

// The moments at which a lock may expire. Redis is not older than its first release; a lease of ten years is
// the longest that is believed. The windows of the units do not overlap, so a number has one unit or none.
const (
	firstRedis = protocol.Instant(1238544000 * int64(time.Second)) // April 2009
	farthest   = 10 * 365 * 24 * time.Hour
)

// predis is written by PredisLock (PHP). It is no dialect of ours: nobody has asked for it.
var predis = &protocol.Dialect{Name: "predis", Format: "expiry-s", Unit: protocol.Seconds, Layout: protocol.NumberColonOwner}

var dialects = protocol.Dialects()

// alike are the dialects that write what one writes and share its way to read: the likelier first.
var alike = func() map[*protocol.Dialect][]*protocol.Dialect {
	all := map[*protocol.Dialect][]*protocol.Dialect{}
	for _, d := range dialects {
		all[d] = []*protocol.Dialect{d}
		for _, e := range dialects {
			if e != d && e.Unit == d.Unit && (e.Layout == d.Layout || d.Layout == protocol.Plain && e.Layout == protocol.MaybeQuoted) {
				all[d] = append(all[d], e)
			}
		}
	}
	return all
}()

// Recognise tells what a value is, seen at an instant. It is the only place that knows: scan, sweep, verify and doctor ask it
// through the census, observe asks it for every value that it sees written. So the tools cannot disagree about a value.
//
// It looks at the value alone. The key's name, its TTL and the commands around it say more, and are for the caller to weigh.
func Recognise(value string, now protocol.Instant) Recognised {
	if len(value) == 0 || len(value) >= Peek {
		return Recognised{}
	}
	if !begins(value) {
		return other(value, now)
	}
	for _, d := range dialects {
		if len(d.Forever) > 1 && value == d.Forever {
			at, _ := d.ExpiresAt(value)
			return Recognised{
				Kind: ExpiryValue, Format: d.Format, Dialects: alike[d][:1], At: at, Forever: true, Quantum: time.Second, Surely: true, read: d, text: value,
				Note: "a lock without a lease: held until released, for ever if its holder crashed",
			}
		}
		if v, ok := asWritten(d, alike[d], value, now); ok {
			return v
		}
	}
	if v, ok := asWritten(predis, nil, value, now); ok {
		v.Note = "seconds:pid, as PredisLock writes"
		return v
	}
	return other(value, now)
}

// begins tells by its first byte, at little cost, whether a value may be of a dialect.
func begins(value string) bool {
	c := value[0]
	return isDigit(c) || c == '"' || c == 0xf6 || c|0x20 >= 'a' && c|0x20 <= 'f' && strings.IndexByte(value, ':') > 0
}

// asWritten reads an expiry or a bridge value of a dialect.
func asWritten(d *protocol.Dialect, writers []*protocol.Dialect, value string, now protocol.Instant) (Recognised, bool) {
	if _, ok := d.BridgeNumber(value); ok {
		v := Recognised{Kind: BridgeValue, Surely: true}
		if d.Layout != protocol.Plain {
			v.Dialects, v.Note = writers, "wrapped for "+d.Name
		}
		return v, true
	}
	at, ok := d.Written(value)
	if !ok || !plausible(at, now) {
		return Recognised{}, false
	}
	v := Recognised{Kind: ExpiryValue, Format: d.Format, Dialects: writers, At: at, Quantum: d.Unit.Quantum(), read: d, text: value}
	v.Surely = d.Layout == protocol.UUIDColonNumber || d.Layout == protocol.FSTLong
	switch _, fraction, _ := strings.Cut(value, "."); {
	case d.Unit == protocol.FloatSeconds && strings.Trim(fraction, "0") == "":
		v.Quantum = time.Second // redis-py before 2.8: whole seconds, printed as a float
	case d.Layout == protocol.MaybeQuoted:
		v.Note = "in quotes, as ServiceStack writes on a takeover; jedis-ms clients throw on it"
	}
	return v, true
}

func plausible(at, now protocol.Instant) bool { return at >= firstRedis && at.Sub(now) <= farthest }

// other is a value that no dialect writes.
func other(value string, now protocol.Instant) Recognised {
	if len(value) == 8 {
		// ServiceStack's DistributedLock: a little-endian integer of seconds.
		n := binary.LittleEndian.Uint64([]byte(value))
		text := strconv.FormatUint(n, 10)
		if v, ok := asWritten(protocol.RedisDoc, nil, text, now); ok && v.Kind == ExpiryValue {
			v.Note = "8 bytes little-endian, as ServiceStack's DistributedLock writes; no other client reads it"
			return v
		}
	}
	if number, owner, ok := strings.Cut(value, "|"); ok && Digits(number) && isUUID(owner) {
		return Recognised{Kind: OverwriterValue, Note: "ms|uuid of a copied Spring helper that overwrites any value it meets; nothing can share a key with it"}
	}
	switch {
	case Digits(value):
		return number(value, now)
	case strings.HasPrefix(value, "ADDED:") && strings.Contains(value, "@"):
		return Recognised{Kind: RandomValue, Surely: true, Note: "as ShedLock writes"}
	case isRandom(value):
		return Recognised{Kind: RandomValue, Surely: len(value) > 36 && value[36] == ':'} // a uuid and a thread
	case printable(value):
		return Recognised{Kind: TextValue}
	}
	return Recognised{Kind: BinaryValue, Note: "binary, no known lock"}
}

func number(value string, now protocol.Instant) Recognised {
	v := Recognised{Kind: NumberValue}
	if n, err := strconv.ParseInt(value, 10, 64); err == nil && len(value) == 16 && plausible(protocol.Instant(n)*protocol.Instant(time.Microsecond), now) {
		v.Note = "reads as microseconds, which no known lock writes"
	}
	return v
}

// printable tells a text: UTF-8 without control characters.
func printable(value string) bool {
	if !utf8.ValidString(value) {
		return false
	}
	for _, r := range value {
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f {
			return false
		}
	}
	return true
}
