package legacy

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Dialect is how one family of old clients writes, reads and deletes an expiry. A known one is its Name alone, as on the command
// line and in a namespace's record. The zero value is jedis-ms, and in compat.Options the dialect of the namespace.
//
//	jedis-ms        jedis-lock 1.0.0 and its many copies: whole milliseconds
//	jedis-uuid      jedis-lock master: uuid:milliseconds
//	redispy-float   redis-py 2.7.6 to 2.9.1 Lock: seconds as a float
//	redis-doc       the SETNX page of the Redis documentation: whole seconds
//	redis-objects   redis-objects 0.5.0 to 1.4.0 (Ruby): seconds as a float, plus one
//	sec-pid-thread  redis-lock (Ruby): seconds-pid-thread
//	servicestack    ServiceStack.Redis (C#): whole milliseconds, takeover by WATCH
//	unix-ns         machinery (Go): whole nanoseconds, never released
//	jboot           jboot 3.16 (Java): milliseconds as a Long that the FST library serialized
//
// One of your own has another Name, and says with the other fields what is different from jedis-ms.
type Dialect struct {
	Name         string
	Unit         time.Duration // of the number, read as Java reads it: a nanosecond, a millisecond or a second. Zero: a millisecond
	Float        bool          // the number has decimals, and is read as Python reads it; Unit must be a second
	Extra        int           // units added to now + lease; jedis-ms has 1. At least 0
	AtOrBefore   bool          // expired means value <= now; otherwise value < now
	TakesAny     bool          // a GETSET wins on any expired value (risks double-win); otherwise only on the text that GET returned
	TakesMissing bool          // a key that vanished between SETNX and GET counts as expired, not as held
	BlindDelete  bool          // ReleaseAsDialect sends DEL whenever; otherwise only while the lease lasts
	Poll         time.Duration // sleep between attempts, 1 ms to 1 h. Zero: 100 ms

	// Form is where in a value the number stands: "uuid:number", "number-owner" or "number:owner". The owner is a fresh one for
	// each lock. Zero: the number alone.
	Form string
}

func (d Dialect) rules() (*protocol.Dialect, error) { return protocol.Description(d).Rules() }
