package legacy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// locker is the lockmigrate.Locker of one fleet's keys.
type locker struct {
	*lockers.Client
	opts  Options
	rules *protocol.Dialect
	now   func() time.Time                // of every value written and judged
	sync  func(ctx context.Context) error // corrects that clock
}

// New returns a Locker over a pool of connections to the fleet's server. It sends nothing yet. TryAcquire sends at most SETNX, GET
// and GETSET.
func New(pool lockmigrate.Pool, opts Options) (lockmigrate.Locker, error) {
	if err := errors.Join(lockers.CheckPool(pool), opts.validate()); err != nil {
		return nil, fmt.Errorf("legacy: %w", err)
	}
	opts = opts.withDefaults()
	l := &locker{opts: opts, now: time.Now, sync: func(context.Context) error { return nil }}
	l.rules, _ = opts.Dialect.rules()
	l.Client = lockers.Connect(lockers.Options{Package: "legacy", TTL: opts.Lease, ReplyTimeout: opts.ReplyTimeout, Observer: opts.Observer}, pool)
	if opts.FollowServer {
		server := lockers.NewServerClock(l.Servers[0].Pool, opts.ReplyTimeout)
		l.now, l.sync = server.Now, server.Sync
	}
	return l, nil
}

// settled runs a machine by the Locker's clock, and then settles.
func (l *locker) settled(ctx context.Context, m protocol.Machine, abandoned func(driver.Outcome), settle func()) (driver.Outcome, error) {
	return lockers.Settled(ctx, l.Servers[0].Runner(l.rules), lockers.OnClock(m, l.now), abandoned, func(driver.Outcome) { settle() })
}

// RaiseFence implements lockers.Half: the old lock draws no tokens.
func (l *locker) RaiseFence(context.Context, string, int64) (int64, error) { return 0, nil }

// TryAcquire implements lockmigrate.Locker.
func (l *locker) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	return l.observed(ctx, key, 0)
}

// Acquire implements lockmigrate.Locker.
func (l *locker) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	patience := l.opts.Wait
	if patience == 0 || ctx == nil {
		return l.observed(ctx, key, math.MaxInt64)
	}
	// A server that does not answer must not make it longer: the old code's count of sleeps ends it in any other case.
	bounded, cancel := context.WithTimeoutCause(ctx, patience+l.opts.Poll, lifetime.ErrWaitOver)
	defer cancel()
	return l.observed(bounded, key, patience)
}

// Do implements lockmigrate.Locker.
func (l *locker) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return lifetime.Do(ctx, key, l.Acquire, l.opts.ReplyTimeout, work)
}

// observed acquires and tells the observer what came of it.
func (l *locker) observed(ctx context.Context, key string, patience time.Duration) (lockmigrate.Lock, error) {
	if err := lockers.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	start := l.Clock.Now()
	lock, err := l.acquire(ctx, key, patience)
	if err != nil {
		l.Concluded(lockmigrate.Event{Key: key, Err: err}, start)
		return nil, err
	}
	lock.Watched(func() { l.Concluded(lockmigrate.Event{Key: key, How: lockers.How(lock.waited, false)}, start) })
	return lock.AsLock(), nil
}

func (l *locker) acquire(ctx context.Context, key string, patience time.Duration) (*lock, error) {
	if err := l.sync(ctx); err != nil {
		return nil, &lockmigrate.Error{Op: "acquire", Key: key, Kind: l.cancelled(ctx), Cause: err}
	}
	machine := &protocol.LegacyAcquire{
		Dialect: l.rules, Key: key, Owner: lockers.UUID(),
		Lease: l.opts.Lease, Poll: l.opts.Poll, Patience: patience,
	}
	start := time.Now()
	reply, seen := protocol.Reply{}, obstacle{}
	for {
		if !l.Background.Begin() {
			return nil, &lockmigrate.Error{Op: "acquire", Key: key, Cause: lifetime.ErrClosed}
		}
		attempt := l.Clock.Now()
		outcome, err := l.ask(ctx, machine, reply)
		if err != nil {
			return nil, l.notAcquired(key, seen, err) // the machine may still run: hands off
		}
		seen.value, seen.foreign = machine.Seen()
		if outcome.Step.Kind == protocol.Done {
			lock, err := l.concluded(ctx, machine, outcome, attempt)
			if lock != nil {
				lock.waited = reply.Kind == protocol.Woke
			}
			return lock, err
		}
		if time.Since(start) >= patience {
			return nil, l.notAcquired(key, seen, nil)
		}
		if err := l.sleep(ctx, outcome.Step.Sleep); err != nil {
			return nil, l.notAcquired(key, seen, err)
		}
		reply = protocol.Reply{Kind: protocol.Woke}
	}
}

