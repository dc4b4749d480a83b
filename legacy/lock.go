package legacy

import (
	"context"
	"errors"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// lock is a lock that we hold, or held.
type lock struct {
	lifetime.Life
	locker *locker
	key    string
	old    *lockers.Old // its times are of the Locker's clock
	waited bool         // before it was acquired
}

// newLock prepares the lease. began is a monotonic reading from before the clock was read for the value,
// so the local deadline is never later than the lease.
func newLock(ctx context.Context, l *locker, m *protocol.LegacyAcquire, began protocol.Instant) *lock {
	k := &lock{locker: l, key: m.Key, old: lockers.NewOld(m)}
	k.Init(&l.Lives, k, ctx)
	s := &k.Lease
	s.Owner, s.Span = k, l.opts.Lease
	// The earlier of two readings: the full lease counted from before the attempt on the monotonic
	// clock, and what the Locker's clock has left of the written expiry.
	left := m.Expiry().Time().Sub(l.now())
	s.Begin(began, min(began.Add(l.opts.Lease), l.Clock.Now().Add(left)))
	return k
}

var _ lifetime.Sole = (*lock)(nil)

// Key, Token, Fence and Stage are the holder's too.

func (k *lock) Key() string              { return k.key }
func (k *lock) Token() string            { return k.old.Value() }
func (k *lock) Fence() int64             { return 0 }
func (k *lock) Stage() lockmigrate.Stage { return lockmigrate.StageLegacy }

// Renew implements lifetime.Kind.
func (k *lock) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l := k.locker
	if err := l.sync(ctx); err != nil {
		failed := driver.Ended(protocol.Failed, err)
		return failed, context.Cause(ctx) // no failure of the lock's where it is the caller's
	}
	m := k.old.Renewal(0)
	return l.settled(ctx, m, abandoned, func() { k.old.Renewed(m) })
}

// Release implements lifetime.Kind.
func (k *lock) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l, rules := k.locker, k.locker.rules
	var lost *lockmigrate.Error
	if errors.As(k.Over(), &lost) && lost.Reason == lockmigrate.ReasonTaken { // a DEL would be a successor's
		return driver.Ended(protocol.NotOurs, nil), nil
	}
	m := k.old.Release(l.opts.Release.rule(rules), k.Unconfirmed())
	never := m.Policy == protocol.ReleaseNever
	outcome, err := l.settled(ctx, m, abandoned, func() { k.old.Released(m) })
	if never && outcome.Step.Verdict == protocol.NotOurs { // the dialect lets its keys run out
		outcome.Step.Verdict = protocol.Released
	}
	return outcome, err
}

// Explain implements lifetime.Kind.
func (k *lock) Explain(e *lockmigrate.Error) {
	if errors.Is(e.Kind, lockmigrate.ErrLost) && e.Op == "release" {
		e.Note = "the lease was over, or the key was not ours any more; nothing was deleted"
	}
}
