package modern

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
)

// longestClaim is how long a lock that was handed over may be held by a waiter that has not spoken yet; the first renewal, at a
// third of it, makes it a full TTL. It is what a waiter costs the others that dies in the moment of the hand-over.
const longestClaim = 3 * time.Second

// Options of a Locker. The zero value holds a random token for 30 s. It renews it every 10 s, and waits in line. No duration may
// be longer than ten years.
type Options struct {
	// TTL is how long the server keeps a lock that nobody renews: the longest that a crashed holder
	// blocks others. Whole milliseconds, at least 10 ms. Zero: 30 s.
	TTL time.Duration

	// Wait is how long Acquire lasts at most, from its first attempt on. Zero: as long as its context lasts.
	Wait time.Duration

	// RenewEvery is the time between two renewals. Zero: TTL/3, so that two of them may fail. More than
	// TTL/2 is refused: one lost reply would lose the lock. Negative: never; a lock is then held for TTL, or for as long as
	// Renew is called.
	RenewEvery time.Duration

	// MaxHold is how long a lock may be held although it is renewed. After that the holder's context ends with ErrLost and the
	// renewals stop; the key is free at most one TTL later. a worker that hangs does not keep its lock for ever. Zero: no limit.
	MaxHold time.Duration

	// FenceTTL draws a fencing token with each acquisition, from a counter beside the key. With it a store can refuse the writes
	// of a holder that was overtaken. It is how long the counter outlives its last use; then the counter starts from the server's
	// clock in microseconds. That is larger than any earlier token, unless the clock was set back by more than FenceTTL meanwhile.
	// A minute is enough for most. On a server without the counter, such as a replica promoted too early, that depends on both
	// servers' clocks: see docs/guarantees.md. Acquiring is then a script instead of a SET. Whole milliseconds, at least 2 * TTL.
	// Zero: no tokens.
	FenceTTL time.Duration

	// Unfair gives up the queue on the server. Waiters are then woken and compete, as in other libraries:
	// nothing keeps one of them from waiting for ever while others take turns. A release is a plain
	// compare-and-delete. For servers on which this client may not use the keys {key}:queue, or may not publish.
	Unfair bool

	// Yield leaves room for clients that only poll for the same keys, such as SET NX PX holders in Java: they would never find a
	// key free that this library's waiters hand on to each other. After four times Yield of hand-overs the key is left to them for
	// Yield: no waiter in line takes it. So a poller whose poll interval is not longer than Yield gets in. That costs up to a
	// fifth of the throughput while there is contention. Whole milliseconds. Zero: none; keys are ours alone.
	Yield time.Duration

	// Replicas is how many replicas must have an acquisition before it counts (WAIT); otherwise the lock is given back. They have
	// a second for that, or a third of TTL or half of ReplyTimeout if that is shorter. This makes the loss of a lock by a
	// failover (lost-update) rarer, not impossible: a replica without it may still be promoted. Zero: none.
	Replicas int

	// ReplyTimeout is when a reply that has not come counts as lost, or a quarter later, whatever the context says. Then the server is
	// asked once more, and what may be held is given back. So a call to a server that never answers takes up to five times
	// ReplyTimeout: bound its context for less. Less than TTL. Zero: 5 s, or a quarter of TTL if that is shorter. Where it is more than a quarter of
	// TTL, renewals wait only that long, over a connection of their own.
	ReplyTimeout time.Duration

	// Poll is the longest sleep between two looks at a key where the server offers no client tracking;
	// up to half of it is taken off at random. Zero: 100 ms.
	Poll time.Duration

	// Observer, if set, is told what happens.
	Observer lockmigrate.Observer

	claim          time.Duration // see longestClaim
	replicaTimeout time.Duration
}

// validate tells what is wrong with the options, without changing them.
func (o Options) validate() error {
	d := o.withDefaults()
	wrong := []error{
		lockers.Durations(lockers.Named{Name: "FenceTTL", Value: o.FenceTTL}, lockers.Named{Name: "Yield", Value: o.Yield}),
		o.terms().Validate(),
	}
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	refuse(o.FenceTTL%time.Millisecond != 0 || o.FenceTTL > 0 && o.FenceTTL < 2*d.TTL, "FenceTTL %v: whole milliseconds, at least twice TTL %v; the counter must outlive the lease", o.FenceTTL, d.TTL)
	refuse(o.Yield%time.Millisecond != 0, "Yield %v: the server counts whole milliseconds", o.Yield)
	refuse(o.Yield != 0 && o.Unfair, "Yield %v with Unfair: only the queue needs it", o.Yield)
	refuse(o.Replicas < 0, "Replicas %d: must not be negative", o.Replicas)
	refuse(o.Replicas > 0 && d.replicaTimeout >= d.ReplyTimeout, "ReplyTimeout %v: too short to wait for Replicas", d.ReplyTimeout)
	return errors.Join(wrong...)
}

func (o Options) withDefaults() Options {
	t := o.terms().WithDefaults()
	o.TTL, o.RenewEvery, o.ReplyTimeout, o.Poll = t.TTL, t.RenewEvery, t.ReplyTimeout, t.Poll
	o.claim = min(longestClaim, o.TTL)
	o.replicaTimeout = max(min(time.Second, o.TTL/3, o.ReplyTimeout/2).Truncate(time.Millisecond), time.Millisecond)
	return o
}

func (o Options) terms() lockers.Terms {
	return lockers.Terms{TTL: o.TTL, Wait: o.Wait, RenewEvery: o.RenewEvery, MaxHold: o.MaxHold, ReplyTimeout: o.ReplyTimeout, Poll: o.Poll}
}
