package compat

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// Defaults of Options.
const defaultLease = 30 * time.Second

// longestMemberLease is for how long a member of a namespace may acquire after its last successful report, at most.
var longestMemberLease = 15 * time.Second // a test shortens it

// Options of a Locker. The zero value is a bridge lock of 30 seconds, renewed while it is held. Its old clients speak jedis-ms,
// with leases of ten seconds or longer. No duration may be longer than ten years.
type Options struct {
	// Namespace names the record in Redis that says which stage to run, see `lockmigrate stage`. The Locker becomes a member of it
	// and follows it: it reports three times in each 15 s, or in one and a half TTL if that is shorter. It acquires nothing when
	// no report has come through for that long. Zero: none; the stage is Bridge.
	Namespace string

	// Dialect of the old clients on these keys. Zero: the record's with a Namespace, else jedis-ms. With a
	// Namespace it must be the record's.
	Dialect legacy.Dialect

	// TTL of a bridge or modern lock: after a crash of its holder others wait for this long, and a stage change may have to. While
	// the lock is held it is renewed each third of TTL, or of ShortestLease if that is less: so long at most an overlap with a
	// legacy client that came in after a stale DEL goes unnoticed. In dialect jedis-uuid it is renewed twice in its clients' poll.
	// So a loser that clobbered the key is noticed before it takes its own value for expired. Whole milliseconds, at least 10 ms.
	// Zero: 30 seconds.
	TTL time.Duration

	// Lease of a lock in stage Legacy; it is renewed each third of it. Zero: 30 seconds, or
	// ShortestLease or the shortest lease of the Namespace's record if that is longer.
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

	// CommandDelay is the longest delay of a legacy client's command: from computing or reading an expiry to the server's
	// execution of the command that follows. It has the network in it, and pauses of the client. The bridge takes a key over when
	// its expiry is over by ClockLag + CommandDelay, on the server's clock. It then watches the key for CommandDelay before the
	// lock counts as acquired. Less than half of ShortestLease. With a Namespace it may not be shorter than the record's. Zero:
	// the record's, or 250 ms.
	CommandDelay time.Duration

	// Wait is how long Acquire tries. Zero: as long as the context lasts.
	Wait time.Duration

	// Yield is how long a contended key is left free at a time, so that old clients get turns. It must
	// be longer than the pause between two looks of an old client, or the client misses its turn. How often that happens
	// is no option: it follows from who waits, see the package's documentation. While a key is left free, TryAcquire does
	// not take it either. With a Namespace it may not be shorter than the record's. Zero: the record's, or the dialect's poll
	// and a fifth, 120 ms for most. Negative: never.
	Yield time.Duration

	// FenceTTL draws a fencing token with each acquisition of the stages Bridge and Modern. With it a store can refuse the writes
	// of a holder that was overtaken. It is how long a key's counter outlives its last use; then the server's clock takes its
	// place. A minute is enough for most, see docs/guarantees.md. Whole milliseconds, at least 2 * TTL. Zero: no tokens.
	FenceTTL time.Duration

	// Member is what this process is called in `lockmigrate stage`, where a random part follows it. It may be a fixed
	// name, as in a StatefulSet: the process that follows a crashed one under the same name works at once, and counts
	// as another member. The crashed one counts until its last lock can no longer be held. Zero: host and process id.
	Member string

	// Observer, if set, is told what happens: also of repairs, takeovers and ghosts (in Event.Note and
	// Event.Err), and of every change of the stage.
	Observer lockmigrate.Observer

	// ReplyTimeout is when a reply that has not come counts as lost, or a quarter later, whatever the context says. Then the server is
	// asked once more, and what may be held is given back. So a call to a server that never answers takes up to five times
	// ReplyTimeout: bound its context for less. Less than TTL. Zero: 5 s, or a quarter of TTL if that is shorter.
	ReplyTimeout time.Duration

	// Derived of the others.
	rules                         *protocol.Dialect
	terms                         protocol.MemberTerms
	renewEvery, poll, memberLease time.Duration
}

