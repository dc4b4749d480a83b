package legacy

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/limits"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Dialect is how one family of old clients writes, reads and deletes an expiry. Nil is JedisMS. There are those below, and
// what Custom makes; no other implementation is accepted.
type Dialect interface {
	// String returns the dialect's name.
	String() string

	// Expires returns the instant that a value stands for; ok is false for a value of another format.
	// Values beyond the year 2262 are cut to it.
	Expires(value string) (at time.Time, ok bool)
}

// The dialects of the fleets out there, each with the clients that speak it.
var (
	JedisMS      Dialect = protocol.JedisMS      // jedis-lock 1.0.0 and its many copies: whole milliseconds
	JedisUUID    Dialect = protocol.JedisUUID    // jedis-lock master: uuid:milliseconds
	RedisPyFloat Dialect = protocol.RedisPyFloat // redis-py 2.7.6 to 2.9.1 Lock: seconds as a float
	RedisDoc     Dialect = protocol.RedisDoc     // the SETNX page of the Redis documentation: whole seconds
	RedisObjects Dialect = protocol.RedisObjects // redis-objects 0.5.0 to 1.4.0 (Ruby): seconds as a float, plus one
	SecPIDThread Dialect = protocol.SecPIDThread // redis-lock (Ruby): seconds-pid-thread
	ServiceStack Dialect = protocol.ServiceStack // ServiceStack.Redis (C#): whole milliseconds, takeover by WATCH
	UnixNano     Dialect = protocol.UnixNano     // machinery (Go): whole nanoseconds, never released
	JBoot        Dialect = protocol.JBoot        // jboot 3.16 (Java): milliseconds as a Long that the FST library serialized
)

// Dialects lists the dialects above.
func Dialects() []Dialect {
	var all []Dialect
	for _, rules := range protocol.Dialects() {
		all = append(all, rules)
	}
	return all
}

// ParseDialect finds one of them by its name on the command line (jedis-ms, redispy-float ...). Those that can share a key
// with nobody are refused, and the error says why.
func ParseDialect(name string) (Dialect, error) {
	rules, err := protocol.DialectNamed(name)
	if err != nil {
		return nil, err // not a nil *protocol.Dialect in an interface
	}
	return rules, nil
}

// Unit is what an expiry counts since the Unix epoch.
type Unit uint8

const (
	Milliseconds Unit = iota
	Seconds
	FloatSeconds
	Nanoseconds
)

// Win says who wins after GETSET.
type Win uint8

const (
	WinIfOldIsRead    Win = iota // the old value is the very text that GET returned
	WinIfOldIsExpired            // the old value is itself expired, from any client (risks double-win)
)

// Layout says where in a value the number stands. The owner is a fresh one for each lock.
type Layout uint8

const (
	NumberAlone      Layout = iota
	UUIDColonNumber         // "uuid:number"
	NumberDashOwner         // "number-owner-..."
	NumberColonOwner        // "number:owner"
)

// Custom describes a dialect of one's own. The zero value but for Name is JedisMS.
type Custom struct {
	Name         string // for messages; required
	Unit         Unit   // of the number; integers are read as Java reads them, floats as Python does
	Extra        int    // units added to now + lease; JedisMS has 1. At least 0
	AtOrBefore   bool   // expired means value <= now; otherwise value < now
	Win          Win
	TakesMissing bool          // a key that vanished between SETNX and GET counts as expired, not as held
	BlindDelete  bool          // ReleaseAsDialect sends DEL whenever; otherwise only while the lease lasts
	Poll         time.Duration // default sleep between attempts; zero: 100 ms
	Layout       Layout        // where in the value the number stands; zero: the number alone
}

// Dialect checks the description.
func (c Custom) Dialect() (Dialect, error) {
	switch {
	case c.Name == "":
		return nil, errors.New("a dialect needs a Name")
	case c.Unit > Nanoseconds || c.Win > WinIfOldIsExpired || c.Layout > NumberColonOwner:
		return nil, fmt.Errorf("dialect %s: no such Unit, Win or Layout", c.Name)
	case c.Extra < 0 || c.Extra > 1_000_000:
		return nil, fmt.Errorf("dialect %s: Extra %d: must be from 0 to 1,000,000", c.Name, c.Extra)
	}
	if err := limits.Periods(limits.Option{Name: "Poll", Value: c.Poll}); err != nil {
		return nil, fmt.Errorf("dialect %s: %w", c.Name, err)
	}
	rules := &protocol.Dialect{
		Name: c.Name, Unit: protocol.Unit(c.Unit), Extra: int64(c.Extra), AtOrBefore: c.AtOrBefore,
		OnForeign: protocol.ForeignHeld, Release: protocol.ReleaseUnexpired, Poll: c.Poll,
		Layout: [...]protocol.Layout{protocol.Plain, protocol.UUIDColonNumber, protocol.NumberDashOwner, protocol.NumberColonOwner}[c.Layout],
	}
	if c.Unit == FloatSeconds {
		rules.Syntax = protocol.PythonFloat
	}
	if c.Win == WinIfOldIsExpired {
		rules.Win = protocol.OldIsExpired
	}
	if c.TakesMissing {
		rules.Missing = protocol.MissingExpired
	}
	if c.BlindDelete {
		rules.Release = protocol.ReleaseBlind
	}
	if rules.Poll == 0 {
		rules.Poll = protocol.JedisMS.Poll
	}
	return rules, nil
}
