package legacy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Lock is a lock that we hold, or held.
type Lock struct {
	locker *Locker
	key    string
	owner  string
	ctx    context.Context
	cancel context.CancelCauseFunc
	began  time.Time

	over   sync.Once
	mu     sync.Mutex // held through Renew and Release, so that they do not cross
	value  string
	expiry time.Time
	timer  *time.Timer
	ended  bool
}

// newLock starts the lease. began is a monotonic reading from before the clock was read for the value,
// so the local deadline is never later than the lease.
func newLock(ctx context.Context, l *Locker, m *protocol.LegacyAcquire, began time.Time) *Lock {
	k := &Lock{locker: l, key: m.Key, owner: m.Owner, began: began, value: m.Value(), expiry: m.Expiry().Time()}
	// The holder's context keeps the caller's values; its end is the lease's, not that of the wait.
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	// The earlier of two readings: the full lease counted from before the attempt on the monotonic
	// clock, and what the Locker's clock has left of the written expiry.
	left := min(time.Until(began.Add(l.opts.Lease)), k.expiry.Sub(l.opts.Clock.Now()))
	k.timer = time.AfterFunc(left, k.leaseEnded)
	return k
}

// Key returns the lock's key.
func (k *Lock) Key() string { return k.key }

// Value returns what we wrote on the key last.
func (k *Lock) Value() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.value
}

// Expiry returns the end of the lease on the Locker's clock.
func (k *Lock) Expiry() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.expiry
}

// Context returns a context with the values of the one that acquired the lock. It ends when the lease
// does or when the lock turns out to be lost, with a cause that matches ErrLost, or when the lock is
// released, with ErrReleased.
func (k *Lock) Context() context.Context { return k.ctx }

// Renew moves the lease to a full Options.Lease from now, if the key still holds our value. ErrLost
// means that it does not: another has taken the lock over, or a stale DEL has removed it. After any
// other error the lock is held as before, until its Expiry.
func (k *Lock) Renew(ctx context.Context) error {
	if err := k.locker.syncClock(ctx); err != nil {
		return k.fail("renew", nil, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if cause := context.Cause(k.ctx); cause != nil {
		return cause
	}
	machine := &protocol.LegacyRenew{
		Dialect: k.locker.opts.Dialect.Rules(), Key: k.key, Owner: k.owner, Lease: k.locker.opts.Lease, Value: k.value,
	}
	began := time.Now()
	outcome, err := k.locker.driver.Advance(ctx, machine, protocol.Reply{}, func(driver.Outcome) {})
	if err != nil {
		outcome.Err = err
	}
	switch outcome.Step.Verdict {
	case protocol.Renewed:
		k.value, k.expiry = machine.Written(), machine.Expiry().Time()
		k.timer.Reset(time.Until(began.Add(k.locker.opts.Lease)))
		k.observe(lockmigrate.EventRenewed, "renew", time.Since(began), nil)
		return context.Cause(k.ctx) // the old lease may have ended meanwhile, and the holder been told
	case protocol.Lost:
		lost := k.fail("renew", ErrLost, nil)
		k.end(lost)
		return lost
	case protocol.Failed:
		err = k.fail("renew", nil, outcome.Err)
	default:
		err = k.unsureRenewal(outcome.Err)
	}
	k.observe(lockmigrate.EventFailed, "renew", time.Since(began), err)
	return err
}

// Release gives the lock back as Options.Release says. ErrLost means that the lease was over or the key
// not ours any more, and that nothing was deleted. After another error the release may be tried again;
// what cannot be released ends with the lease.
func (k *Lock) Release(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		if cause := context.Cause(k.ctx); cause != nil {
			return cause
		}
	}
	rules := k.locker.opts.Dialect.Rules()
	machine := &protocol.LegacyRelease{
		Dialect: rules, Key: k.key, Policy: k.locker.opts.Release.rule(rules),
		Value: k.value, Expiry: protocol.InstantOf(k.expiry),
	}
	outcome, err := k.locker.driver.Advance(ctx, machine, protocol.Reply{}, func(driver.Outcome) {})
	if err != nil {
		outcome.Err = err
	}
	switch outcome.Step.Verdict {
	case protocol.Released:
		k.end(k.fail("release", ErrReleased, nil))
		return nil
	case protocol.Kept:
		if machine.Policy == protocol.ReleaseNever {
			k.end(k.fail("release", ErrReleased, nil))
			return nil
		}
		lost := k.fail("release", ErrLost, nil)
		k.end(lost)
		return lost
	case protocol.Failed:
		err = k.fail("release", nil, outcome.Err)
	default:
		err = k.fail("release", ErrUnknownOutcome, outcome.Err)
	}
	k.observe(lockmigrate.EventFailed, "release", 0, err)
	return err
}

// leaseEnded is the timer's: the lease is over and nobody has renewed or released.
func (k *Lock) leaseEnded() {
	lost := k.fail("hold", ErrLost, nil)
	lost.Note = fmt.Sprintf("the lease of %v is over", k.locker.opts.Lease)
	k.conclude(lost)
}

// unsureRenewal keeps the old lease: the key holds the old value or the new one, and both are ours.
func (k *Lock) unsureRenewal(cause error) error {
	return &Error{Op: "renew", Key: k.key, Kind: ErrUnknownOutcome, Cause: cause, Note: "held until the old expiry"}
}

func (k *Lock) end(cause error) {
	k.ended = true
	k.timer.Stop()
	k.conclude(cause)
}

// conclude ends the holder's context and tells the observer how the hold ended; only the first call counts.
func (k *Lock) conclude(cause error) {
	k.over.Do(func() {
		k.cancel(cause)
		kind, op := lockmigrate.EventReleased, "release"
		if errors.Is(cause, ErrLost) {
			kind, op = lockmigrate.EventLost, "hold"
		} else {
			cause = nil
		}
		k.observe(kind, op, 0, cause)
	})
}

func (k *Lock) observe(kind lockmigrate.EventKind, op string, took time.Duration, err error) {
	k.locker.opts.Observer.Observe(lockmigrate.Event{Kind: kind, Op: op, Key: k.key, Took: took, Held: time.Since(k.began), Err: err})
}

func (k *Lock) fail(op string, kind, cause error) *Error {
	return &Error{Op: op, Key: k.key, Kind: kind, Cause: cause}
}
