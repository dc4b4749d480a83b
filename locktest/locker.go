// Package locktest is for the tests of services that lock: a Locker in memory, whose losses, refusals and waits the test provokes.
//
//	locker := locktest.New()
//	service := orders.New(locker)      // it takes a lockmigrate.Locker
//	release := locker.Hold("order.17") // another client holds the lock
//	go service.Ship(ctx, 17)
//	locker.AwaitWaiters(ctx, "order.17", 1)
//	release()
//	locker.AwaitHolder(ctx, "order.17")
//	locker.Lose("order.17", lockmigrate.ReasonDeadline) // what does the service do now?
//
// # Guarantees
//
//  1. Each key has one holder. Those who wait get it in the order in which they asked (TestOneAfterTheOther).
//  2. Errors, contexts and their causes are those of the real Lockers: the same rules are tried on this one and on package modern
//     (TestAsTheRealOnes).
//  3. Nothing happens by itself: no lock expires, and no clock is read but for Expiry. So a test neither sleeps nor waits for the machine.
//
// # Not here
//
// No server, no stages, and no renewals.
package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
)

// TTL is what Expiry says of a lock that was just taken or renewed. No lock ends by it.
const TTL = 30 * time.Second

var errClosed = errors.New("the Locker is closed")

// Locker is a lockmigrate.Locker in memory. New makes one. It is safe for concurrent use.
type Locker struct {
	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, whenever something has happened
	keys    map[string]*state
	fence   int64
	closed  bool
	left    error // what Close found
}

// state is what is known of one key.
type state struct {
	holder   *lock // ours; nil for none
	others   int   // Hold without its release
	waiting  []*waiter
	refusal  error
	released error // how releases fail
}

// waiter is an Acquire that waits. The one who takes it off the list sends it what it returns.
type waiter struct {
	ctx    context.Context
	answer chan answer
}

type answer struct {
	held lockmigrate.Lock
	err  error
}

var _ lockmigrate.Locker = (*Locker)(nil)

// New returns a Locker that nobody holds anything of.
func New() *Locker { return &Locker{changed: make(chan struct{}), keys: map[string]*state{}} }

// Hold takes a key as another client does, and waits for nobody: a lock of ours on the key is lost to its holder as ReasonTaken. release
// gives the key back; a second call does nothing.
func (l *Locker) Hold(key string) (release func()) {
	l.Lose(key, lockmigrate.ReasonTaken)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(key).others++
	l.tell()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.of(key).others--
		l.next(key)
	})
}

// Lose takes a lock away from its holder: its context ends, with an error that matches ErrLost and has the reason. The key is free then.
// It returns false when nobody of this Locker holds the key.
func (l *Locker) Lose(key string, reason lockmigrate.Reason) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.of(key).holder
	if held == nil {
		return false
	}
	l.lose(held, reason)
	return true
}

// Refuse makes each attempt on the key fail with err, until Refuse(key, nil): ErrStage, ErrForeignFormat, an error of the connection. It
// ends those who wait too.
func (l *Locker) Refuse(key string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(key)
	if s.refusal = err; err != nil {
		s.sendAway(&lockmigrate.Error{Op: "acquire", Key: key, Kind: kindOf(err), Cause: err})
	}
	l.tell()
}

// FailReleases makes each Release on the key return err, until FailReleases(key, nil). The lock stays with its holder, as it does when a real
// release fails: ErrUnknownOutcome, an error of the connection.
func (l *Locker) FailReleases(key string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(key).released = err
}

// AwaitWaiters returns when at least n callers of Acquire wait for the key, or with ctx's cause.
func (l *Locker) AwaitWaiters(ctx context.Context, key string, n int) error {
	return l.await(ctx, func() bool { return len(l.of(key).waiting) >= n })
}

// AwaitHolder returns the lock on the key as soon as somebody of this Locker holds it, or ctx's cause.
func (l *Locker) AwaitHolder(ctx context.Context, key string) (held lockmigrate.Lock, err error) {
	err = l.await(ctx, func() bool {
		if holder := l.of(key).holder; holder != nil {
			held = holder
		}
		return held != nil
	})
	return held, err
}

