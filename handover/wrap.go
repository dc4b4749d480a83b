package handover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Funcs are what Wrap needs of a lock of another library. H is what that library returns for a lock that is held. Acquire and Release are required,
// and one of Lost, Extend and TTL: without any nobody would hear of a loss.
type Funcs[H any] struct {
	// Acquire waits until the lock is held, or ctx ends. The ctx also ends soon after Acquire has returned, so the lock must not live by it.
	Acquire func(ctx context.Context, key string) (H, error)

	// TryAcquire makes one attempt; ErrNotAcquired, or an error that wraps it, says that another holds the lock. Nil: Acquire, for a second at most.
	TryAcquire func(ctx context.Context, key string) (H, error)

	// Release gives the lock back. An error that is no ErrLost is tried again until the lock's deadline. The ctx ends after TTL at the latest, and
	// after ten seconds; nobody waits for it longer.
	Release func(ctx context.Context, held H) error

	// Extend makes the lease of TTL begin anew. It is called three times in each TTL, sooner after an error, and before the lock is handed out where Acquire took longer
	// than a third of it. Nil: nothing extends it, or the library does.
	Extend func(ctx context.Context, held H) error

	// Lost returns a channel that is closed when the library has lost the lock. Nil: it does not tell.
	Lost func(held H) <-chan struct{}

	// TTL is for how long the lock lasts after the call of Acquire, or of the last Extend that returned nil. Zero, with Lost: as long as Lost does not tell.
	TTL time.Duration
}

// Wrap makes a Locker of anything that can acquire and release. The name tells all members, and the operator, which lock it is: "redsync at redis-a". It is
// the half's name in the record. The Locker is for package handover: its locks have no fencing tokens.
func Wrap[H any](name string, f Funcs[H]) lockmigrate.Locker {
	w := &wrapped[H]{called: name, f: f}
	w.life, w.end = context.WithCancelCause(context.Background())
	clock := lifetime.NewClock()
	w.renewer = lifetime.NewRenewer(lifetime.RenewerOptions{Now: clock.Now, Servers: make([]lifetime.Batcher, 1)}) // each lock is renewed by itself
	patience := longest / 4
	if f.TTL > 0 {
		patience = min(f.TTL/4, patience)
	}
	w.lives = lifetime.Locker{
		Now: clock.Now, At: clock.At, Seen: lockers.Observer(nil), Watch: w.renewer, Background: &w.background, ReplyTimeout: patience,
	}
	return w
}

// longest is how long a library may take for one release or extension. A fourth of it is the patience with one command.
const longest = 10 * time.Second

type wrapped[H any] struct {
	called     string
	f          Funcs[H]
	renewer    *lifetime.Renewer
	lives      lifetime.Locker
	background driver.Background
	life       context.Context // of those who hear of losses
	end        context.CancelCauseFunc
	closing    sync.Once
	left       error // what Close found
}

func (w *wrapped[H]) name() string { return w.called }

// unheard says why the functions cannot make a half.
func (w *wrapped[H]) unheard() error {
	switch {
	case w.called == "":
		return errors.New("a lock that is wrapped needs a name")
	case w.f.Acquire == nil || w.f.Release == nil:
		return fmt.Errorf("%s: Acquire and Release are required", w.called)
	case w.f.Extend != nil && w.f.TTL <= 0:
		return fmt.Errorf("%s: Extend needs TTL, the lease that it begins anew", w.called)
	case w.f.Lost == nil && w.f.TTL <= 0:
		return fmt.Errorf("%s: give Lost, or TTL: without them nobody hears of a loss", w.called)
	}
	return nil
}

// Acquire implements lockmigrate.Locker.
func (w *wrapped[H]) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	return w.acquire(ctx, key, w.f.Acquire)
}

// tryFor is how long an Acquire stands for one attempt.
const tryFor = time.Second

// TryAcquire implements lockmigrate.Locker.
func (w *wrapped[H]) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	if w.f.TryAcquire != nil || ctx == nil {
		return w.acquire(ctx, key, w.f.TryAcquire)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, tryFor, lifetime.ErrWaitOver)
	defer cancel()
	return w.acquire(bounded, key, w.f.Acquire)
}

func (w *wrapped[H]) acquire(ctx context.Context, key string, by func(context.Context, string) (H, error)) (lockmigrate.Lock, error) {
	if err := lockers.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	began := w.lives.Now()
	held, err := by(ctx, key)
	if err != nil {
		e := &lockmigrate.Error{Op: "acquire", Key: key, Cause: err, Note: w.called}
		if ctx.Err() != nil || errors.Is(err, lockmigrate.ErrNotAcquired) {
			e.Kind = lockmigrate.ErrNotAcquired
			e.Cause = errors.Join(err, context.Cause(ctx))
		}
		return nil, e
	}
	k := &wrappedLock[H]{locker: w, key: key, held: held, over: make(chan struct{})}
	k.Init(&w.lives, k, ctx)
	k.Lease.Owner, k.Lease.Alone, k.Lease.Span = k, k.RenewAlone, w.f.TTL
	if w.f.TTL <= 0 {
		k.Lease.Span = lockers.Longest // until the library tells
	}
	k.Lease.Begin(began, began.Add(k.Lease.Span))
	if w.f.Extend != nil {
		k.Lease.Every = w.f.TTL / 3
		if now := w.lives.Now(); now.Sub(began) > k.Lease.Every { // it waited: nobody knows when the lease began
			k.Lease.Begin(now, now.Add(k.Lease.Span))
			err = k.extend(ctx)
		}
	}
	k.Watched(func() {})
	if w.f.Lost != nil {
		w.background.Go(k.hear)
	}
	if err != nil {
		_ = k.Life.Release(ctx)
		return nil, &lockmigrate.Error{Op: "acquire", Key: key, Cause: err, Note: w.called + ": it was acquired, could not be extended, and is given back"}
	}
	return foreign{k.AsLock()}, nil
}

