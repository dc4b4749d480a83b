package modern

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/limits"
	"github.com/lockmigrate/lockmigrate/internal/client/renewal"
)

// Defaults of Options.
const (
	DefaultTTL          = 30 * time.Second
	DefaultClaim        = 3 * time.Second
	DefaultFenceTTL     = 24 * time.Hour
	DefaultReplyTimeout = 5 * time.Second
	DefaultPoll         = 100 * time.Millisecond
)

// Layout is how a lock looks on the server.
type Layout uint8

const (
	// Token is a string key that holds the token: what SET key token NX PX ttl leaves, as in every
	// client of that form.
	Token Layout = iota
	// Redisson is a hash with one field, "<client uuid>:<thread id>", that holds the hold count, and a
	// channel that waiters listen to: Redisson's RLock. Services in Java and Go exclude and wake each
	// other. RLock is not fair and knows no fencing tokens in this layout.
	Redisson
)

// Options of a Locker. The zero value holds a legacy-safe token for 30 s, renews it every 10 s for as
// long as the lock is held, and waits in line. No duration may be longer than ten years.
type Options struct {
	// TTL is how long the server keeps a lock that nobody renews: the longest that a crashed holder
	// blocks others. Whole milliseconds, at least 10 ms. Zero: 30 s.
	TTL time.Duration

	// Wait is how long Acquire lasts at most, from its first attempt on. Zero: as long as its context lasts.
	Wait time.Duration

	// RenewEvery is the time between two renewals. Zero: TTL/3, so that two of them may fail. More than
	// TTL/2 is refused: one lost reply would lose the lock.
	RenewEvery time.Duration

	// NoRenewal switches automatic renewal off: a lock is held for TTL, or for as long as Renew is called.
	NoRenewal bool

	// MaxHold is how long a lock may be held although it is renewed. After that the holder's context
	// ends with ErrLost and the renewals stop, so that the key is free at most one TTL later: a worker
	// that hangs does not keep its lock for ever. Zero: no limit.
	MaxHold time.Duration

	// Token is the form of the random value. Zero: LegacySafe. Layout Redisson has its own.
	Token TokenForm

	// NewToken, if set, makes the tokens instead. They must be unguessable, at least 16 bytes long,
	// without blanks, and never the same twice.
	NewToken func() string

	// Layout is how the lock looks on the server. Every client of a key must use the same. Zero: Token.
	Layout Layout

	// Fencing draws a fencing token with each acquisition, from a counter beside the key, so that a store
	// can refuse the writes of a holder that was overtaken. A token is larger than all before it while the
	// server keeps the counter. On a server that has lost it, such as a replica that was promoted too early,
	// that depends on the clocks of both servers: see docs/guarantees.md. Acquiring is then a script
	// instead of a SET.
	Fencing bool

	// FenceTTL is how long the counter outlives its last use; then it starts from the server's clock in
	// microseconds, which is larger than any earlier token unless that clock was set back by more than
	// FenceTTL meanwhile. At least 2 * TTL. Zero: 24 h.
	FenceTTL time.Duration

	// Unfair gives up the queue on the server. Waiters are then woken and compete, as in other libraries:
	// nothing keeps one of them from waiting for ever while others take turns. A release is a plain
	// compare-and-delete, by the server's own command where it has one. For servers on which this client
	// may not use the keys {key}:queue, or may not publish.
	Unfair bool

	// Share leaves room for clients on the same keys that only poll, such as SET NX PX holders in Java and
	// Python: they would never find a key free that this library's waiters hand on to each other. After
	// four shares of hand-overs the key is left to them for one share, in which no waiter in line takes
	// it. So a poller whose poll interval is not longer than Share gets in, at the cost of up to a fifth
	// of the throughput while there is contention. Whole milliseconds. Zero: none; keys are ours alone.
	Share time.Duration

	// Claim is how long a lock that was handed over may be held by a waiter that has not spoken yet; the
	// first renewal, at a third of it, makes it a full TTL. It is what a waiter costs the others that
	// dies in the moment of the hand-over. At most TTL. Zero: 3 s, or TTL if that is shorter.
	Claim time.Duration

	// Replicas is how many replicas must have an acquisition before it counts, and ReplicaTimeout how
	// long to wait for them (WAIT); otherwise the lock is given back. This makes the loss of a lock by a
	// failover (lost-update) rarer, not impossible: a replica without it may still be promoted.
	// Zero: none. ReplicaTimeout zero: 1 s, or a third of TTL or half of ReplyTimeout if that is shorter. Whole
	// milliseconds, at most TTL/3, and less than ReplyTimeout.
	Replicas       int
	ReplicaTimeout time.Duration

	// Dial makes a connection outside of any pool: the shared line for commands and renewals, a pair for
	// waiting, and one for renewals alone with Pooled or a long ReplyTimeout; one each per Locker. They must
	// be ordinary connections in RESP2. Nil: the Dial or DialContext of the pool, if that is a *redis.Pool.
	// When there is neither, as with a pool that is wrapped for tracing, every attempt and every batch of renewals
	// takes a connection from the pool and gives it back, and waiting is by polling: such a waiter gets its turns
	// too, but the others wait until it looks, every tenth of Poll while it is one of the first four in line.
	Dial func(ctx context.Context) (redis.Conn, error)

	// Pooled sends the commands of each attempt over a connection of the pool instead of the shared
	// line. A cancelled command then costs a goroutine, and throughput is lower.
	Pooled bool

	// ReplyTimeout bounds the wait for each reply, whatever the context says; a reply that has not come
	// by then counts as lost. Less than TTL. Zero: 5 s, or half of TTL if that is shorter. Where it is more
	// than a quarter of TTL, renewals wait no longer than that, over a connection of their own.
	ReplyTimeout time.Duration

	// Poll is the longest sleep between two looks at a key where the server offers no client tracking;
	// up to half of it is taken off at random. Zero: 100 ms.
	Poll time.Duration

	// NoTracking keeps the Locker from asking for client tracking.
	NoTracking bool

	// RenewalFailed, if set, is told of every renewal that failed while the lock was still ours, and of
	// its loss. It must not block.
	RenewalFailed func(lock *Lock, err error)

	// Observer, if set, is told what happens.
	Observer lockmigrate.Observer
}