// Held returns the keys that somebody of this Locker holds, in no order: none of them should be left at the end of a test.
func (l *Locker) Held() (keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, s := range l.keys {
		if s.holder != nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// TryAcquire implements lockmigrate.Locker.
func (l *Locker) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, _, err := l.attempt(ctx, key)
	if held == nil && err == nil {
		err = &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired}
	}
	return held, err
}

// Acquire implements lockmigrate.Locker. It waits until the key is free, or ctx ends.
func (l *Locker) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	l.mu.Lock()
	held, s, err := l.attempt(ctx, key)
	if held != nil || err != nil {
		l.mu.Unlock()
		return held, err
	}
	w := &waiter{ctx, make(chan answer, 1)}
	s.waiting = append(s.waiting, w)
	l.tell()
	l.mu.Unlock()
	select {
	case a := <-w.answer:
		return a.held, a.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(s.waiting, w); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		l.tell()
		return nil, &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: context.Cause(ctx)}
	}
	a := <-w.answer // it came at the same moment
	return a.held, a.err
}

// Do implements lockmigrate.Locker.
func (l *Locker) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return lifetime.Do(ctx, key, l.Acquire, time.Minute, work)
}

// Close implements lockmigrate.Locker. What is held is lost, as ReasonClosed.
func (l *Locker) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.left
	}
	l.closed = true
	held := 0
	for key, s := range l.keys {
		s.sendAway(&lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: errClosed})
		if s.holder != nil {
			held++
			l.lose(s.holder, lockmigrate.ReasonClosed)
		}
	}
	if held > 0 {
		l.left = fmt.Errorf("locktest: closed with locks held: %d; release them first", held)
	}
	return l.left
}

func (l *Locker) of(key string) *state {
	s := l.keys[key]
	if s == nil {
		s = &state{}
		l.keys[key] = s
	}
	return s
}

func (s *state) taken() bool { return s.holder != nil || s.others > 0 || len(s.waiting) > 0 }

// sendAway ends the waits of all who wait.
func (s *state) sendAway(err error) {
	for _, w := range s.waiting {
		w.answer <- answer{err: err}
	}
	s.waiting = nil
}

// attempt refuses what must not be tried, and takes a key that is free.
func (l *Locker) attempt(ctx context.Context, key string) (held lockmigrate.Lock, s *state, err error) {
	s = l.of(key)
	fail := &lockmigrate.Error{Op: "acquire", Key: key}
	switch {
	case key == "":
		fail.Cause = lifetime.ErrEmptyKey
	case ctx.Err() != nil:
		fail.Kind, fail.Cause = lockmigrate.ErrNotAcquired, context.Cause(ctx)
	case l.closed:
		fail.Cause = errClosed
	case s.refusal != nil:
		fail.Kind, fail.Cause = kindOf(s.refusal), s.refusal
	default:
		if !s.taken() {
			held = l.grant(ctx, key, s)
		}
		return held, s, nil
	}
	return nil, s, fail
}

// kindOf is the kind of a provoked error, where it has one.
func kindOf(err error) error {
	for _, kind := range []error{lockmigrate.ErrNotAcquired, lockmigrate.ErrUnknownOutcome, lockmigrate.ErrForeignFormat, lockmigrate.ErrStage} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return nil
}

func (l *Locker) grant(ctx context.Context, key string, s *state) *lock {
	l.fence++
	held := &lock{locker: l, key: key, fence: l.fence, until: time.Now().Add(TTL)}
	held.ctx, held.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.holder = held
	l.tell()
	return held
}

// next hands a free key to the first who waits.
func (l *Locker) next(key string) {
	s := l.of(key)
	if s.holder == nil && s.others == 0 && len(s.waiting) > 0 {
		first := s.waiting[0]
		s.waiting = s.waiting[1:]
		first.answer <- answer{held: l.grant(first.ctx, key, s)}
	}
	l.tell()
}

// lose ends a holder's lock; tell wakes the test.
func (l *Locker) lose(held *lock, reason lockmigrate.Reason) {
	held.ended = &lockmigrate.Error{Op: "hold", Key: held.key, Kind: lockmigrate.ErrLost, Reason: reason, Note: "the test took it away"}
	held.cancel(held.ended)
	l.of(held.key).holder = nil
	l.next(held.key)
}

func (l *Locker) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Locker) await(ctx context.Context, there func() bool) error {
	for {
		l.mu.Lock()
		if there() {
			l.mu.Unlock()
			return nil
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
