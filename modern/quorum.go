package modern

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/background"
	"github.com/lockmigrate/lockmigrate/internal/chance"
	"github.com/lockmigrate/lockmigrate/internal/critical"
	"github.com/lockmigrate/lockmigrate/internal/driver"
	"github.com/lockmigrate/lockmigrate/internal/line"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/renewal"
	"github.com/lockmigrate/lockmigrate/internal/topology"
	"github.com/lockmigrate/lockmigrate/internal/waiting"
)

// Quorum takes locks on a majority of independent servers: the algorithm called RedLock.
//
// # What it gives
//
// A lock survives the loss of a minority of the servers, with their data. An acquisition asks all of
// them at once, with one token, and counts when a majority has set the key and the time that has passed,
// the allowance for drifting clocks included, leaves something of the TTL. Everything else is undone
// everywhere, also on servers that did not answer. Renewals need a majority too.
//
// # What it does not promise
//
//   - It is no consensus. Its safety rests on time: the servers' clocks must run at nearly the same speed
//     (DriftFactor), and must not jump while keys expire. A holder that is paused past its deadline
//     still believes for a moment that it holds the lock; only fencing tokens checked by the store stop
//     its writes, and a quorum draws none: their order would need what RedLock does not have.
//   - A server that loses its keys in a crash and comes back before the TTL is over may let a second
//     holder in. Servers must persist with fsync always, or stay away for one TTL after a crash.
//   - It is not fair. Waiters poll, with random pauses; nobody is handed the lock.
//
// If the work must never run twice at the same time, use a system with consensus, or fencing tokens on
// one server. A quorum is for work that is expensive to do twice, on servers that may fail.
type Quorum struct {
	opts    QuorumOptions
	clock   renewal.Clock
	tokens  chance.Source
	single  Options // what each lock is on one server
	members []*member
	renewer *renewal.Renewer
	seen    lockmigrate.Observer

	background background.Group
	closed     atomic.Bool
}

// member is one of the servers.
type member struct {
	runner waiting.Runner
	line   line.Way
	pool   *driver.Driver
}

// QuorumOptions of a Quorum; the zero value is sensible.
type QuorumOptions struct {
	// TTL, RenewEvery, NoRenewal, MaxHold, Wait, ReplyTimeout, Token, NewToken and
	// Observer are those of Options. ReplyTimeout is zero: a tenth of TTL, at most 1 s, so that one server
	// that does not answer does not use the lease up.
	TTL          time.Duration
	RenewEvery   time.Duration
	NoRenewal    bool
	MaxHold      time.Duration
	Wait         time.Duration
	ReplyTimeout time.Duration
	Token        TokenForm
	NewToken     func() string
	Observer     lockmigrate.Observer

	// DriftFactor is how much faster one clock may run than another. It is taken off every lease, with
	// 2 ms for the servers' rounding. Zero: 0.01.
	DriftFactor float64

	// Poll is the pause between two attempts; up to half of it is taken off at random. Zero: 200 ms.
	Poll time.Duration
}

// single returns the options as those of one server, for defaults and checks.
func (o QuorumOptions) single() Options {
	s := Options{
		TTL: o.TTL, RenewEvery: o.RenewEvery, NoRenewal: o.NoRenewal, MaxHold: o.MaxHold, Wait: o.Wait,
		ReplyTimeout: o.ReplyTimeout, Token: o.Token, NewToken: o.NewToken, Poll: o.Poll, Unfair: true,
	}
	if s.ReplyTimeout == 0 {
		s.ReplyTimeout = min(time.Second, s.withDefaults().TTL/10)
	}
	if s.Poll == 0 {
		s.Poll = 200 * time.Millisecond
	}
	return s
}

// Validate tells what is wrong with the options, without changing them.
func (o QuorumOptions) Validate() error {
	err := o.single().Validate()
	if o.DriftFactor < 0 || o.DriftFactor > 0.5 {
		err = errors.Join(err, fmt.Errorf("DriftFactor %v: between 0 and 0.5", o.DriftFactor))
	}
	return err
}

