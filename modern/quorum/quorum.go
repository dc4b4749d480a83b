// Package quorum is a lock on a majority of independent servers: the algorithm called RedLock.
//
//	locker, err := quorum.New(pools, modern.Options{})
//
// # Guarantees
//
// Q1. A lock survives the loss of a minority of the servers, with their data. An acquisition asks all of them at once, with one
// token. It counts when a majority has set the key and some of the TTL is left. The time that has passed, and an allowance for
// drifting clocks, are taken off. Everything else is undone everywhere, also on servers that did not answer. Renewals need a
// majority too.
//
// Q2. The holder's context ends no later than the lease, drift included (internal/evidence/suites/kinds).
//
// # Not guaranteed
//
//   - It is no consensus. Its safety rests on time: the servers' clocks must run at nearly the same speed,
//     and must not jump while keys expire. A hundredth of the TTL is taken off for their drift. A holder that is paused past its deadline
//     still believes for a moment that it holds the lock; only fencing tokens checked by the store stop
//     its writes, and a quorum draws none: their order would need what RedLock does not have.
//   - A server that loses its keys in a crash, and is back within the TTL, may let two in. Servers must persist with fsync always, or stay away for one TTL after a crash.
//   - It is not fair. Waiters poll, with random pauses; nobody is handed the lock.
//
// If the work must never run twice at once, use a system with consensus, or fencing tokens on one server. A quorum is for work
// that is expensive to do twice, on servers that may fail.
package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/modern"
)

// locker is a lockmigrate.Locker over a majority of servers.
type locker struct {
	conns *lockers.Client
	lockers.Terms
	tokens lockers.Random
}

func terms(o modern.Options) lockers.Terms {
	t := lockers.Terms{TTL: o.TTL, Wait: o.Wait, RenewEvery: o.RenewEvery, MaxHold: o.MaxHold, ReplyTimeout: o.ReplyTimeout, Poll: o.Poll}
	lockers.Default(&t.Poll, 200*time.Millisecond)
	lockers.Default(&t.ReplyTimeout, max(min(time.Second, t.WithDefaults().TTL/10), lockers.Shortest))
	return t
}

func validate(o modern.Options) error {
	wrong := terms(o).Validate()
	if o.FenceTTL != 0 || o.Unfair || o.Yield != 0 || o.Replicas != 0 {
		return errors.Join(wrong, errors.New("FenceTTL, Unfair, Yield, Replicas: only package modern has them; leave them zero"))
	}
	return wrong
}

// New returns a Locker over servers that must be independent of each other: no replicas. Three or
// five are usual; an even number tolerates no more failures than one less. It sends nothing yet. An attempt asks all servers at once.
//
// The options mean what they mean in package modern, but for these. FenceTTL, Unfair, Yield and Replicas are refused. ReplyTimeout is
// a tenth of TTL by default, at most 1 s: so one server that does not answer does not use the lease up. Poll is the pause between two
// attempts, 200 ms by default.
func New(pools []lockmigrate.Pool, opts modern.Options) (lockmigrate.Locker, error) {
	if len(pools) == 0 {
		return nil, errors.New("quorum: a Locker needs pools")
	}
	if err := validate(opts); err != nil {
		return nil, fmt.Errorf("quorum: %w", err)
	}
	for i, pool := range pools {
		if err := lockers.CheckPool(pool); err != nil {
			return nil, fmt.Errorf("quorum: pool %d: %w", i, err)
		}
		for j := range i {
			if lockers.SamePool(pools[j], pool) {
				return nil, fmt.Errorf("quorum: pools %d and %d are one and the same: the servers must be independent", j, i)
			}
		}
	}
	t := terms(opts).WithDefaults()
	q := &locker{Terms: t}
	q.conns = lockers.Connect(lockers.Options{
		Package: "quorum", TTL: t.TTL, ReplyTimeout: t.ReplyTimeout, Observer: opts.Observer, Quorum: len(pools)/2 + 1, Drift: q.drift(),
	}, pools...)
	return q, nil
}

func (q *locker) majority() int { return len(q.conns.Servers)/2 + 1 }

// drift is taken off every lease: a hundredth of it, by which one clock may run faster than another, and the servers' rounding.
func (q *locker) drift() time.Duration { return q.TTL/100 + 2*time.Millisecond }

// Close implements lockmigrate.Locker.
func (q *locker) Close() error { return q.conns.Close() }

