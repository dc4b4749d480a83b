package compat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/limits"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// Defaults of Options.
const (
	DefaultTTL           = 10 * time.Second
	DefaultLease         = 5 * time.Minute
	DefaultShortestLease = 10 * time.Second
	DefaultClockLag      = time.Second
	DefaultCommandDelay  = 250 * time.Millisecond
	DefaultMemberLease   = 15 * time.Second
	DefaultFenceTTL      = 7 * 24 * time.Hour
	DefaultReplyTimeout  = 2 * time.Second
)

// longestYield is less than half of the time for which the server remembers what old clients need.
const longestYield = 20 * time.Second

// Options of a Locker. The zero value is a bridge lock of ten seconds, renewed as long as it is held,
// beside clients of dialect jedis-ms whose leases are ten seconds or longer. No duration may be longer than ten years.
type Options struct {
	// Namespace names the record in Redis that says which stage to run, see `lockmigrate stage`. The
	// Locker becomes a member of it and follows it. Zero: none, Stage stays as it is.
	Namespace string

	// Stage to run without a Namespace. Zero: Bridge. Nothing then keeps one service at Legacy while
	// another is at Modern.
	Stage Stage

	// Dialect of the old clients on these keys. Zero: the record's with a Namespace, else JedisMS. With a
	// Namespace it must be the record's.
	Dialect legacy.Dialect

	// TTL of a bridge or modern lock: after a crash of its holder others wait for this long. Renewal
	// keeps it up while the lock is held. Whole milliseconds. Zero: 10 seconds.
	TTL time.Duration

	// RenewEvery is the time between two renewals. With CommandDelay it must be shorter than ShortestLease:
	// it bounds for how long an overlap with a legacy client that came in after a stale DEL goes unnoticed,
	// and a GETSET that comes late has used up that much of the lease that it writes. Zero: a
	// third of TTL, or of ShortestLease if that is less; in dialect jedis-uuid half of its clients' poll,
	// so that a loser that clobbered the key is noticed before it looks again and takes its own value for
	// expired.
	RenewEvery time.Duration

	// Lease of a lock in stage Legacy; it is renewed each third of it. Zero: 5 minutes, or the
	// shortest lease of the Namespace's record if that is longer.
	Lease time.Duration

	// MaxHold ends a lock that has been held for this long: it is not renewed any more. It frees the
	// keys of workers that hang. Zero: no end.
	MaxHold time.Duration

	// ShortestLease is the shortest lease of any legacy client of these keys. Longer than it really is
	// is unsafe: with a Namespace it may not be longer than the record's. Zero: the record's, or 10 seconds
	// without a Namespace.
	ShortestLease time.Duration

	// ClockLag is how far behind the server's clock a legacy client's may be. With a Namespace it may not be
	// shorter than the record's. Zero: the record's, or 1 second.
	ClockLag time.Duration

	// CommandDelay is the longest time between a legacy client's computing its expiry, or reading one,
	// and the server's execution of the command that follows from it: network, and pauses of the
	// client. With a Namespace it may not be shorter than the record's. Zero: the record's, or 250 ms.
	CommandDelay time.Duration

	// Grace is for how long a legacy expiry must be over, on the server's clock, before the bridge takes
	// the key over. At least ClockLag + CommandDelay. Zero: just that.
	Grace time.Duration

	// Settle is how long a taken-over key is watched before the lock counts as acquired. At least
	// CommandDelay, and together with it below ShortestLease. Zero: CommandDelay.
	Settle time.Duration

	// PutBacks is how often in one acquisition a live legacy value that clobbered ours while we settled
	// is overwritten. Zero: never, we withdraw and wait for its expiry. More is safe only if no legacy
	// client ever deletes the key after its lease, because the clobbering value may be that of a client
	// that came in after such a DEL; it is refused for dialects whose clients take their own value for
	// expired.
	PutBacks int

	// Wait is how long Acquire tries. Zero: as long as the context lasts.
	Wait time.Duration

	// Poll is the longest sleep between two looks at a held key where the server offers no client tracking.
	// One and a half of it is how long a free key is left to the first of those who wait before the next one
	// passes it over. Zero: the dialect's, 100 ms for most.
	Poll time.Duration

	// Yield is for how long a key that is wanted by many is left free at a time, so that old clients get turns. It must
	// be longer than the pause between two looks of an old client, or the client misses its turn. How often that happens
	// is no option: it follows from who waits, see the package's documentation. While a key is left free, TryAcquire does
	// not take it either. With a Namespace it may not be shorter than the record's. Zero: the record's, or the dialect's poll
	// and a fifth, 120 ms for most. Negative: never.
	Yield time.Duration

	// NoFence leaves the fencing counter out: Lock.Fence is then 0 and the server has one key less to
	// write.
	NoFence bool

	// FenceTTL is how long a key's fencing counter outlives its last use. When it has expired, the
	// server's clock takes its place. Zero: 7 days.
	FenceTTL time.Duration

	// MemberLease is for how long a member of a Namespace may acquire after its last successful report;
	// it reports three times as often. A stage change waits for it, and for TTL or Lease on top, when a
	// member falls silent. Zero: 15 seconds.
	MemberLease time.Duration

	// Member is what this process is called in `lockmigrate stage`, where a random part follows it. It may be a fixed
	// name, as in a StatefulSet: the process that follows a crashed one under the same name works at once, and counts
	// as another member. The crashed one counts until its last lock can no longer be held. Zero: host and process id.
	Member string

	// Version of the service, for people who look at `lockmigrate stage`.
	Version string

	// Dial makes a connection outside of any pool: one for commands, one for renewals, a pair for waiting on each master.
	// They must be ordinary connections in RESP2. Nil: the Dial or DialContext of the pool, if that is a
	// *redis.Pool. When there is neither, everything takes connections from the pool, and waiting is by
	// polling.
	Dial func(ctx context.Context) (redis.Conn, error)

	// Observer, if set, is told what happens: also of repairs, takeovers and ghosts (in Event.Note and
	// Event.Err), and of every change of the stage.
	Observer lockmigrate.Observer

	// NoTracking keeps waiters from asking for client tracking; they poll then.
	NoTracking bool

	// ReplyTimeout bounds the wait for each reply of the server, whatever the context says. A reply that
	// has not come by then counts as lost. Zero: 2 seconds.
	ReplyTimeout time.Duration
}