// Do implements lockmigrate.Locker.
func (w *wrapped[H]) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return lifetime.Do(ctx, key, w.Acquire, longest, work)
}

// Close implements lockmigrate.Locker. What is held is lost to its holders.
func (w *wrapped[H]) Close() error {
	w.closing.Do(func() {
		w.end(lifetime.ErrClosed)
		w.background.Close()
		w.left = lockers.StillHeld(w.called, w.renewer.Close())
	})
	return w.left
}

// wrappedLock is a lock of another library.
type wrappedLock[H any] struct {
	lifetime.Life
	locker *wrapped[H]
	key    string
	held   H
	over   chan struct{} // closed when the holder has been told

	busy      [2]atomic.Bool        // with Extend, with Release: a library may hang whatever its ctx says
	releasing atomic.Bool           // a release was asked for: the loss that the library tells may be that
	said      atomic.Pointer[error] // the library's ErrLost
}

var _ lifetime.Sole = (*wrappedLock[int])(nil)

// Key, Token, Fence and Stage are the holder's too.

func (k *wrappedLock[H]) Key() string              { return k.key }
func (k *wrappedLock[H]) Token() string            { return k.locker.called }
func (k *wrappedLock[H]) Fence() int64             { return 0 }
func (k *wrappedLock[H]) Stage() lockmigrate.Stage { return lockmigrate.StageModern }

// foreign is a wrappedLock as its holder sees it.
type foreign struct{ lockmigrate.Lock }

// hear tells the holder of a loss that the library tells.
func (k *wrappedLock[H]) hear() {
	select {
	case <-k.locker.f.Lost(k.held):
		if !k.releasing.Load() && k.locker.renewer.Remove(&k.Lease) { // else Release knows
			k.Life.Lost(lifetime.Taken)
		}
	case <-k.over:
	case <-k.locker.life.Done():
	}
}

// extend asks the library, and does not wait for it longer than the lease lasts.
func (k *wrappedLock[H]) extend(ctx context.Context) error {
	bounded, cancel := context.WithDeadline(ctx, k.Expiry())
	defer cancel()
	return k.ask(bounded, &k.busy[0], k.locker.f.Extend)
}

// ask does not wait for the library longer than ctx lasts, and asks nothing beside a call that has not come back.
func (k *wrappedLock[H]) ask(ctx context.Context, busy *atomic.Bool, f func(context.Context, H) error) error {
	if !busy.CompareAndSwap(false, true) {
		return errors.New(k.locker.called + " has not answered an earlier call")
	}
	answered := make(chan func() error, 1)
	go func() {
		err := errors.New(k.locker.called + " ended its goroutine")
		defer func() {
			panicked := recover()
			busy.Store(false)
			answered <- func() error {
				if panicked != nil { // it is the caller's, as if it had called
					panic(panicked)
				}
				return err
			}
		}()
		err = f(ctx, k.held)
	}()
	select {
	case answer := <-answered:
		return answer()
	case <-ctx.Done():
		return fmt.Errorf("%s has not answered: %w", k.locker.called, context.Cause(ctx))
	}
}

// Renew implements lifetime.Kind.
func (k *wrappedLock[H]) Renew(ctx context.Context, _ func(driver.Outcome)) (driver.Outcome, error) {
	var err error
	switch f := &k.locker.f; {
	case f.Extend != nil:
		err = k.extend(ctx)
	case f.TTL > 0:
		err = errors.New(k.locker.called + " cannot extend it")
	}
	switch {
	case err == nil:
		return driver.Ended(protocol.Renewed, nil), nil
	case errors.Is(err, lockmigrate.ErrLost):
		k.said.Store(&err)
		return driver.Ended(protocol.Lost, err), nil
	}
	return driver.Ended(protocol.Failed, err), nil
}

// Release implements lifetime.Kind. A lock that is lost is not released again.
func (k *wrappedLock[H]) Release(ctx context.Context, _ func(driver.Outcome)) (driver.Outcome, error) {
	k.releasing.Store(true)
	bounded, cancel := context.WithTimeout(ctx, 4*k.locker.lives.ReplyTimeout)
	defer cancel()
	err := k.ask(bounded, &k.busy[1], k.locker.f.Release)
	switch {
	case err == nil:
		return driver.Ended(protocol.Released, nil), nil
	case errors.Is(err, lockmigrate.ErrLost), k.Over() != nil, k.toldLost():
		k.said.Store(&err)
		return driver.Ended(protocol.NotOurs, err), nil
	case bounded.Err() != nil: // it may have run
		return driver.Ended(protocol.Unsure, err), nil
	}
	return driver.Ended(protocol.Failed, err), nil
}

// toldLost tells that the library has told a loss.
func (k *wrappedLock[H]) toldLost() bool {
	if k.locker.f.Lost == nil {
		return false
	}
	select {
	case <-k.locker.f.Lost(k.held):
		return true
	default:
		return false
	}
}

// Explain implements lifetime.Kind.
func (k *wrappedLock[H]) Explain(e *lockmigrate.Error) {
	if e.Reason == lockmigrate.ReasonTaken {
		e.Note = k.locker.called + " has lost it"
		if said := k.said.Load(); said != nil {
			e.Cause = *said
		}
	}
}

// Ended implements lifetime.Kind.
func (k *wrappedLock[H]) Ended(*lockmigrate.Error) { close(k.over) }