// NewQuorum returns a Quorum over servers that must be independent of each other: no replicas. Three or
// five are usual; an even number tolerates no more failures than one less.
func NewQuorum(pools []lockmigrate.Pool, opts QuorumOptions) (*Quorum, error) {
	if len(pools) == 0 {
		return nil, errors.New("modern: a Quorum needs pools")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	single := opts.single().withDefaults()
	opts.TTL, opts.ReplyTimeout, opts.Poll = single.TTL, single.ReplyTimeout, single.Poll
	if opts.DriftFactor == 0 {
		opts.DriftFactor = 0.01
	}
	q := &Quorum{opts: opts, clock: renewal.NewClock(), seen: opts.Observer}
	if q.seen == nil {
		q.seen = lockmigrate.ObserverFunc(func(lockmigrate.Event) {})
	}
	var renewals []renewal.Batcher
	for i, pool := range pools {
		if pool == nil {
			return nil, fmt.Errorf("modern: pool %d of the Quorum is nil", i)
		}
		leaving := topology.Leaving(pool)
		m := &member{pool: &driver.Driver{Pool: leaving, Now: q.clock.Time, ReplyTimeout: opts.ReplyTimeout}}
		m.runner = m.pool
		var own renewal.Batcher = &renewal.Pooled{Pool: leaving, Timeout: opts.ReplyTimeout}
		servers, _ := pool.(topology.Servers)
		if dial := single.dialer(pool); dial != nil || servers != nil {
			o := line.Options{Dial: dial, Now: q.clock.Now, ReplyTimeout: opts.ReplyTimeout}
			m.line = line.Over(servers, o)
			m.runner, own = m.line, line.Over(servers, o)
		}
		q.members = append(q.members, m)
		renewals = append(renewals, own)
	}
	q.single = single
	q.renewer = renewal.New(renewal.Options{
		Now: q.clock.Now, Lines: renewals, Quorum: q.majority(), Drift: q.drift(), ReplyTimeout: single.ReplyTimeout,
	})
	return q, nil
}

func (q *Quorum) majority() int { return len(q.members)/2 + 1 }

func (q *Quorum) drift() time.Duration {
	return time.Duration(float64(q.opts.TTL)*q.opts.DriftFactor) + 2*time.Millisecond
}

// Close is as Locker.Close.
func (q *Quorum) Close() {
	if q.closed.Swap(true) {
		return
	}
	q.renewer.Close()
	q.background.Close()
	for _, m := range q.members {
		if m.line != nil {
			m.line.Close()
			m.line.Wait()
		}
		m.pool.Close()
	}
}

// TryAcquire makes one attempt on all servers at once.
func (q *Quorum) TryAcquire(ctx context.Context, key string) (*QuorumLock, error) {
	start := q.clock.Now()
	k, err := q.attempt(ctx, key)
	q.observe(k, err, start)
	return k, err
}

// Acquire tries until a majority is ours, QuorumOptions.Wait is over or ctx ends.
func (q *Quorum) Acquire(ctx context.Context, key string) (*QuorumLock, error) {
	start := q.clock.Now()
	if q.opts.Wait > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, q.opts.Wait, errWaitOver)
		defer cancel()
		ctx = bounded
	}
	for {
		k, err := q.attempt(ctx, key)
		if err == nil || !errors.Is(err, ErrNotAcquired) || ctx.Err() != nil {
			q.observe(k, err, start)
			return k, err
		}
		timer := time.NewTimer(q.opts.Poll - rand.N(q.opts.Poll/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			err = &Error{Op: "acquire", Key: key, Kind: ErrNotAcquired, Cause: context.Cause(ctx)}
			q.observe(nil, err, start)
			return nil, err
		}
	}
}

// Do is as Locker.Do.
func (q *Quorum) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	lock, err := q.Acquire(ctx, key)
	if err != nil {
		return err
	}
	return critical.Section(ctx, lock, 2*q.opts.ReplyTimeout, work)
}

func (q *Quorum) observe(k *QuorumLock, err error, start protocol.Instant) {
	e := lockmigrate.Event{Kind: lockmigrate.EventAcquired, Op: "acquire", Took: q.clock.Now().Sub(start), Err: err}
	switch {
	case err == nil:
		e.Key = k.key
	case errors.Is(err, ErrNotAcquired):
		e.Kind, e.Key = lockmigrate.EventWaited, keyOf(err)
	default:
		e.Kind, e.Key = lockmigrate.EventFailed, keyOf(err)
	}
	q.seen.Observe(e)
}

// ballot is one server's answer.
type ballot struct {
	verdict protocol.Verdict
	err     error
}

