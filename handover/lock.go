package handover

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
)

// lock is both halves, or one of them, as the stage was when it was taken.
type lock struct {
	locker *locker
	permit permit
	key    string
	newKey string
	old    lockmigrate.Lock // nil at stage new
	new    lockmigrate.Lock // nil at stage old
	fence  int64
	values context.Context // what the holder's context has of the caller's
	since  time.Time

	giving chan struct{} // has room for the one who releases
	unsure atomic.Bool   // Release has said that it is not known to be released

	mu     sync.Mutex
	lease  *time.Timer
	unsee  []func() bool
	ctx    context.Context // the holder's, made for the first who asks
	cancel context.CancelCauseFunc
	ended  error // why the holder's context has ended; nil while it has not
	given  bool  // nothing of it is held any more
}

// first is the half whose token and stage stand for the lock.
func (k *lock) first() lockmigrate.Lock {
	if k.new != nil {
		return k.new
	}
	return k.old
}

func (k *lock) Key() string              { return k.key }
func (k *lock) Token() string            { return k.first().Token() }
func (k *lock) Fence() int64             { return k.fence }
func (k *lock) Stage() lockmigrate.Stage { return k.permit.Stage }

// Context is made for the first who asks: an acquisition that is released soon is cheaper without.
func (k *lock) Context() context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx == nil {
		k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(k.values))
		if k.ended != nil {
			k.cancel(k.ended)
		}
	}
	return k.ctx
}

// Expiry is the earliest of the halves' and of the member's lease.
func (k *lock) Expiry() time.Time {
	at := k.locker.gate.Lasts()
	for _, half := range []lockmigrate.Lock{k.old, k.new} {
		if half != nil && half.Expiry().Before(at) {
			at = half.Expiry()
		}
	}
	return at
}

// begin watches the halves and the member's lease: from here on the holder is told.
func (k *lock) begin(values context.Context) {
	l := k.locker
	k.values, k.since = values, time.Now()
	k.permit.Acquired()
	l.mu.Lock()
	l.held[k] = true
	l.mu.Unlock()
	k.mu.Lock()
	k.lease = time.AfterFunc(time.Until(l.gate.Lasts()), k.leaseOver)
	k.mu.Unlock()
	for _, half := range [...]lockmigrate.Lock{k.old, k.new} {
		if half == nil {
			continue
		}
		if unsee := whenLost(half, k.halfEnded); unsee != nil {
			k.mu.Lock()
			k.unsee = append(k.unsee, unsee)
			k.mu.Unlock()
		}
	}
}

// whenLost has f called when a half is lost, or was. Call unsee, unless it is nil, when nobody wants to know any more.
func whenLost(half lockmigrate.Lock, f func(cause error)) (unsee func() bool) {
	if ours, ok := half.(interface{ WhenLost(func(error)) }); ok {
		ours.WhenLost(f)
		return nil
	}
	return context.AfterFunc(half.Context(), func() { f(context.Cause(half.Context())) })
}

// leaseOver is called when the member's lease was going to end when the lock was looked at last. Reports may have come through since.
func (k *lock) leaseOver() {
	if left := time.Until(k.locker.gate.Lasts()); left > 0 {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.ended == nil {
			k.lease.Reset(left)
		}
		return
	}
	k.lose(lockmigrate.ReasonDeadline, errors.New("this member could not report, and its lease is over"))
}

func (k *lock) halfEnded(cause error) {
	if errors.Is(cause, lockmigrate.ErrReleased) {
		return
	}
	reason := lockmigrate.ReasonDeadline
	var e *lockmigrate.Error
	if errors.As(cause, &e) && e.Reason != "" {
		reason = e.Reason
	}
	k.lose(reason, cause)
}

// lose tells the holder. The other half is kept for as long as its lease stood then, since the holder may still be at work.
func (k *lock) lose(reason lockmigrate.Reason, cause error) {
	over := k.Expiry()
	lost := &lockmigrate.Error{Op: "hold", Key: k.key, Kind: lockmigrate.ErrLost, Reason: reason, Cause: cause}
	if !k.end(lost) {
		return
	}
	k.locker.seen(lockmigrate.Event{Kind: lockmigrate.EventLost, Op: "hold", Key: k.key, Held: time.Since(k.since), Err: lost})
	k.locker.background.Fork(func() {
		_ = lifetime.Sleep(k.locker.life, time.Until(over))
		_ = k.releaseHalves(context.Background())
	})
}