// Validate tells what is wrong with the options, and why, without changing them. With a Namespace it refuses what no
// record can make right; the rest is judged when the Locker joins, see Locker.Ready.
func (o Options) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }

	wrong = append(wrong, limits.Durations(
		limits.Option{Name: "TTL", Value: o.TTL}, limits.Option{Name: "Lease", Value: o.Lease}, limits.Option{Name: "MaxHold", Value: o.MaxHold},
		limits.Option{Name: "ShortestLease", Value: o.ShortestLease}, limits.Option{Name: "ClockLag", Value: o.ClockLag},
		limits.Option{Name: "CommandDelay", Value: o.CommandDelay}, limits.Option{Name: "Grace", Value: o.Grace},
		limits.Option{Name: "Settle", Value: o.Settle}, limits.Option{Name: "Wait", Value: o.Wait},
		limits.Option{Name: "FenceTTL", Value: o.FenceTTL}, limits.Option{Name: "Yield", Value: max(o.Yield, 0)},
		limits.Option{Name: "MemberLease", Value: o.MemberLease},
	), limits.Periods(
		limits.Option{Name: "RenewEvery", Value: o.RenewEvery}, limits.Option{Name: "Poll", Value: o.Poll},
		limits.Option{Name: "ReplyTimeout", Value: o.ReplyTimeout},
	))
	if errors.Join(wrong...) != nil {
		return errors.Join(wrong...)
	}
	if o.Stage > Modern {
		refuse("Stage %d: no such stage", o.Stage)
	}
	if o.Namespace != "" {
		if err := stages.CheckName(o.Namespace); err != nil {
			refuse("Namespace: %w", err)
		}
		if o.Stage != Bridge {
			refuse("Stage %v: with a Namespace the stage is the record's", o.Stage)
		}
	}
	if o.PutBacks < 0 || o.PutBacks > 5 {
		refuse("PutBacks %d: must be from 0 to 5", o.PutBacks)
	}
	if o.Namespace != "" {
		return errors.Join(append(wrong, o.relationsUnderSome()...)...)
	}
	return errors.Join(append(wrong, o.withDefaults().relations()...)...)
}