// attempt asks every server, counts, and undoes what is not a majority.
func (q *Quorum) attempt(ctx context.Context, key string) (*QuorumLock, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, &Error{Op: "acquire", Key: key, Kind: ErrNotAcquired, Cause: err}
	}
	if !q.background.Begin() {
		return nil, &Error{Op: "acquire", Key: key, Cause: errClosed}
	}
	defer q.background.End()
	k := &QuorumLock{quorum: q, key: key, token: q.newToken(), turns: make([]chan struct{}, len(q.members))}
	for i := range k.turns {
		k.turns[i] = make(chan struct{})
		close(k.turns[i])
	}
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	q.single.terms(&k.lease, (*kept)(k))
	sent := q.clock.Now()
	yes, no, causes, cause := q.poll(ctx, k, func() protocol.Machine {
		return &protocol.ModernAcquire{Key: key, Token: k.token, TTL: q.opts.TTL}
	}, func(v protocol.Verdict) bool { return v == protocol.Acquired })

	until := sent.Add(q.opts.TTL - q.drift())
	if cause == nil && yes >= q.majority() && q.clock.Now() < until {
		k.lease.Begin(q.clock.Now(), until)
		q.renewer.Add(&k.lease)
		return k, nil
	}
	// The keys that were set are removed while the caller already goes on; those that could not be asked
	// may hold the token for one TTL, as in every RedLock.
	q.background.Fork(func() { q.undo(k) })
	err := &Error{Op: "acquire", Key: key, Kind: ErrNotAcquired, Cause: cause}
	switch {
	case cause != nil:
	case yes >= q.majority():
		err.Note = "the majority came too late"
	case yes+no < q.majority():
		err.Kind, err.Cause = nil, errors.Join(causes...)
		err.Note = fmt.Sprintf("%d of %d servers answered", yes+no, len(q.members))
	default:
		err.Note = fmt.Sprintf("%d of %d servers", yes, len(q.members))
	}
	return nil, err
}

// poll runs a machine on every server and counts until the outcome cannot change any more, or ctx ends.
// On each server it comes after what was asked there for this lock before: a release must not overtake
// an acquisition whose vote was not needed any more. The caller is counted in background.
func (q *Quorum) poll(ctx context.Context, k *QuorumLock, machine func() protocol.Machine, good func(protocol.Verdict) bool) (yes, no int, causes []error, cause error) {
	ballots := make(chan ballot, len(q.members))
	for i, m := range q.members {
		before, done := k.turn(i)
		q.background.Fork(func() {
			defer close(done)
			<-before
			// Without the caller's context: a vote that comes late is undone by token with all others.
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*q.opts.ReplyTimeout)
			defer cancel()
			outcome, _ := m.runner.Advance(bounded, machine(), protocol.Reply{}, func(driver.Outcome) {})
			ballots <- ballot{outcome.Step.Verdict, outcome.Err}
		})
	}
	for range q.members {
		select {
		case b := <-ballots:
			switch {
			case good(b.verdict):
				yes++
			case b.verdict == protocol.Failed || b.verdict == protocol.Unsure:
				causes = append(causes, b.err)
			default:
				no++
			}
			if yes >= q.majority() || no > len(q.members)-q.majority() {
				return yes, no, causes, nil
			}
		case <-ctx.Done():
			return yes, no, causes, context.Cause(ctx)
		}
	}
	return yes, no, causes, nil
}

// undo removes the token from every server, also from those that seemed not to have it.
func (q *Quorum) undo(k *QuorumLock) {
	var all sync.WaitGroup
	for i, m := range q.members {
		before, done := k.turn(i)
		all.Go(func() {
			defer close(done)
			<-before
			ctx, cancel := context.WithTimeout(context.Background(), 2*q.opts.ReplyTimeout)
			defer cancel()
			_, _ = m.runner.Advance(ctx, &protocol.ModernRelease{Key: k.key, Token: k.token}, protocol.Reply{}, func(driver.Outcome) {})
		})
	}
	all.Wait()
}

func (q *Quorum) newToken() string {
	if q.opts.NewToken != nil {
		return q.opts.NewToken()
	}
	return token(&q.tokens, q.opts.Token)
}

// QuorumLock is a lock that a majority of the servers gave us.
type QuorumLock struct {
	lease  renewal.Lease
	quorum *Quorum
	key    string
	token  string
	ctx    context.Context
	cancel context.CancelCauseFunc
	over   atomic.Bool // the context has its cause

	mu       sync.Mutex // one release at a time
	released bool

	order sync.Mutex
	turns []chan struct{} // of each server: closed when what was asked last is over
}

// turn returns when to begin with a server, and what to close at the end.
func (k *QuorumLock) turn(server int) (before <-chan struct{}, done chan struct{}) {
	k.order.Lock()
	defer k.order.Unlock()
	before, done = k.turns[server], make(chan struct{})
	k.turns[server] = done
	return before, done
}

// Key returns the lock's key.
func (k *QuorumLock) Key() string { return k.key }

// Token returns the value on the key, the same on every server.
func (k *QuorumLock) Token() string { return k.token }

// Expiry is as Lock.Expiry: TTL - elapsed - drift.
func (k *QuorumLock) Expiry() time.Time {
	return time.Now().Add(k.lease.Until().Sub(k.quorum.clock.Now()))
}

// Context is as Lock.Context.
func (k *QuorumLock) Context() context.Context { return k.ctx }

