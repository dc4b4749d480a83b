package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
)

// Funcs are what Wrap needs of a lock of another library. H is what that library returns for a lock that is held. Acquire and Release are required,
// and one of Lost, Extend and TTL: without any nobody would hear of a loss.
type Funcs[H any] struct {
	// Acquire waits until the lock is held, or ctx ends. The ctx also ends soon after Acquire has returned, so the lock must not live by it.
	Acquire func(ctx context.Context, key string) (H, error)

	// TryAcquire makes one attempt; ErrNotAcquired, or an error that wraps it, says that another holds the lock. Nil: Acquire, for a second at most.
	TryAcquire func(ctx context.Context, key string) (H, error)

	// Release gives the lock back. An error that is no ErrLost is tried again until the lock's deadline.
	Release func(ctx context.Context, held H) error

	// Extend makes the lease of TTL begin anew. It is called three times in each TTL, and before the lock is handed out where Acquire took longer than
	// a third of it. Nil: nothing extends it, or the library does.
	Extend func(ctx context.Context, held H) error

	// Lost returns a channel that is closed when the library has lost the lock. Nil: it does not tell.
	Lost func(held H) <-chan struct{}

	// TTL is for how long the lock lasts after the call of Acquire, or of the last Extend that returned nil. Zero, with Lost: as long as Lost does not tell.
	TTL time.Duration
}

// Wrap makes a Locker of anything that can acquire and release. The name tells all members, and the operator, which lock it is: "redsync at redis-a". It is
// the half's name in the record. The Locker is for package handover: its locks have no fencing tokens.
func Wrap[H any](name string, f Funcs[H]) lockmigrate.Locker {
	ctx, end := context.WithCancelCause(context.Background())
	return &wrapped[H]{called: name, f: f, life: ctx, end: end}
}

type wrapped[H any] struct {
	called string
	f      Funcs[H]
	life   context.Context
	end    context.CancelCauseFunc
	work   sync.WaitGroup

	mu   sync.Mutex
	held int
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
	began := time.Now()
	held, err := by(ctx, key)
	if err != nil {
		e := &lockmigrate.Error{Op: "acquire", Key: key, Cause: err, Note: w.called}
		if ctx.Err() != nil || errors.Is(err, lockmigrate.ErrNotAcquired) {
			e.Kind = lockmigrate.ErrNotAcquired
			e.Cause = errors.Join(err, context.Cause(ctx))
		}
		return nil, e
	}
	k := &wrappedLock[H]{locker: w, key: key, held: held, until: began.Add(w.f.TTL), released: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if w.f.Extend != nil && time.Since(began) > w.f.TTL/3 { // it waited: nobody knows when the lease began
		k.until = time.Now().Add(w.f.TTL)
		err = k.extend(ctx)
	}
	w.mu.Lock()
	w.held++
	w.mu.Unlock()
	w.work.Go(k.watch)
	if err != nil {
		_ = k.Release(ctx)
		return nil, &lockmigrate.Error{Op: "acquire", Key: key, Cause: err, Note: w.called + ": it was acquired, could not be extended, and is given back"}
	}
	return k, nil
}

// Do implements lockmigrate.Locker.
func (w *wrapped[H]) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return lifetime.Do(ctx, key, w.Acquire, 10*time.Second, work)
}

// Close implements lockmigrate.Locker. What is held is lost to its holders.
func (w *wrapped[H]) Close() error {
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	w.end(lifetime.ErrClosed)
	w.work.Wait()
	return lockers.StillHeld(w.called, held)
}

// wrappedLock is a lock of another library.
type wrappedLock[H any] struct {
	locker   *wrapped[H]
	key      string
	held     H
	ctx      context.Context
	cancel   context.CancelCauseFunc
	released chan struct{}

	mu    sync.Mutex
	until time.Time
	rests bool // a release was asked for: nothing extends it any more
	gone  bool
}

func (k *wrappedLock[H]) Key() string              { return k.key }
func (k *wrappedLock[H]) Token() string            { return k.locker.called }
func (k *wrappedLock[H]) Fence() int64             { return 0 }
func (k *wrappedLock[H]) Stage() lockmigrate.Stage { return lockmigrate.StageModern }
func (k *wrappedLock[H]) Context() context.Context { return k.ctx }

// never is the Expiry of a lock that lasts until its library tells.
const never = 10 * 365 * 24 * time.Hour

func (k *wrappedLock[H]) Expiry() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locker.f.TTL <= 0 {
		return time.Now().Add(never)
	}
	return k.until
}

