package legacy

import (
	"context"
	"errors"
	"sync"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// lock is a lock that we hold, or held.
type lock struct {
	lifetime.Life
	locker *locker
	key    string
	owner  string

	waited bool // before it was acquired

	mu sync.Mutex
	// What stands on the key. After a renewal without an answer it is the value or the pending one.
	value, pending             string
	valueExpiry, pendingExpiry protocol.Instant // on the Locker's clock
}

// newLock prepares the lease. began is a monotonic reading from before the clock was read for the value,
// so the local deadline is never later than the lease.
func newLock(ctx context.Context, l *locker, m *protocol.LegacyAcquire, began protocol.Instant) *lock {
	k := &lock{locker: l, key: m.Key, owner: m.Owner, value: m.Value(), valueExpiry: m.Expiry()}
	k.Init(&l.lives, k, ctx)
	s := &k.Lease
	s.Owner, s.Span = k, l.opts.Lease
	// The earlier of two readings: the full lease counted from before the attempt on the monotonic
	// clock, and what the Locker's clock has left of the written expiry.
	left := m.Expiry().Time().Sub(l.now())
	s.Begin(began, min(began.Add(l.opts.Lease), l.mono.Now().Add(left)))
	return k
}

var _ lifetime.Sole = (*lock)(nil)

// Key, Token, Fence and Stage are the holder's too.

func (k *lock) Key() string              { return k.key }
func (k *lock) Fence() int64             { return 0 }
func (k *lock) Stage() lockmigrate.Stage { return lockmigrate.StageLegacy }

func (k *lock) Token() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.value
}

// Renew implements lifetime.Kind.
func (k *lock) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l := k.locker
	if err := l.sync(ctx); err != nil {
		failed := driver.Ended(protocol.Failed, err)
		return failed, context.Cause(ctx) // no failure of the lock's where it is the caller's
	}
	k.mu.Lock()
	m := &protocol.LegacyRenew{
		Dialect: l.rules, Key: k.key, Owner: k.owner, Lease: l.opts.Lease,
		Value: k.value, ValueExpiry: k.valueExpiry, Pending: k.pending, PendingExpiry: k.pendingExpiry,
	}
	k.mu.Unlock()
	outcome, err := l.driver.Advance(ctx, m, protocol.Reply{}, func(o driver.Outcome) {
		k.keep(m)
		abandoned(o)
	})
	if err == nil {
		k.keep(m)
	}
	return outcome, err
}

// keep takes over what a renewal that is over has left on the key.
func (k *lock) keep(m *protocol.LegacyRenew) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.value, k.valueExpiry, k.pending, k.pendingExpiry = m.Value, m.ValueExpiry, m.Pending, m.PendingExpiry
}

// Release implements lifetime.Kind.
func (k *lock) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l, rules := k.locker, k.locker.rules
	var lost *lockmigrate.Error
	if errors.As(k.Over(), &lost) && lost.Reason == lockmigrate.ReasonTaken { // a DEL would be a successor's
		return driver.Ended(protocol.NotOurs, nil), nil
	}
	again := k.Unconfirmed()
	k.mu.Lock()
	m := &protocol.LegacyRelease{
		Dialect: rules, Key: k.key, Policy: l.opts.Release.rule(rules),
		Value: k.value, Pending: k.pending, Expiry: k.valueExpiry, Again: again,
	}
	k.mu.Unlock()
	never := m.Policy == protocol.ReleaseNever
	outcome, err := l.driver.Advance(ctx, m, protocol.Reply{}, abandoned)
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

// Renewal implements lifetime.Held; nothing renews a legacy lock by itself.
func (k *lock) Renewal() protocol.Command { return protocol.Command{} }

// Heard implements lifetime.Held.
func (k *lock) Heard(protocol.Reply) lifetime.Answer { return lifetime.Unclear }