// Renew extends the lease on a majority. ErrLost means that a majority does not have our token any more;
// after any other error the lock is held as before, until its Expiry.
func (k *QuorumLock) Renew(ctx context.Context) error {
	if cause := context.Cause(k.ctx); cause != nil {
		return cause
	}
	q := k.quorum
	if !q.background.Begin() {
		return k.fail("renew", nil, errClosed)
	}
	defer q.background.End()
	sent := q.clock.Now()
	yes, no, causes, cause := q.poll(ctx, k, func() protocol.Machine {
		return &protocol.ModernRenew{Key: k.key, Token: k.token, TTL: q.opts.TTL}
	}, func(v protocol.Verdict) bool { return v == protocol.Renewed })
	switch {
	case cause != nil:
		return k.fail("renew", ErrUnknownOutcome, cause)
	case yes >= q.majority():
		q.renewer.Extend(&k.lease, sent.Add(q.opts.TTL-q.drift()))
		return nil
	case no > len(q.members)-q.majority():
		q.renewer.Remove(&k.lease)
		k.lost(nil, "a majority does not have our token any more")
		return context.Cause(k.ctx)
	default:
		err := k.fail("renew", nil, errors.Join(causes...))
		err.Note = fmt.Sprintf("%d of %d servers", yes, len(q.members))
		return err
	}
}

// Release removes our token from every server. ErrLost means that a majority did not have it any more;
// ErrUnknownOutcome that too few answered: the key may stay taken until the time that the error tells.
func (k *QuorumLock) Release(ctx context.Context) error {
	q := k.quorum
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.released {
		if cause := context.Cause(k.ctx); cause != nil {
			return cause
		}
	}
	q.renewer.Remove(&k.lease)
	if !q.background.Begin() {
		return k.fail("release", nil, errClosed)
	}
	defer q.background.End()
	held := q.clock.Now().Sub(k.lease.Began)
	yes, no, causes, cause := q.poll(ctx, k, func() protocol.Machine {
		return &protocol.ModernRelease{Key: k.key, Token: k.token}
	}, func(v protocol.Verdict) bool { return v == protocol.Released })
	if lost := context.Cause(k.ctx); errors.Is(lost, ErrLost) {
		k.released = true
		return lost
	}
	switch {
	case yes >= q.majority():
		k.released = true
		if k.over.Swap(true) {
			return context.Cause(k.ctx)
		}
		k.cancel(k.fail("release", ErrReleased, nil))
		q.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventReleased, Op: "release", Key: k.key, Held: held})
		return nil
	case cause == nil && no > len(q.members)-q.majority():
		k.released = true
		k.lost(nil, "a majority did not have our token any more when it was released")
		return context.Cause(k.ctx)
	}
	err := k.fail("release", ErrUnknownOutcome, cause)
	if cause == nil {
		err.Cause = errors.Join(causes...)
	}
	err.Until = k.Expiry()
	err.Note = fmt.Sprintf("%d of %d servers confirmed", yes, len(q.members))
	q.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "release", Key: k.key, Held: held, Err: err})
	return err
}

// kept is the renewer's side of the lock.
type kept QuorumLock

// Renewal implements renewal.Held.
func (k *kept) Renewal() protocol.Command {
	return protocol.Command{Op: protocol.Extend, Key: k.key, Value: k.token, TTL: k.quorum.opts.TTL}
}

// Heard implements renewal.Held.
func (k *kept) Heard(reply protocol.Reply) renewal.Answer { return heard(reply) }

// Renewed implements renewal.Held.
func (k *kept) Renewed(took time.Duration) {
	k.quorum.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventRenewed, Op: "renew", Key: k.key, Took: took})
}

// RenewalFailed implements renewal.Held.
func (k *kept) RenewalFailed(cause error) {
	err := (*QuorumLock)(k).fail("renew", nil, cause)
	err.Note = "no majority; tried again before the deadline"
	k.quorum.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "renew", Key: k.key, Err: err})
}

// Lost implements renewal.Held.
func (k *kept) Lost(why renewal.Loss) { (*QuorumLock)(k).lost(nil, why.String()) }

func (k *QuorumLock) lost(cause error, note string) {
	err := k.fail("hold", ErrLost, cause)
	err.Note = note
	if k.over.Swap(true) {
		return
	}
	k.cancel(err)
	k.quorum.seen.Observe(lockmigrate.Event{
		Kind: lockmigrate.EventLost, Op: "hold", Key: k.key, Held: k.quorum.clock.Now().Sub(k.lease.Began), Err: err, Note: note,
	})
}

func (k *QuorumLock) fail(op string, kind, cause error) *Error {
	return &Error{Op: op, Key: k.key, Kind: kind, Cause: cause}
}