// TryAcquire implements lockmigrate.Locker.
func (q *locker) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	if err := lockers.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	start := q.conns.Clock.Now()
	k, err := q.attempt(ctx, key)
	return q.concluded(key, k, err, start, false)
}

// Acquire implements lockmigrate.Locker.
func (q *locker) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	if err := lockers.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	start := q.conns.Clock.Now()
	if q.Wait > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, q.Wait, lifetime.ErrWaitOver)
		defer cancel()
		ctx = bounded
	}
	var last error
	for {
		k, err := q.attempt(ctx, key)
		switch {
		case err == nil, q.conns.Closed(), errors.Is(err, errRefused): // what the servers refuse, they will refuse again
			return q.concluded(key, k, err, start, last != nil)
		case ctx.Err() == nil || last == nil:
			last = err
		}
		if lifetime.Sleep(ctx, q.Poll-rand.N(q.Poll/2+1)) != nil {
			return q.concluded(key, nil, notInTime(key, last, context.Cause(ctx)), start, true)
		}
	}
}

// errRefused is matched by the error of an attempt that so many servers refused that there can be no majority.
var errRefused = errors.New("refused by the servers")

// notInTime is the error of a wait that ended: why it did, and where that is known why it lasted.
func notInTime(key string, last, cause error) error {
	var known *lockmigrate.Error
	if errors.As(last, &known) && !errors.Is(known.Cause, cause) {
		e := &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: cause, Note: known.Note}
		if known.Cause != nil {
			e.Cause = errors.Join(cause, known.Cause)
		}
		return e
	}
	return &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: cause}
}

// Do implements lockmigrate.Locker.
func (q *locker) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return lifetime.Do(ctx, key, q.Acquire, 2*q.ReplyTimeout, work)
}

// concluded is the last step of every acquisition.
func (q *locker) concluded(key string, k *lock, err error, start protocol.Instant, waited bool) (lockmigrate.Lock, error) {
	if err != nil {
		q.conns.Concluded(lockmigrate.Event{Key: key, Err: err}, start)
		return nil, err
	}
	k.Watched(func() { q.conns.Concluded(lockmigrate.Event{Key: key, How: lockers.How(waited, false)}, start) })
	return k.AsLock(), nil
}

// attempt asks every server, counts, and undoes what is not a majority.
func (q *locker) attempt(ctx context.Context, key string) (*lock, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: err}
	}
	if !q.conns.Background.Begin() {
		return nil, &lockmigrate.Error{Op: "acquire", Key: key, Cause: lifetime.ErrClosed}
	}
	defer q.conns.Background.End()
	k := &lock{quorum: q, key: key, token: strconv.FormatInt(q.tokens.Between(protocol.BridgeLow, protocol.BridgeHigh), 10), turns: make([]<-chan struct{}, len(q.conns.Servers)), keeps: make([]bool, len(q.conns.Servers))}
	for i := range k.turns {
		k.turns[i] = begun
	}
	k.Init(&q.conns.Lives, k, ctx)
	s := &k.Lease
	s.Owner, s.Span, s.Every, s.Max = k, q.TTL, max(q.RenewEvery, 0), q.MaxHold
	sent := q.conns.Clock.Now()
	v, cause := q.poll(ctx, func() protocol.Machine {
		return &protocol.ModernAcquire{Key: key, Token: k.token, TTL: q.TTL}
	}, protocol.Acquired, k.turn, nil)

	until := sent.Add(q.TTL - q.drift())
	closed := q.conns.Closed()
	if cause == nil && v.yes >= q.majority() && q.conns.Clock.Now() < until && !closed {
		k.Lease.Begin(q.conns.Clock.Now(), until)
		return k, nil
	}
	// The keys that were set are removed while the caller already goes on; those that could not be asked
	// may hold the token for one TTL, as in every RedLock.
	q.conns.Background.Fork(func() { q.undo(k) })
	err := &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: cause}
	switch {
	case cause != nil:
	case closed:
		err.Kind, err.Cause = nil, lifetime.ErrClosed
	case v.yes >= q.majority():
		err.Note = "the majority came too late"
	case v.yes+v.no < q.majority():
		err.Kind, err.Cause = nil, errors.Join(v.causes...)
		if v.refused > len(q.conns.Servers)-q.majority() {
			err.Cause = errors.Join(append(v.causes, errRefused)...)
		}
		err.Note = fmt.Sprintf("%d of %d servers answered", v.yes+v.no, len(q.conns.Servers))
	default:
		err.Note = fmt.Sprintf("%d of %d servers", v.yes, len(q.conns.Servers))
	}
	return nil, err
}