// relationsUnderSome checks the options of a Locker that a record governs, before the record is known: they are wrong
// if no record makes them right. under judges by the record itself.
func (o Options) relationsUnderSome() []error {
	if o.ShortestLease == 0 { // the longest that the Locker's own lease leaves room for
		o.ShortestLease = DefaultLease
		if o.Lease > 0 {
			o.ShortestLease = o.Lease
		}
	}
	if o.Lease == 0 {
		o.Lease = max(DefaultLease, o.ShortestLease)
	}
	wrong := o.withDefaults().relations()
	if o.Dialect != (legacy.Dialect{}) {
		return wrong
	}
	for _, d := range legacy.Dialects() {
		o.Dialect = d
		if len(o.withDefaults().relations()) == 0 {
			return nil
		}
	}
	return wrong
}

// relations checks what must hold between the options for the bridge to be safe. The options have
// their defaults.
func (o Options) relations() []error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	rules := o.Dialect.Rules()

	if rules.Join != nil || rules.Split != nil {
		refuse("Dialect %s: the server's scripts cannot read a format that is written in Go", rules.Name)
	}
	if o.PutBacks > 0 && rules.MineExpires {
		refuse("PutBacks %d with dialect %s: a loser that clobbered the key finds its own value at its next attempt and holds the lock; putting ours back makes two holders", o.PutBacks, rules.Name)
	}
	if o.TTL < 10*time.Millisecond || o.TTL%time.Millisecond != 0 {
		refuse("TTL %v: must be whole milliseconds, at least 10", o.TTL)
	}
	if !o.NoFence && (o.FenceTTL < 2*o.TTL || o.FenceTTL%time.Millisecond != 0) {
		refuse("FenceTTL %v: must be whole milliseconds, at least twice TTL %v; the counter must outlive the lock", o.FenceTTL, o.TTL)
	}
	if o.Lease%rules.Unit.Resolution() != 0 {
		refuse("Lease %v: dialect %s writes whole units of %v", o.Lease, rules.Name, rules.Unit.Resolution())
	}
	if o.Lease < o.ShortestLease {
		refuse("Lease %v is shorter than ShortestLease %v: ours counts too", o.Lease, o.ShortestLease)
	}
	if o.RenewEvery >= o.TTL {
		refuse("RenewEvery %v is not shorter than TTL %v: the lock would end before its renewal", o.RenewEvery, o.TTL)
	}
	if o.RenewEvery+o.CommandDelay >= o.ShortestLease {
		refuse("RenewEvery %v + CommandDelay %v is not shorter than ShortestLease %v: the value of a legacy client that came in after a stale DEL, or of a late GETSET, could be over and taken by another before we notice", o.RenewEvery, o.CommandDelay, o.ShortestLease)
	}
	if o.Grace < o.ClockLag+o.CommandDelay {
		refuse("Grace %v is less than ClockLag %v + CommandDelay %v: a lease could be taken over that its holder's clock, or the delay of its command, still makes live", o.Grace, o.ClockLag, o.CommandDelay)
	}
	if o.Settle < o.CommandDelay {
		refuse("Settle %v is less than CommandDelay %v: a GETSET sent before the takeover could still clobber the key after we looked", o.Settle, o.CommandDelay)
	}
	if o.Settle+o.CommandDelay >= o.ShortestLease {
		refuse("Settle %v + CommandDelay %v is not less than ShortestLease %v: a clobbering value could expire and be taken over while we settle", o.Settle, o.CommandDelay, o.ShortestLease)
	}
	if o.Settle >= o.TTL {
		refuse("Settle %v is not shorter than TTL %v: the lock would end while it settles", o.Settle, o.TTL)
	}
	if o.Yield > 0 && (o.Yield < time.Millisecond || o.Yield > longestYield) {
		refuse("Yield %v: must be from 1 ms to %v, or negative for never", o.Yield, longestYield)
	}
	if o.MemberLease < 100*time.Millisecond {
		refuse("MemberLease %v: must be at least 100 ms", o.MemberLease)
	}
	return wrong
}

