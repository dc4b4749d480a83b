package legacy

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
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

// ParseDialect finds one of them by its name on the command line (jedis-ms, redispy-float ...). Those that can share a key
// with nobody are refused, and the error says why.
func ParseDialect(name string) (Dialect, error) {
	rules, err := protocol.DialectNamed(name)
	if err != nil {
		return nil, err // not a nil *protocol.Dialect in an interface
	}
	return rules, nil
}

// Custom describes a dialect of one's own. The zero value but for Name is JedisMS.
type Custom struct {
	Name         string        // for messages; required
	Unit         time.Duration // of the number, read as Java reads it: a nanosecond, a millisecond or a second. Zero: a millisecond
	Float        bool          // the number has decimals, and is read as Python reads it; Unit must be a second
	Extra        int           // units added to now + lease; JedisMS has 1. At least 0
	AtOrBefore   bool          // expired means value <= now; otherwise value < now
	TakesAny     bool          // a GETSET wins on any expired value (risks double-win); otherwise only on the text that GET returned
	TakesMissing bool          // a key that vanished between SETNX and GET counts as expired, not as held
	BlindDelete  bool          // ReleaseAsDialect sends DEL whenever; otherwise only while the lease lasts
	Poll         time.Duration // default sleep between attempts; zero: 100 ms

	// Form is where in a value the number stands: "uuid:number", "number-owner" or "number:owner". The owner is a fresh one for
	// each lock. Zero: the number alone.
	Form string
}

// Dialect checks the description.
func (c Custom) Dialect() (Dialect, error) {
	unit, known := map[time.Duration]protocol.Unit{
		0: protocol.Milliseconds, time.Millisecond: protocol.Milliseconds, time.Second: protocol.Seconds, time.Nanosecond: protocol.Nanoseconds,
	}[c.Unit]
	form, formed := map[string]protocol.Layout{
		"": protocol.Plain, "uuid:number": protocol.UUIDColonNumber, "number-owner": protocol.NumberDashOwner, "number:owner": protocol.NumberColonOwner,
	}[c.Form]
	switch {
	case c.Name == "":
		return nil, errors.New("a dialect needs a Name")
	case !known:
		return nil, fmt.Errorf("dialect %s: Unit %v: must be a nanosecond, a millisecond or a second", c.Name, c.Unit)
	case c.Float && c.Unit != time.Second:
		return nil, fmt.Errorf("dialect %s: Float with Unit %v: the unit must be a second", c.Name, c.Unit)
	case !formed:
		return nil, fmt.Errorf("dialect %s: Form %q: must be uuid:number, number-owner or number:owner", c.Name, c.Form)
	case c.Extra < 0 || c.Extra > 1_000_000:
		return nil, fmt.Errorf("dialect %s: Extra %d: must be from 0 to 1,000,000", c.Name, c.Extra)
	}
	if err := lockers.Periods(lockers.Named{Name: "Poll", Value: c.Poll}); err != nil {
		return nil, fmt.Errorf("dialect %s: %w", c.Name, err)
	}
	rules := &protocol.Dialect{
		Name: c.Name, Unit: unit, Extra: int64(c.Extra), AtOrBefore: c.AtOrBefore,
		OnForeign: protocol.ForeignHeld, Release: protocol.ReleaseUnexpired, Poll: c.Poll, Layout: form,
	}
	if c.Float {
		rules.Unit, rules.Syntax = protocol.FloatSeconds, protocol.PythonFloat
	}
	if c.TakesAny {
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
