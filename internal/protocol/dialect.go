package protocol

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Dialect says how one family of clients writes, reads and deletes an expiry on a key. Two fleets
// that both "use SETNX and GETSET" exclude each other only if they agree on every line of it.
//
// It is data plus four small functions of Syntax and Layout. So a table can hold all dialects, and
// a user can define another.
type Dialect struct {
	Name   string // as on the command line: jedis-ms, redispy-float ...
	Letter string // as in the survey of dialects: A, B, C ...
	Format string // the name of its values' form: expiry-ms ...

	Unit   Unit   // what the number counts
	Extra  int64  // units that the writer adds to now + lease
	Syntax Syntax // how the reader's language reads a number
	Layout Layout // where in the value the number stands

	Writes       WriteTime // when the writer computes its expiry
	StaleClock   bool      // the reader compares with its clock of BEFORE the GET (Python, Go), not after it (Java)
	AtOrBefore   bool      // expired means value <= now; otherwise value < now
	ZeroIsHeld   bool      // the number 0 is never expired
	EmptyIsOne   bool      // an empty value, or none, reads as the number 1 (Python's "or 1")
	MineExpires  bool      // a value with the reader's own owner id counts as expired
	Win          WinRule   // who wins after the takeover command
	Missing      Missing   // what a reader does when GET finds nothing
	OnForeign    OnForeign // what the OLD code does with a value that it cannot read
	Release      Release   // how the OLD code releases
	Transaction  bool      // takes over by WATCH/GET/MULTI/SET/EXEC instead of GETSET
	QuotesOnTake bool      // the takeover writes the value in double quotes

	Forever string        // what the OLD code writes when it is given no lease; empty if it has no such mode
	Poll    time.Duration // between two attempts

	// TakesWithTTL: its writers take a free key with SET NX and a TTL, and read a value that they find there.
	TakesWithTTL bool

	// Unique tells that no two clients ever write the same value. So a value on the key proves whose
	// it is. Millisecond and second dialects cannot say that.
	Unique bool
}

// String returns the dialect's name.
func (d *Dialect) String() string { return d.Name }

// Leftover is a value that a bridge holder deletes at its release, when it finds it instead of its own; empty for most
// dialects. It never expires, so nothing else would ever free the key.
//
// A loser leaves it: its SETNX fails, and the holder releases. Its GET finds nothing and counts as expired. Another holder
// comes in, and the loser's GETSET overwrites that holder's value. The old clients leave it to each other too, and an old
// holder deletes it: its release deletes every number that is not smaller than its own. A bridge holder does the same. A
// client that came in after a stale DEL would write this value as well and lose its lock here. But only a client that overran
// its lease sends a stale DEL. Clients that write this value have no lease. The same holds for whom a release has given the lock
// and who finds this value in its place: bridge_acquire.lua and sidecar_take.lua take it back.
func (d *Dialect) Leftover() string {
	if d.Missing != MissingExpired || d.Release != ReleaseNotSmaller {
		return ""
	}
	return d.Forever
}

// Breath is for how long the key stays free of bridge clients after a bridge holder's release. It is for dialects whose clients
// take a key that has gone for an expired one; 0 for the others. It is longer than a client takes for two commands, and much
// less than a turn: without it such a client overwrites the next holder's value about once in a hundred contended turns. A
// dialect whose every acquisition settles needs none.
func (d *Dialect) Breath() time.Duration {
	if d.Missing != MissingExpired || d.SettlesFree() {
		return 0
	}
	return 5 * time.Millisecond
}

// RenewEvery is how often a bridge lock is renewed at least: so long at most an overlap stays unnoticed. Half of what is left
// of a shortest lease beside a command's delay: a value that came too late is seen while it lasts. Where a loser may win on its
// own value, it is seen before the loser looks again.
func (d *Dialect) RenewEvery(ttl, shortest, delay time.Duration) time.Duration {
	every := min(min(ttl, shortest)/3, (shortest-delay)/2)
	if d.SettlesFree() {
		every = min(every, d.Poll/2)
	}
	return every
}

// WriteTime says when the writer computes the expiry that it writes.
type WriteTime uint8

const (
	EachAttempt WriteTime = iota // once an attempt, before SETNX; GETSET sends the same text
	EachCommand                  // before SETNX and again before GETSET
	OnceForAll                   // once, before the first attempt
)

// WinRule says who wins after GETSET.
type WinRule uint8

const (
	OldIsRead     WinRule = iota // the old value is the very text that GET returned
	OldIsExpired                 // the old value is itself expired
	OldIsReadText                // as OldIsRead, but nothing equals nothing
)

// Missing says what a reader does when GET finds nothing.
type Missing uint8

const (
	MissingRetries Missing = iota // treats it as held, tries again
	MissingExpired                // treats it as expired, goes on to GETSET
	MissingFails                  // gives up with an error
)