// ask makes one attempt, which is counted in background. Of what arrives after its caller has left nothing stays.
func (l *locker) ask(ctx context.Context, m *protocol.LegacyAcquire, reply protocol.Reply) (driver.Outcome, error) {
	defer l.Background.End()
	return l.Ask(ctx, l.Servers[0].Runner(l.rules), lockers.OnClock(m, l.now), reply, func(o driver.Outcome) {
		defer l.Background.End()
		l.giveBack(m, o)
	})
}

// obstacle is what an attempt found on the key.
type obstacle struct {
	value   string
	foreign bool
}

// concluded turns a machine's verdict into a lock or an error.
func (l *locker) concluded(ctx context.Context, m *protocol.LegacyAcquire, o driver.Outcome, attempt protocol.Instant) (*lock, error) {
	switch o.Step.Verdict {
	case protocol.Acquired:
		if took := l.Clock.Now().Sub(attempt); took >= l.opts.Lease {
			l.giveBack(m, o)
			return nil, &lockmigrate.Error{
				Op: "acquire", Key: m.Key, Kind: lockmigrate.ErrLost, Reason: lockmigrate.ReasonDeadline,
				Note: fmt.Sprintf("the reply took %v, longer than the lease", took),
			}
		}
		if l.Closed() {
			l.giveBack(m, o)
			return nil, &lockmigrate.Error{Op: "acquire", Key: m.Key, Cause: lifetime.ErrClosed}
		}
		return newLock(ctx, l, m, attempt), nil
	case protocol.Unsure:
		return nil, &lockmigrate.Error{
			Op: "acquire", Key: m.Key, Kind: lockmigrate.ErrUnknownOutcome, Cause: o.Err, Until: m.Expiry().Time(),
			Note: "the value on the key may be ours or that of a client with the same expiry",
		}
	case protocol.Failed:
		return nil, &lockmigrate.Error{Op: "acquire", Key: m.Key, Kind: l.cancelled(ctx), Cause: o.Err}
	default:
		value, foreign := m.Seen()
		return nil, l.notAcquired(m.Key, obstacle{value, foreign}, nil)
	}
}

// notAcquired says that another holds the key, or that what is on it is not of our dialect; cause is
// set when the wait was cancelled.
func (l *locker) notAcquired(key string, seen obstacle, cause error) error {
	if errors.Is(cause, lifetime.ErrWaitOver) { // as when the sleeps end it
		cause = nil
	}
	foreign := &lockmigrate.Error{
		Op: "acquire", Key: key, Kind: lockmigrate.ErrForeignFormat, Value: seen.value,
		Note: "dialect " + l.rules.Name + " cannot read it and never takes it over",
	}
	switch {
	case seen.foreign && cause == nil:
		return foreign
	case seen.foreign:
		cause = errors.Join(cause, foreign)
	}
	return &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: cause}
}

// cancelled is lockmigrate.ErrNotAcquired when a failure comes from the caller's own context.
func (l *locker) cancelled(ctx context.Context) error {
	if ctx.Err() != nil {
		return lockmigrate.ErrNotAcquired
	}
	return nil
}

// giveBack undoes an acquisition that arrived after its caller had left. Where the key cannot prove
// whose the value is, the lease has to run out.
func (l *locker) giveBack(m *protocol.LegacyAcquire, o driver.Outcome) {
	if o.Step.Kind == protocol.Done {
		l.GiveBackOld(m, o, l.now, time.Now().Add(l.opts.Lease), func() {})
	}
}

func (l *locker) sleep(ctx context.Context, d time.Duration) error {
	if l.opts.Jitter > 0 {
		d += rand.N(l.opts.Jitter)
	}
	return lifetime.Sleep(ctx, d)
}
