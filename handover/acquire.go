package handover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TryAcquire implements lockmigrate.Locker: one attempt at each half that the stage takes.
func (l *locker) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	return l.acquire(ctx, key, lockmigrate.Locker.TryAcquire, false)
}

// Acquire implements lockmigrate.Locker. A stage that moves meanwhile, and a member's lease that ends, have it give back what it has and begin anew.
func (l *locker) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	return l.acquire(ctx, key, lockmigrate.Locker.Acquire, true)
}

// Do implements lockmigrate.Locker.
func (l *locker) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return lifetime.Do(ctx, key, l.Acquire, 2*l.opts.ReplyTimeout, work)
}

// take is how a half is taken: Acquire or TryAcquire.
type take func(half lockmigrate.Locker, ctx context.Context, key string) (lockmigrate.Lock, error)

func (l *locker) acquire(ctx context.Context, key string, by take, patient bool) (lockmigrate.Lock, error) {
	if err := lockers.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	if !l.background.Begin() {
		return nil, closed(key)
	}
	defer l.background.End()
	if patient && l.opts.Wait > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, l.opts.Wait, lifetime.ErrWaitOver)
		defer cancel()
		ctx = bounded
	}
	began := time.Now()
	for {
		k := &lock{locker: l, key: key, newKey: l.opts.NewKey(key), giving: make(chan struct{}, 1)}
		if err := l.gate.Wait(ctx, l.opts.Namespace, key, &k.permit, l.opts.ReplyTimeout, patient); err != nil {
			return nil, err
		}
		err := k.take(ctx, by)
		if err == nil {
			k.begin(ctx)
			handed := false
			defer func() {
				if !handed { // the Observer panicked: nobody has the lock that is held
					k.giveBack()
				}
			}()
			if l.opts.Observer != nil {
				l.seen(lockmigrate.Event{Kind: lockmigrate.EventAcquired, Op: "acquire", Key: key, Fence: k.fence, Took: time.Since(began), Note: "stage " + k.permit.Stage.String()})
			}
			handed = true
			return k, nil
		}
		if (errors.Is(err, stages.ErrChanged) || errors.Is(err, errGivenBack)) && ctx.Err() == nil && patient {
			continue
		}
		if errors.Is(err, stages.ErrChanged) {
			err = &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrStage, Cause: err}
		}
		l.seen(lockmigrate.Event{Kind: lockmigrate.EventWaited, Op: "acquire", Key: key, Took: time.Since(began), Err: err})
		return nil, err
	}
}

// take takes the halves of the permit's stage, Old first. What it has when something fails is given back, New first. The permit is left
// when nothing is held any more.
func (k *lock) take(ctx context.Context, by take) (err error) {
	l := k.locker
	attempt, end := l.gate.During(ctx, &k.permit)
	defer end(nil)
	taken := false
	defer func() { // also where a half, or a function of Wrap, panics
		if !taken {
			k.giveBack()
		}
	}()
	if k.permit.Stage != stages.New {
		if k.old, err = by(l.opts.Old, attempt, k.key); err != nil {
			return k.failed(attempt, err)
		}
	}
	if k.permit.Stage == stages.Both { // who waits for New when Old is over would wait in vain
		if unsee := whenLost(k.old, func(cause error) { end(k.halfLost(cause)) }); unsee != nil {
			defer unsee()
		}
	}
	if k.permit.Stage != stages.Old {
		if k.new, err = by(l.opts.New, attempt, k.newKey); err != nil {
			return k.failed(attempt, err)
		}
	}
	if k.fence, err = k.fences(attempt); err != nil {
		return k.failed(attempt, err)
	}
	switch err := l.gate.Stay(&k.permit); {
	case errors.Is(err, stages.ErrChanged):
		return err
	case errors.Is(err, lifetime.ErrClosed):
		return closed(k.key)
	case err != nil:
		return k.tooLate(lockmigrate.ErrStage, "it was acquired after this member's lease", err)
	}
	if errors.Is(context.Cause(attempt), errGivenBack) || !k.Expiry().After(time.Now()) {
		return k.failed(attempt, k.halfLost(lockmigrate.ErrLost))
	}
	taken = true
	return nil
}

// errGivenBack is an attempt's that had something too late: Acquire begins anew.
var errGivenBack = errors.New("was given back")

func (k *lock) tooLate(kind error, what string, cause error) error {
	return &lockmigrate.Error{Op: "acquire", Key: k.key, Kind: kind, Cause: fmt.Errorf("%s, and %w: %w", what, errGivenBack, cause)}
}

func (k *lock) halfLost(cause error) error {
	return k.tooLate(lockmigrate.ErrNotAcquired, "a half was lost before all was acquired", cause)
}

// failed says where the stage, Close or a lost half ended the attempt.
func (k *lock) failed(attempt context.Context, err error) error {
	switch cause := context.Cause(attempt); {
	case cause == stages.ErrChanged:
		return cause
	case cause == lifetime.ErrClosed:
		return closed(k.key)
	case errors.Is(cause, errGivenBack):
		return cause
	}
	return err
}

// closed is what callers of a closed Locker are told.
func closed(key string) error {
	return &lockmigrate.Error{Op: "acquire", Key: key, Cause: lifetime.ErrClosed}
}

// fences is the fencing token: at stage both it is larger than what either half has drawn, and New's counter goes on from there.
func (k *lock) fences(ctx context.Context) (int64, error) {
	switch {
	case k.new == nil:
		return k.old.Fence(), nil
	case k.old == nil || k.old.Fence() == 0 || k.new.Fence() == 0 || k.new.Fence() > k.old.Fence():
		return k.new.Fence(), nil
	}
	return lockers.HalfOf(k.locker.opts.New).RaiseFence(ctx, k.newKey, k.old.Fence()+1)
}

// giveBack gives back what an attempt has, behind the caller.
func (k *lock) giveBack() {
	if k.old == nil && k.new == nil {
		k.permit.Leave()
		return
	}
	k.locker.background.Fork(func() {
		if k.releaseHalves(context.Background()) == nil {
			k.tellReleased()
		}
	})
}