// OnForeign says what the old code does with a value that it cannot read.
type OnForeign uint8

const (
	ForeignHeld    OnForeign = iota // never expires
	ForeignThrows                   // an exception leaves acquire
	ForeignExpired                  // taken over at once
	ForeignPrefix                   // reads the longest numeric prefix, else 0
)

// Release says how a holder gives the key back.
type Release uint8

const (
	ReleaseBlind      Release = iota // DEL, whatever is there, whenever
	ReleaseUnexpired                 // DEL while the own lease is unexpired by the own clock, else nothing
	ReleaseNotSmaller                // GET, DEL when the number there is not smaller than the own one
	ReleaseMine                      // GET, DEL when the value is the own one and unexpired
	ReleaseNever                     // nothing
	ReleaseCompare                   // compare-and-delete in one script
)

// Releases are their names in scenarios and claims.
var Releases = []string{"blind", "unexpired", "not-smaller", "mine", "never", "compare"}

// The dialects of the fleets out there.
var (
	JedisMS = &Dialect{
		Name: "jedis-ms", Letter: "A", Format: "expiry-ms", Unit: Milliseconds, Extra: 1, Syntax: JavaLong,
		Win: OldIsRead, Missing: MissingRetries, OnForeign: ForeignThrows, Release: ReleaseBlind,
		Poll: 100 * time.Millisecond,
	}
	JedisUUID = &Dialect{
		Name: "jedis-uuid", Letter: "B", Format: "uuid-expiry-ms", Unit: Milliseconds, Extra: 1, Syntax: JavaLong, Layout: UUIDColonNumber,
		MineExpires: true,
		Win:         OldIsRead, Missing: MissingExpired, OnForeign: ForeignExpired, Release: ReleaseBlind,
		Poll: 100 * time.Millisecond, Unique: true,
	}
	RedisPyFloat = &Dialect{
		Name: "redispy-float", Letter: "C", Format: "expiry-float-s", Unit: FloatSeconds, Syntax: PythonFloat,
		StaleClock: true, EmptyIsOne: true,
		Win: OldIsExpired, Missing: MissingExpired, OnForeign: ForeignThrows, Release: ReleaseNotSmaller,
		Forever: "2147483649.0", Poll: 100 * time.Millisecond, Unique: true,
	}
	RedisDoc = &Dialect{
		Name: "redis-doc", Letter: "D", Format: "expiry-s", Unit: Seconds, Extra: 1, Syntax: PlainInteger,
		AtOrBefore: true,
		Win:        OldIsExpired, Missing: MissingRetries, OnForeign: ForeignHeld, Release: ReleaseUnexpired,
		Poll: 100 * time.Millisecond,
	}
	RedisObjects = &Dialect{
		Name: "redis-objects", Letter: "E", Format: "expiry-float-s", Unit: FloatSeconds, Extra: 1, Syntax: RubyFloat, Writes: EachCommand,
		Win: OldIsExpired, Missing: MissingExpired, OnForeign: ForeignPrefix, Release: ReleaseUnexpired,
		Forever: "1", Poll: 100 * time.Millisecond, Unique: true,
	}
	SecPIDThread = &Dialect{
		Name: "sec-pid-thread", Letter: "H", Format: "sec-pid-thread", Unit: Seconds, Extra: 1, Syntax: RubyInteger, Layout: NumberDashOwner,
		Writes: OnceForAll,
		Win:    OldIsReadText, Missing: MissingExpired, OnForeign: ForeignPrefix, Release: ReleaseMine,
		Poll: time.Second, Unique: true,
	}
	ServiceStack = &Dialect{
		Name: "servicestack", Letter: "K", Format: "expiry-ms", Unit: Milliseconds, Extra: 1, Syntax: DotNetLong, Layout: MaybeQuoted,
		AtOrBefore: true, Transaction: true, QuotesOnTake: true,
		Win: OldIsRead, Missing: MissingRetries, OnForeign: ForeignHeld, Release: ReleaseBlind,
		Poll: 100 * time.Millisecond,
	}
	UnixNano = &Dialect{
		Name: "unix-ns", Letter: "N", Format: "expiry-ns", Unit: Nanoseconds, Syntax: PlainInteger, Writes: OnceForAll,
		StaleClock: true, ZeroIsHeld: true,
		Win: OldIsExpired, Missing: MissingFails, OnForeign: ForeignThrows, Release: ReleaseNever,
		TakesWithTTL: true, // machinery 1.10
		Poll:         100 * time.Millisecond, Unique: true,
	}
	JBoot = &Dialect{
		Name: "jboot", Letter: "V", Format: "fst-expiry-ms", Unit: Milliseconds, Extra: 1, Syntax: JavaLong, Layout: FSTLong,
		Win: OldIsRead, Missing: MissingRetries, OnForeign: ForeignHeld, Release: ReleaseBlind,
		Poll: 100 * time.Millisecond,
	}
)