// watch extends the lease, and tells the holder of its end.
func (k *wrappedLock[H]) watch() {
	f := &k.locker.f
	var lost <-chan struct{}
	if f.Lost != nil {
		lost = f.Lost(k.held)
	}
	var cause error
	extended, extending := make(chan error, 1), false // beside us: a library may hang whatever its ctx says
	for {
		left := time.Until(k.Expiry())
		if left <= 0 {
			k.lose(lockmigrate.ReasonDeadline, cause)
			return
		}
		next := left
		if f.Extend != nil && !extending {
			next = min(left, f.TTL/3)
		}
		timer := time.NewTimer(next)
		select {
		case <-k.released:
			timer.Stop()
			return
		case <-k.locker.life.Done():
			timer.Stop()
			k.lose(lockmigrate.ReasonClosed, nil)
			return
		case <-lost:
			timer.Stop()
			if k.resting() {
				lost = nil // the release may be what it tells of; Release knows
				continue
			}
			k.lose(lockmigrate.ReasonTaken, errors.New(k.locker.called+" has lost it"))
			return
		case cause = <-extended:
			timer.Stop()
			if extending = false; errors.Is(cause, lockmigrate.ErrLost) && !k.resting() {
				k.lose(lockmigrate.ReasonTaken, cause)
				return
			}
		case <-timer.C:
			if f.Extend != nil && !extending && !k.resting() {
				extending = true
				go func() { extended <- k.extend(k.locker.life) }()
			}
		}
	}
}

// extend makes the lease begin anew, counted from before it was asked.
func (k *wrappedLock[H]) extend(ctx context.Context) error {
	began, f := time.Now(), &k.locker.f
	bounded, cancel := context.WithDeadline(ctx, k.Expiry())
	defer cancel()
	if err := f.Extend(bounded, k.held); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.until = began.Add(f.TTL)
	return nil
}

// whenOver calls f when nothing of the lock is held any more.
func (k *wrappedLock[H]) whenOver(f func()) { context.AfterFunc(k.ctx, f) }

func (k *wrappedLock[H]) lose(reason lockmigrate.Reason, cause error) {
	k.cancel(&lockmigrate.Error{Op: "hold", Key: k.key, Kind: lockmigrate.ErrLost, Reason: reason, Cause: cause, Note: k.locker.called})
}

// Renew implements lockmigrate.Lock.
func (k *wrappedLock[H]) Renew(ctx context.Context) error {
	if k.ctx.Err() != nil {
		return context.Cause(k.ctx)
	}
	if k.locker.f.Extend == nil {
		return nil
	}
	return k.extend(ctx)
}

// Release implements lockmigrate.Lock.
func (k *wrappedLock[H]) Release(ctx context.Context) error {
	k.mu.Lock()
	if k.gone {
		k.mu.Unlock()
		return cmp.Or(context.Cause(k.ctx), error(&lockmigrate.Error{Op: "release", Key: k.key, Kind: lockmigrate.ErrReleased}))
	}
	again := k.rests // it is being tried again
	k.rests = true
	k.mu.Unlock()
	before := context.Cause(k.ctx)
	err := k.giveBack(ctx)
	if err != nil && !errors.Is(err, lockmigrate.ErrLost) && before == nil {
		if !again {
			k.locker.work.Go(k.releaseAgain)
		}
		return &lockmigrate.Error{Op: "release", Key: k.key, Cause: err, Note: k.locker.called}
	}
	return k.ends(before, err)
}

// releaseAgain tries until the lock is given back, or has ended.
func (k *wrappedLock[H]) releaseAgain() {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if lifetime.Sleep(k.ctx, pause) != nil {
			_ = k.ends(context.Cause(k.ctx), nil)
			return
		}
		bounded, cancel := context.WithTimeout(k.ctx, 10*time.Second)
		err := k.giveBack(bounded)
		cancel()
		if err == nil || errors.Is(err, lockmigrate.ErrLost) {
			_ = k.ends(nil, err)
			return
		}
	}
}

// giveBack says ErrLost where the library could not release the lock, and tells that it has lost it.
func (k *wrappedLock[H]) giveBack(ctx context.Context) error {
	err := k.locker.f.Release(ctx, k.held)
	if err != nil && k.locker.f.Lost != nil {
		select {
		case <-k.locker.f.Lost(k.held):
			return errors.Join(lockmigrate.ErrLost, err)
		default:
		}
	}
	return err
}

func (k *wrappedLock[H]) resting() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rests
}

// ends is the end of a lock whose release has run: before is how it was lost already, err that it was lost.
func (k *wrappedLock[H]) ends(before, err error) error {
	k.mu.Lock()
	first := !k.gone
	k.gone = true
	k.mu.Unlock()
	if first {
		close(k.released)
		k.locker.mu.Lock()
		k.locker.held--
		k.locker.mu.Unlock()
	}
	switch {
	case before != nil:
		return before
	case err != nil:
		k.lose(lockmigrate.ReasonTaken, err)
		return context.Cause(k.ctx)
	}
	k.cancel(&lockmigrate.Error{Op: "release", Key: k.key, Kind: lockmigrate.ErrReleased})
	return nil
}