// Validate tells what is wrong with the options, without changing them.
func (o Options) Validate() error {
	var wrong []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	wrong = append(wrong, limits.Durations(
		limits.Option{Name: "TTL", Value: o.TTL}, limits.Option{Name: "Wait", Value: o.Wait},
		limits.Option{Name: "MaxHold", Value: o.MaxHold}, limits.Option{Name: "FenceTTL", Value: o.FenceTTL},
		limits.Option{Name: "Claim", Value: o.Claim}, limits.Option{Name: "Share", Value: o.Share},
	), limits.Periods(
		limits.Option{Name: "RenewEvery", Value: o.RenewEvery}, limits.Option{Name: "ReplicaTimeout", Value: o.ReplicaTimeout},
		limits.Option{Name: "ReplyTimeout", Value: o.ReplyTimeout}, limits.Option{Name: "Poll", Value: o.Poll},
	))
	d := o.withDefaults()
	refuse(d.TTL < 10*time.Millisecond, "TTL %v: at least 10 ms; a lease must outlast a few round trips", d.TTL)
	for name, value := range map[string]time.Duration{
		"TTL": d.TTL, "Claim": d.Claim, "FenceTTL": d.FenceTTL, "Share": d.Share, "ReplicaTimeout": d.ReplicaTimeout,
	} {
		refuse(value%time.Millisecond != 0, "%s %v: the server counts whole milliseconds", name, value)
	}
	refuse(d.RenewEvery > d.TTL/2, "RenewEvery %v: more than half of TTL %v; one lost reply would lose the lock", d.RenewEvery, d.TTL)
	refuse(o.NoRenewal && o.RenewEvery != 0, "RenewEvery without renewal")
	refuse(o.NoRenewal && o.MaxHold > d.TTL, "MaxHold %v: without renewal a lock is held for TTL %v", o.MaxHold, d.TTL)
	refuse(d.Claim > d.TTL, "Claim %v: more than TTL %v", d.Claim, d.TTL)
	refuse(d.ReplyTimeout >= d.TTL, "ReplyTimeout %v: not less than TTL %v; a lease would end before its acquisition is known", d.ReplyTimeout, d.TTL)
	refuse(d.FenceTTL < 2*d.TTL, "FenceTTL %v: less than twice TTL %v; the counter must outlive the lease", d.FenceTTL, d.TTL)
	refuse(o.Share != 0 && (o.Unfair || o.Layout == Redisson), "Share: only the queue needs it")
	refuse(!o.Fencing && o.FenceTTL != 0, "FenceTTL without Fencing")
	refuse(o.Token > Hex, "Token %d: no such form", o.Token)
	refuse(o.Layout > Redisson, "Layout %d: no such layout", o.Layout)
	if o.Layout == Redisson {
		refuse(o.Fencing, "Fencing: Redisson's RLock has none")
		refuse(o.Token != LegacySafe || o.NewToken != nil, "Token: in layout Redisson the holder is <uuid>:<number>")
	}
	refuse(o.Replicas < 0, "Replicas %d: must not be negative", o.Replicas)
	refuse(o.Replicas == 0 && o.ReplicaTimeout != 0, "ReplicaTimeout without Replicas")
	refuse(o.Replicas > 0 && d.ReplicaTimeout >= d.ReplyTimeout, "ReplicaTimeout %v: not less than ReplyTimeout %v; the reply would count as lost while the server waits for its replicas", d.ReplicaTimeout, d.ReplyTimeout)
	refuse(o.Replicas > 0 && d.ReplicaTimeout > d.TTL/3, "ReplicaTimeout %v: more than a third of TTL %v", d.ReplicaTimeout, d.TTL)
	if o.NewToken != nil {
		first, second := o.NewToken(), o.NewToken()
		if err := checkToken(first); err != nil {
			wrong = append(wrong, err)
		}
		refuse(first == second, "NewToken returned %q twice", first)
	}
	return errors.Join(wrong...)
}