var dialects = []*Dialect{JedisMS, JedisUUID, RedisPyFloat, RedisDoc, RedisObjects, SecPIDThread, ServiceStack, UnixNano, JBoot}

// Dialects lists them: of those that write the same, the likelier comes first.
func Dialects() []*Dialect { return slices.Clone(dialects) }

// BlindSet is the name of clients that overwrite a key which they have just read. They use SET or SETEX
// without a condition: the QueueLock of node-resque, celery_once 1.x. It is no dialect.
const BlindSet = "blind-set"

// unshareable are clients that can share a key with nobody, not even with clients of their own.
var unshareable = []struct {
	names []string
	why   string
}{
	{[]string{BlindSet},
		"its clients overwrite the key with SET or SETEX after they have read it: two that read at once both enter, " +
			"and no value stops them: nothing can share a key with them, so move these clients to other keys first"},
	{[]string{"t", "ms|uuid", "ms-pipe-uuid"},
		"its clients send GETSET on every failure: on first contention any value on the key is destroyed, a bridge value too"},
	{[]string{"e2", "redis-objects-forever"},
		`its clients write "1" when they are given no expiration, which every reader with one takes for long expired`},
	{[]string{"empty", "empty-value"},
		"an empty value says nothing about its holder, and readers take it for an expiry long past"},
}

// Refused says why nothing can share a key with clients of this name; empty for all other names.
func Refused(name string) string {
	for _, d := range unshareable {
		for _, n := range d.names {
			if strings.EqualFold(name, n) {
				return d.why
			}
		}
	}
	return ""
}

// DialectNamed finds one by its name or letter.
func DialectNamed(name string) (*Dialect, error) {
	var names []string
	if why := Refused(name); why != "" {
		return nil, fmt.Errorf("dialect %q cannot share a key with anybody: %s", name, why)
	}
	for _, d := range dialects {
		if strings.EqualFold(name, d.Name) || strings.EqualFold(name, d.Letter) {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return nil, fmt.Errorf("no dialect is named %q; known are %s", name, strings.Join(names, ", "))
}

// Expiry returns what a client whose clock reads now writes for a lease: the value's text, and the
// instant that it stands for. Only dialects with an owner in the value use owner.
func (d *Dialect) Expiry(now Instant, lease time.Duration, owner string) (string, Instant) {
	n := d.Unit.add(now, lease, d.Extra)
	return d.Layout.join(d.Unit.text(n), owner), d.Unit.instant(n)
}

// Reading is what a reader makes of a value.
type Reading uint8

const (
	Live       Reading = iota // the lease lasts
	Expired                   // the lease is over: take it over
	Unreadable                // not of this dialect
)

// Read parses a value. ok is false for a value that is not wholly of this dialect: a number in
// another syntax, a missing or surplus part.
func (d *Dialect) Read(value string) (expiry Number, ok bool) {
	if value == "" && d.EmptyIsOne {
		return d.Unit.one(), true
	}
	text, ok := d.Layout.split(value)
	if !ok {
		return Number{}, false
	}
	return d.Syntax.parse(text)
}

// Judge says what a reader whose clock reads now makes of a value.
func (d *Dialect) Judge(value string, now Instant, owner string) Reading {
	n, ok := d.Read(value)
	if !ok {
		return Unreadable
	}
	if d.MineExpires && d.Layout.owner(value) == owner {
		return Expired
	}
	return d.judgeNumber(n, now)
}

// JudgeAsOldCode is Judge as the old code does it, which for some dialects takes over what it
// cannot read. Unreadable then means that the old code throws.
func (d *Dialect) JudgeAsOldCode(value string, now Instant, owner string) Reading {
	reading := d.Judge(value, now, owner)
	if reading != Unreadable {
		return reading
	}
	switch d.OnForeign {
	case ForeignHeld:
		return Live
	case ForeignExpired:
		return Expired
	case ForeignPrefix:
		return d.judgeNumber(d.Syntax.prefix(d.Layout.head(value), d.Unit), now)
	default:
		return Unreadable
	}
}

func (d *Dialect) judgeNumber(n Number, now Instant) Reading {
	if d.ZeroIsHeld && n.zero() {
		return Live
	}
	if n.before(d.Unit.at(now)) || d.AtOrBefore && n.equal(d.Unit.at(now)) {
		return Expired
	}
	return Live
}

// ExpiresAt returns the instant that a value stands for, as far as an Instant can hold it; values
// beyond are cut to the ends of the range.
func (d *Dialect) ExpiresAt(value string) (Instant, bool) {
	n, ok := d.Read(value)
	if !ok {
		return 0, false
	}
	return d.Unit.instant(n), true
}