// votes are the ballots of one poll.
type votes struct {
	yes, no         int
	failed, refused int // it has certainly not run there; and of these, by the server's own word
	causes          []error
}

func (v *votes) count(o driver.Outcome, good protocol.Verdict) {
	switch o.Step.Verdict {
	case good:
		v.yes++
		return
	case protocol.Failed:
		v.failed++
		if driver.Refused(o.Err) {
			v.refused++
		}
	case protocol.Unsure:
	default:
		v.no++
		return
	}
	v.causes = append(v.causes, o.Err)
}

// poll runs a machine on every server and counts until the outcome cannot change any more, or ctx ends: then behind, if it is
// set, is told the count in the background. On each server the machine waits for its turn. The caller is counted in background.
func (q *locker) poll(
	ctx context.Context, machine func() protocol.Machine, good protocol.Verdict, turn turns, behind func(votes),
) (votes, error) {
	ballots := make(chan driver.Outcome, len(q.conns.Servers))
	for i, m := range q.conns.Servers {
		before, done := turn(i)
		q.conns.Background.Fork(func() {
			<-before
			// Without the caller's context: a vote that comes late is undone by token with all others.
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*q.ReplyTimeout)
			defer cancel()
			// The turn is over with the machine's run: one that goes on without us may take the key yet.
			outcome, left := m.Commands.Advance(bounded, machine(), protocol.Reply{}, func(o driver.Outcome) { done(o.Step.Verdict) })
			if left == nil || outcome.Step.Verdict != protocol.Unsure {
				done(outcome.Step.Verdict)
			}
			ballots <- outcome
		})
	}
	var v votes
	open := len(q.conns.Servers)
	decided := func() bool {
		return open == 0 || v.yes >= q.majority() || v.no > len(q.conns.Servers)-q.majority()
	}
	for !decided() {
		select {
		case o := <-ballots:
			open--
			v.count(o, good)
		case <-ctx.Done():
			if behind != nil {
				q.conns.Background.Fork(func() {
					for !decided() {
						open--
						v.count(<-ballots, good)
					}
					behind(v)
				})
			}
			return votes{}, context.Cause(ctx)
		}
	}
	return v, nil
}

// undo removes the token from every server, also from those that seemed not to have it. Where it cannot confirm that on so
// many that they may keep others out, the observer is told.
func (q *locker) undo(k *lock) {
	var all sync.WaitGroup
	outcomes := make([]driver.Outcome, len(q.conns.Servers))
	for i := range q.conns.Servers {
		before, done := k.turn(i)
		all.Go(func() {
			<-before
			outcomes[i] = k.drop(i)
			done(outcomes[i].Step.Verdict)
		})
	}
	all.Wait()
	var causes []error
	for i, o := range outcomes {
		if !lockers.Confirmed(o.Step.Verdict) {
			k.again(i)
			causes = append(causes, o.Err)
		}
	}
	if len(causes) <= len(q.conns.Servers)-q.majority() {
		return
	}
	q.conns.Seen(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "give back", Key: k.key, Err: &lockmigrate.Error{
		Op: "acquire", Key: k.key, Kind: lockmigrate.ErrUnknownOutcome, Cause: errors.Join(causes...), Until: time.Now().Add(q.TTL),
		Note: fmt.Sprintf("%d of %d servers may hold our token", len(causes), len(q.conns.Servers)),
	}})
}

// lock is a lock that a majority of the servers gave us.
type lock struct {
	lifetime.Life
	quorum *locker
	key    string
	token  string

	order sync.Mutex
	turns []<-chan struct{} // of each server: closed when what was asked last is over
	keeps []bool            // of each server: its last release was not confirmed
	gone  bool              // a majority has given the key back
}

// turns says when to begin with a server, and what to call at the end.
type turns func(server int) (before <-chan struct{}, done func(protocol.Verdict))

// turn is the order of what changes a server. A release must not overtake an acquisition whose vote was not needed any more.
func (k *lock) turn(server int) (before <-chan struct{}, done func(protocol.Verdict)) {
	k.order.Lock()
	defer k.order.Unlock()
	before, next := k.turns[server], make(chan struct{})
	k.turns[server] = next
	return before, func(protocol.Verdict) { close(next) }
}