func (o Options) withDefaults() Options {
	or := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	or(&o.TTL, DefaultTTL)
	or(&o.RenewEvery, o.TTL/3)
	or(&o.FenceTTL, max(DefaultFenceTTL, 2*o.TTL))
	or(&o.Claim, min(DefaultClaim, o.TTL))
	or(&o.ReplyTimeout, min(DefaultReplyTimeout, o.TTL/2))
	or(&o.ReplicaTimeout, max(min(time.Second, o.TTL/3, o.ReplyTimeout/2).Truncate(time.Millisecond), time.Millisecond))
	or(&o.Poll, DefaultPoll)
	return o
}

// dialer finds out how to make connections outside of the pool; nil if there is no way.
func (o Options) dialer(pool lockmigrate.Pool) func(ctx context.Context) (redis.Conn, error) {
	if o.Dial != nil {
		return o.Dial
	}
	p, ok := pool.(*redis.Pool)
	switch {
	case ok && p.DialContext != nil:
		return func(ctx context.Context) (redis.Conn, error) { return p.DialContext(ctx) }
	case ok && p.Dial != nil:
		return func(context.Context) (redis.Conn, error) { return p.Dial() }
	default:
		return nil
	}
}

// terms sets what the renewer has to know of a lock.
func (o Options) terms(s *renewal.Lease, owner renewal.Held) {
	s.Owner, s.Span, s.Every, s.Max = owner, o.TTL, o.RenewEvery, o.MaxHold
	if o.NoRenewal {
		s.Every = 0
	}
}