// end ends the holder's context, once.
func (k *lock) end(why error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended != nil || k.lease == nil { // it never began
		return false
	}
	k.ended = why
	k.lease.Stop()
	for _, stop := range k.unsee {
		stop()
	}
	if k.cancel != nil {
		k.cancel(why)
	}
	return true
}

func (k *lock) over() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ended
}

// Renew extends the leases of the halves.
func (k *lock) Renew(ctx context.Context) error {
	for _, half := range []lockmigrate.Lock{k.old, k.new} {
		if half != nil && k.over() == nil {
			if err := half.Renew(ctx); err != nil {
				return err
			}
		}
	}
	return k.over()
}

// Release gives New back, then Old. A half that cannot be given back now is tried again by its own Locker.
func (k *lock) Release(ctx context.Context) error {
	if ctx == nil {
		return &lockmigrate.Error{Op: "release", Key: k.key, Cause: lifetime.ErrNoContext}
	}
	if k.locker.background.Begin() { // Close waits for it
		defer k.locker.background.End()
	}
	returned := false
	defer func() {
		if !returned { // a half's observer panicked
			k.giveBack()
		}
	}()
	err := k.releaseHalves(ctx)
	returned = true
	if unsure := k.unsure.Swap(false); err == nil && (k.tellReleased() || unsure && errors.Is(k.over(), lockmigrate.ErrReleased)) {
		return nil
	}
	var lost *lockmigrate.Error
	if why := k.over(); errors.As(why, &lost) && errors.Is(lost.Kind, lockmigrate.ErrLost) {
		told := *lost
		told.Op = "release"
		return &told
	} else if why != nil && err == nil {
		return k.released()
	}
	if errors.Is(err, lockmigrate.ErrLost) {
		k.halfEnded(err)
	}
	k.unsure.Store(true)
	return err
}

// tellReleased ends the holder's context with that, once.
func (k *lock) tellReleased() bool {
	if !k.end(k.released()) {
		return false
	}
	k.locker.seen(lockmigrate.Event{Kind: lockmigrate.EventReleased, Op: "release", Key: k.key, Held: time.Since(k.since)})
	return true
}

func (k *lock) released() error {
	return &lockmigrate.Error{Op: "release", Key: k.key, Kind: lockmigrate.ErrReleased}
}

// releaseHalves gives back what is held, New first, and leaves the permit when nothing of it may be left.
func (k *lock) releaseHalves(ctx context.Context) error {
	select {
	case k.giving <- struct{}{}: // also where ctx has ended: the halves go on in the background
	default:
		select {
		case k.giving <- struct{}{}:
		case <-ctx.Done():
			return &lockmigrate.Error{Op: "release", Key: k.key, Cause: context.Cause(ctx), Note: "another release of it is under way"}
		}
	}
	defer func() { <-k.giving }()
	if k.given {
		return nil
	}
	var errs []error
	late := false         // some half is given back later
	var left atomic.Int32 // halves that may still be held
	over := func() {
		if left.Add(-1) == 0 {
			k.gone()
			if late {
				k.tellReleased()
			}
		}
	}
	left.Store(1)
	for _, half := range []lockmigrate.Lock{k.new, k.old} {
		if half == nil {
			continue
		}
		switch err := half.Release(ctx); {
		case err == nil, errors.Is(err, lockmigrate.ErrReleased):
		case errors.Is(err, lockmigrate.ErrLost):
			errs = append(errs, err)
		default:
			errs = append(errs, err)
			late = true
			left.Add(1)
			context.AfterFunc(half.Context(), over) // its Locker tries again, and its lease ends
		}
	}
	k.given = !late
	over()
	return errors.Join(errs...)
}

// gone: nothing of the lock is held any more.
func (k *lock) gone() {
	k.permit.Leave()
	l := k.locker
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, k)
}