// release is the turn of a release.
func (k *lock) release(server int) (before <-chan struct{}, done func(protocol.Verdict)) {
	before, next := k.turn(server)
	return before, func(v protocol.Verdict) {
		next(v)
		k.order.Lock()
		k.keeps[server] = !lockers.Confirmed(v)
		gone := k.gone
		k.order.Unlock()
		if gone && !lockers.Confirmed(v) {
			k.again(server)
		}
	}
}

// drop removes the token from one server.
func (k *lock) drop(server int) driver.Outcome {
	ctx, cancel := context.WithTimeout(context.Background(), 2*k.quorum.ReplyTimeout)
	defer cancel()
	outcome, _ := k.quorum.conns.Servers[server].Commands.Advance(ctx, &protocol.ModernRelease{Key: k.key, Token: k.token}, protocol.Reply{}, func(driver.Outcome) {})
	return outcome
}

// again asks a server once more, and so on until the key's TTL is over: a minority that keeps the key makes one server less that may
// fail.
func (k *lock) again(server int) {
	k.quorum.conns.Background.Again(time.Now().Add(k.quorum.TTL), func() bool { return lockers.Confirmed(k.drop(server).Step.Verdict) })
}

// Gone implements lifetime.Kind: a majority has given the key back.
func (k *lock) Gone() {
	k.order.Lock()
	defer k.order.Unlock()
	k.gone = true
	for server, keeps := range k.keeps {
		if keeps {
			k.again(server)
		}
	}
}

// atOnce is the turn of a renewal, which changes nothing where it comes too early or too late. If each waited for the one
// before, those to a server that does not answer would pile up, and Close and the release would wait for all of them.
func atOnce(int) (before <-chan struct{}, done func(protocol.Verdict)) {
	return begun, func(protocol.Verdict) {}
}

var begun = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

var _ lifetime.Sole = (*lock)(nil)

// Key, Token, Fence and Stage are the holder's too. Renewals and releases ask all servers, and count when a majority says so.

func (k *lock) Key() string              { return k.key }
func (k *lock) Token() string            { return k.token }
func (k *lock) Fence() int64             { return 0 }
func (k *lock) Stage() lockmigrate.Stage { return lockmigrate.StageModern }

// Renew implements lifetime.Kind.
func (k *lock) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	return k.ask(ctx, func() protocol.Machine {
		return &protocol.ModernRenew{Key: k.key, Token: k.token, TTL: k.quorum.TTL}
	}, protocol.Renewed, protocol.Lost, atOnce, abandoned)
}

// Release implements lifetime.Kind.
func (k *lock) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	return k.ask(ctx, func() protocol.Machine {
		return &protocol.ModernRelease{Key: k.key, Token: k.token}
	}, protocol.Released, protocol.NotOurs, k.release, abandoned)
}

// ask polls the servers for one verdict of all of them.
func (k *lock) ask(
	ctx context.Context, machine func() protocol.Machine, good, bad protocol.Verdict, turn turns, abandoned func(driver.Outcome),
) (driver.Outcome, error) {
	q := k.quorum
	verdict := func(v votes) driver.Outcome {
		out := driver.Ended(protocol.Unsure, nil)
		switch {
		case v.yes >= q.majority():
			out.Step.Verdict = good
			return out
		case v.no > len(q.conns.Servers)-q.majority():
			out.Step.Verdict = bad
			return out
		case v.yes == 0 && v.failed == len(v.causes):
			out.Step.Verdict = protocol.Failed // it has run nowhere
		}
		out.Err = fmt.Errorf("%d of %d servers: %w", v.yes, len(q.conns.Servers), errors.Join(v.causes...))
		return out
	}
	v, cause := q.poll(ctx, machine, good, turn, func(v votes) { abandoned(verdict(v)) })
	if cause != nil {
		return driver.Ended(protocol.Unsure, cause), cause
	}
	return verdict(v), nil
}

// Explain implements lifetime.Kind.
func (k *lock) Explain(e *lockmigrate.Error) {
	if errors.Is(e.Kind, lockmigrate.ErrLost) && e.Reason == lockmigrate.ReasonTaken {
		e.Note = "a majority does not have our token any more"
	}
}

// Renewal implements lifetime.Held.
func (k *lock) Renewal() protocol.Command {
	return protocol.Command{Op: protocol.Extend, Key: k.key, Value: k.token, TTL: k.quorum.TTL}
}

// Heard implements lifetime.Held.
func (k *lock) Heard(reply protocol.Reply) lifetime.Answer { return lifetime.Extension(reply) }