// withDefaults fills in the zero values.
func (o Options) withDefaults() Options {
	fill := func(field *time.Duration, value time.Duration) {
		if *field == 0 {
			*field = value
		}
	}
	fill(&o.TTL, DefaultTTL)
	fill(&o.Lease, DefaultLease)
	fill(&o.ShortestLease, DefaultShortestLease)
	fill(&o.ClockLag, DefaultClockLag)
	fill(&o.CommandDelay, DefaultCommandDelay)
	fill(&o.Grace, o.ClockLag+o.CommandDelay)
	fill(&o.Settle, o.CommandDelay)
	poll := o.Dialect.Rules().Poll
	if o.Dialect.Rules().SettlesFree() {
		fill(&o.RenewEvery, poll/2)
	}
	fill(&o.RenewEvery, min(o.TTL, o.ShortestLease)/3)
	fill(&o.Poll, poll)
	fill(&o.Yield, min(poll+poll/5, longestYield))
	fill(&o.FenceTTL, max(DefaultFenceTTL, 2*o.TTL))
	fill(&o.MemberLease, DefaultMemberLease)
	fill(&o.ReplyTimeout, DefaultReplyTimeout)
	return o
}

// longest is for how long a lock can outlive its last renewal, whatever stage it is of.
func (o Options) longest() time.Duration {
	return max(o.TTL, o.Lease+2*o.Dialect.Rules().Unit.Resolution())
}

// under returns the options as a namespace's record makes them, or why the two do not go together.
func (o Options) under(order stages.Order) (Options, error) {
	r := order.Record
	dialect, err := ParseDialect(r.Dialect)
	if err != nil {
		return o, fmt.Errorf("namespace %s: %w", r.Namespace, err)
	}
	if o.Dialect != (legacy.Dialect{}) && o.Dialect.String() != r.Dialect {
		return o, fmt.Errorf("namespace %s is of dialect %s, Options.Dialect says %s", r.Namespace, r.Dialect, o.Dialect)
	}
	defaults := o // the record counts before the defaults that follow from it are filled in
	defaults.Dialect = dialect
	var wrong []error
	// measured is what the record knows of the old clients; an option may only be more careful.
	measured := func(name string, option *time.Duration, record time.Duration, careful string, bold bool) {
		switch {
		case *option == 0:
			*option = record
		case bold && record > 0:
			wrong = append(wrong, fmt.Errorf("Options.%s %v is %s than the record's %v; leave it out, or correct the record", name, *option, careful, record))
		}
	}
	measured("ShortestLease", &defaults.ShortestLease, r.Shortest, "longer", o.ShortestLease > r.Shortest)
	measured("ClockLag", &defaults.ClockLag, r.ClockLag, "shorter", o.ClockLag < r.ClockLag)
	measured("CommandDelay", &defaults.CommandDelay, r.CommandDelay, "shorter", o.CommandDelay < r.CommandDelay)
	measured("Yield", &defaults.Yield, r.Yield, "shorter", o.Yield < r.Yield)
	if o.Lease == 0 {
		unit := dialect.Rules().Unit.Resolution()
		defaults.Lease = max(DefaultLease, (r.Shortest + unit - 1).Truncate(unit)) // a default never contradicts the record
	}
	filled := defaults.withDefaults()
	wrong = append(wrong, filled.relations()...)
	if filled.Lease < r.Shortest && filled.ShortestLease < r.Shortest {
		wrong = append(wrong, fmt.Errorf("a Lease of %v is shorter than the record's shortest lease %v, on which the other members rely", filled.Lease, r.Shortest))
	}
	if order.Now.Before(firstExpiry) {
		wrong = append(wrong, errOldClock)
	}
	if len(wrong) > 0 {
		return o, fmt.Errorf("namespace %s: %w", r.Namespace, errors.Join(wrong...))
	}
	return filled, nil
}

// firstExpiry is the earliest moment that the bridge reads as the expiry of a legacy value.
var (
	firstExpiry = protocol.EarliestExpiry.Time().UTC()
	errOldClock = fmt.Errorf("the server's clock stands before %s: the bridge takes no expiry of that time for one; set the clock", firstExpiry.Format(time.DateOnly))
)

// dialer finds out how to make connections outside of the pool; nil if there is no way.
func (o Options) dialer(pool lockmigrate.Pool) func(ctx context.Context) (redis.Conn, error) {
	p, ok := pool.(*redis.Pool)
	switch {
	case o.Dial != nil:
		return o.Dial
	case ok && p.DialContext != nil:
		return p.DialContext
	case ok && p.Dial != nil:
		return func(context.Context) (redis.Conn, error) { return p.Dial() }
	default:
		return nil
	}
}

func (o Options) rules() *protocol.Dialect { return o.Dialect.Rules() }
