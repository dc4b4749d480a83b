package legacy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/renewal"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Lock is a lock that we hold, or held.
type Lock struct {
	life   lifetime.Life
	locker *Locker
	key    string
	owner  string

	mu sync.Mutex
	// What stands on the key. After a renewal without an answer it is the value or the pending one.
	value, pending             string
	valueExpiry, pendingExpiry protocol.Instant // on the Locker's clock
}

var _ lockmigrate.Held = (*Lock)(nil)

// newLock prepares the lease. began is a monotonic reading from before the clock was read for the value,
// so the local deadline is never later than the lease.
func newLock(ctx context.Context, l *Locker, m *protocol.LegacyAcquire, began protocol.Instant) *Lock {
	k := &Lock{locker: l, key: m.Key, owner: m.Owner, value: m.Value(), valueExpiry: m.Expiry()}
	k.life.Init(&l.lives, (*kept)(k), ctx)
	s := &k.life.Lease
	s.Owner, s.Span = (*kept)(k), l.opts.Lease
	// The earlier of two readings: the full lease counted from before the attempt on the monotonic
	// clock, and what the Locker's clock has left of the written expiry.
	left := m.Expiry().Time().Sub(l.now())
	s.Begin(began, min(began.Add(l.opts.Lease), l.mono.Now().Add(left)))
	return k
}

// Key returns the lock's key.
func (k *Lock) Key() string { return k.key }

// Token returns what we wrote on the key: the value that was confirmed last.
func (k *Lock) Token() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.value
}

// Fence returns 0: the old scheme has no fencing tokens.
func (k *Lock) Fence() int64 { return 0 }

// Expiry returns until when the lock is certainly ours if it is not renewed any more. It is a deadline of this process's monotonic
// clock: at most one of the dialect's units before the expiry on the key.
func (k *Lock) Expiry() time.Time { return k.life.Expiry() }

// Context returns a context with the values of the one that acquired the lock. It ends with the lease or when the lock turns out
// to be lost: its cause matches ErrLost. At a release it ends with ErrReleased. A release that failed changes nothing about that.
func (k *Lock) Context() context.Context { return k.life.Context() }

// Renew moves the lease to a full Options.Lease from now, if the key still holds our value. ErrLost means that it does not:
// another has taken the lock over, or a stale DEL has removed it. It also means that the reply came after Expiry. After any other
// error the lock is held as before, until its Expiry.
func (k *Lock) Renew(ctx context.Context) error { return k.life.Renew(ctx) }

// Release gives the lock back as Options.Release says. ErrLost means that the lock was lost before: the lease was over or the key
// not ours any more. After another error the Locker tries again in the background until Expiry, with pauses of 50 ms to 1 s; it
// may be called again too, and the first call after the lock was given back returns nil. Where an earlier DEL may have run, the
// next one is sent only while the key holds our value. What cannot be released ends with the lease, and so does the holder's
// context.
//
// When ctx ends before the reply, or has ended before, the release goes on in the background.
func (k *Lock) Release(ctx context.Context) error { return k.life.Release(ctx) }

// kept is what the life of a lock and the watch over its deadline see of a Lock.
type kept Lock

// Key implements lifetime.Kind.
func (k *kept) Key() string { return k.key }

// Acquired implements lifetime.Kind; a lock is made only when it is acquired.
func (k *kept) Acquired(driver.Outcome) {}

// Renew implements lifetime.Kind.
func (k *kept) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
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
func (k *kept) keep(m *protocol.LegacyRenew) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.value, k.valueExpiry, k.pending, k.pendingExpiry = m.Value, m.ValueExpiry, m.Pending, m.PendingExpiry
}

// Release implements lifetime.Kind.
func (k *kept) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l, rules := k.locker, k.locker.rules
	var lost *Error
	if errors.As(k.life.Over(), &lost) && lost.Reason == lockmigrate.ReasonTaken { // a DEL would be a successor's
		return driver.Ended(protocol.NotOurs, nil), nil
	}
	again := k.life.Unconfirmed()
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
func (k *kept) Explain(e *Error) {
	if errors.Is(e.Kind, ErrLost) && e.Op == "release" {
		e.Note = "the lease was over, or the key was not ours any more; nothing was deleted"
	}
}

// Ended implements lifetime.Kind.
func (k *kept) Ended(*Error) {}

// Gone implements lifetime.Kind.
func (k *kept) Gone() {}

// Renewal implements renewal.Held; nothing renews a legacy lock by itself.
func (k *kept) Renewal() protocol.Command { return protocol.Command{} }

// Heard implements renewal.Held.
func (k *kept) Heard(protocol.Reply) renewal.Answer { return renewal.Unclear }

// Renewed implements renewal.Held.
func (k *kept) Renewed(took time.Duration) { k.life.Renewed(took) }

// RenewalFailed implements renewal.Held.
func (k *kept) RenewalFailed(cause error) { k.life.RenewalFailed(cause) }

// Lost implements renewal.Held.
func (k *kept) Lost(why renewal.Loss) { k.life.Lost(why) }