// Validate tells what is wrong with the options, and why, without changing them. With a Namespace it refuses what no
// record can make right; the rest is judged when the Locker joins, see Locker.Ready.
func (o Options) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }

	wrong = append(wrong, lockers.Durations(
		lockers.Named{Name: "Lease", Value: o.Lease}, lockers.Named{Name: "ShortestLease", Value: o.ShortestLease},
		lockers.Named{Name: "ClockLag", Value: o.ClockLag}, lockers.Named{Name: "CommandDelay", Value: o.CommandDelay},
		lockers.Named{Name: "FenceTTL", Value: o.FenceTTL},
		lockers.Named{Name: "Yield", Value: max(o.Yield, 0)},
	), lockers.Terms{TTL: o.TTL, Wait: o.Wait, MaxHold: o.MaxHold, ReplyTimeout: o.ReplyTimeout}.Validate())
	if errors.Join(wrong...) != nil {
		return errors.Join(wrong...)
	}
	if o.Namespace != "" {
		if err := stages.CheckName(o.Namespace); err != nil {
			refuse("Namespace: %w", err)
		}
	}
	if _, err := protocol.Description(o.Dialect).Rules(); err != nil {
		return errors.Join(append(wrong, err)...)
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
		o.ShortestLease = lockers.Longest
		if o.Lease > 0 {
			o.ShortestLease = o.Lease
		}
	}
	wrong := o.withDefaults().relations()
	if o.Dialect != (legacy.Dialect{}) {
		return wrong
	}
	for _, d := range protocol.Dialects() {
		o.Dialect = legacy.Dialect{Name: d.Name}
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
	rules := o.rules

	if o.FenceTTL > 0 && o.FenceTTL < 2*o.TTL || o.FenceTTL%time.Millisecond != 0 {
		refuse("FenceTTL %v: must be whole milliseconds, at least twice TTL %v; the counter must outlive the lock", o.FenceTTL, o.TTL)
	}
	if o.Lease%rules.Unit.Resolution() != 0 {
		refuse("Lease %v: dialect %s writes whole units of %v", o.Lease, rules.Name, rules.Unit.Resolution())
	}
	if o.Lease < o.ShortestLease {
		refuse("Lease %v is shorter than ShortestLease %v: this service writes legacy leases too", o.Lease, o.ShortestLease)
	}
	if o.renewEvery+o.CommandDelay >= o.ShortestLease {
		refuse("ShortestLease %v: too short to renew within it, every %v, beside CommandDelay %v: before we notice, a legacy value could be over and taken by another: one that came after a stale DEL, or by a late GETSET", o.ShortestLease, o.renewEvery, o.CommandDelay)
	}
	if 2*o.CommandDelay >= o.ShortestLease {
		refuse("CommandDelay %v is not less than half of ShortestLease %v: a clobbering value could expire and be taken over while we settle", o.CommandDelay, o.ShortestLease)
	}
	if o.CommandDelay >= o.TTL {
		refuse("CommandDelay %v is not shorter than TTL %v: the lock would end while it settles", o.CommandDelay, o.TTL)
	}
	if o.Yield > 0 && (o.Yield < time.Millisecond || o.Yield > protocol.LongestYield) {
		refuse("Yield %v: must be from 1 ms to %v, or negative for never", o.Yield, protocol.LongestYield)
	}
	return wrong
}

// withDefaults fills in the zero values.
func (o Options) withDefaults() Options {
	o.rules, _ = protocol.Description(o.Dialect).Rules()
	o.terms = protocol.MemberTerms{
		Dialect: o.rules, TTL: o.TTL, Shortest: o.ShortestLease, ClockLag: o.ClockLag, CommandDelay: o.CommandDelay, Yield: o.Yield,
	}.WithDefaults()
	t := &o.terms
	o.TTL, o.ShortestLease, o.ClockLag, o.CommandDelay, o.Yield = t.TTL, t.Shortest, t.ClockLag, t.CommandDelay, t.Yield
	lockers.Default(&o.ReplyTimeout, lockers.ReplyTimeout(o.TTL))
	unit := o.rules.Unit.Resolution()
	lockers.Default(&o.Lease, max(defaultLease, (o.ShortestLease+unit-1).Truncate(unit)))
	o.poll, o.renewEvery = o.rules.Poll, t.Renew()
	o.memberLease = min(max(3*o.TTL/2, 300*time.Millisecond), longestMemberLease)
	return o
}

// longest is for how long a lock can outlive its last renewal, whatever stage it is of.
func (o Options) longest() time.Duration {
	return max(o.TTL, o.Lease+2*o.rules.Unit.Resolution())
}

// under returns the options as a namespace's record makes them, or why the two do not go together.
func (o Options) under(order stages.Order) (Options, error) {
	r := order.Record
	if r.Handover != nil {
		return o, fmt.Errorf("namespace %s is a handover from one lock to another: package handover follows it", r.Namespace)
	}
	dialect, err := protocol.DialectNamed(r.Dialect)
	if err != nil {
		return o, fmt.Errorf("namespace %s: %w", r.Namespace, err)
	}
	if ours, _ := protocol.Description(o.Dialect).Rules(); o.Dialect != (legacy.Dialect{}) && ours != dialect {
		return o, fmt.Errorf("namespace %s is of dialect %s, Options.Dialect says %s", r.Namespace, r.Dialect, o.Dialect.Name)
	}
	defaults := o // the record counts before the defaults that follow from it are filled in
	defaults.Dialect, defaults.rules = legacy.Dialect{Name: r.Dialect}, dialect
	var wrong []error
	// measured is what the record knows of the old clients; an option may only be more careful.
	measured := func(name string, option *time.Duration, record time.Duration, careful string, bold bool) {
		switch {
		case *option == 0:
			*option = record
		case bold && record > 0:
			wrong = append(wrong, fmt.Errorf("option %s %v is %s than the record's %v; leave it out, or correct the record", name, *option, careful, record))
		}
	}
	measured("ShortestLease", &defaults.ShortestLease, r.Shortest, "longer", o.ShortestLease > r.Shortest)
	measured("ClockLag", &defaults.ClockLag, r.ClockLag, "shorter", o.ClockLag < r.ClockLag)
	measured("CommandDelay", &defaults.CommandDelay, r.CommandDelay, "shorter", o.CommandDelay < r.CommandDelay)
	measured("Yield", &defaults.Yield, r.Yield, "shorter", o.Yield < r.Yield)
	if o.Lease == 0 {
		unit := defaults.rules.Unit.Resolution()
		defaults.Lease = max(defaultLease, (r.Shortest + unit - 1).Truncate(unit)) // a default never contradicts the record
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
