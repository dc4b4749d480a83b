package lockers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// MaxSleep is the longest that a waiter goes without looking at the key, whatever it was told.
const MaxSleep = 30 * time.Second

// pause is the first one after a question that stayed without an answer; it grows.
const pause, longestPause = 50 * time.Millisecond, time.Second

// Locker is the common part of a Locker. Its fields are set once. Connections are Client's, whose Close ends the Locker.
type Locker struct {
	*Client
	Terms
	New       func(ctx context.Context, key string) *Hold // prepares an acquisition
	Contended *waiting.Contended

	mu    sync.Mutex
	owned map[ownership]*Hold // what owners in contexts hold
}

// TryAcquire makes one attempt.
func (l *Locker) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	if err := CheckCall(ctx, key); err != nil {
		return nil, err
	}
	if again := l.reenter(ctx, key); again != nil {
		return again, nil
	}
	start := l.Clock.Now()
	h, err := l.attempt(ctx, key)
	return l.acquired(ctx, key, h, start, false, err)
}

// Acquire waits until the lock is ours, Wait is over or ctx ends.
func (l *Locker) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	if err := CheckCall(ctx, key); err != nil {
		return nil, err
	}
	if again := l.reenter(ctx, key); again != nil {
		return again, nil
	}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if l.Wait > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, l.Wait, lifetime.ErrWaitOver)
	}
	defer cancel()
	start := l.Clock.Now()
	if l.Hub.Waiting(key) == 0 && !l.Contended.Lately(key, l.Clock.Now) { // else the key is hardly free
		h, err := l.attempt(bounded, key)
		if err == nil || !errors.Is(err, lockmigrate.ErrNotAcquired) {
			return l.acquired(bounded, key, h, start, false, err)
		}
	}
	h, err := l.wait(bounded, key)
	return l.acquired(bounded, key, h, start, true, err)
}

// Do holds the lock while it runs work.
func (l *Locker) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return lifetime.Do(ctx, key, l.Acquire, 2*l.ReplyTimeout, work)
}

func (l *Locker) attempt(ctx context.Context, key string) (*Hold, error) {
	if l.Closed() {
		return nil, &lockmigrate.Error{Op: "acquire", Key: key, Cause: lifetime.ErrClosed}
	}
	h := l.New(ctx, key)
	return h, h.kind.Attempt(ctx)
}

// wait stands in the process's queue, and when it is the front, waits for the key in the way of its kind.
func (l *Locker) wait(ctx context.Context, key string) (*Hold, error) {
	if !l.Background.Begin() { // to the end of the wait: Close finds it over, and its place given up
		return nil, &lockmigrate.Error{Op: "acquire", Key: key, Cause: lifetime.ErrClosed}
	}
	defer l.Background.End()
	waits, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.Life, func() { cancel(lifetime.ErrClosed) })()
	turn, err := l.Hub.Enter(waits, key)
	if err != nil {
		return nil, Left(key, err)
	}
	// Once the lock is ours, the next one of this process takes its place in the server's queue.
	defer turn.Leave()
	l.Contended.Mark(key, l.Clock.Now())
	h := l.New(ctx, key)
	return h, h.kind.Wait(waits, turn)
}

// acquired is the last step of every acquisition, for better or worse.
func (l *Locker) acquired(ctx context.Context, key string, h *Hold, start protocol.Instant, waited bool, err error) (lockmigrate.Lock, error) {
	e := lockmigrate.Event{Key: key}
	if err == nil {
		confirmed := false
		defer func() {
			if !confirmed { // the pool panicked
				h.GiveBackLater(false)
			}
		}()
		err = h.kind.Confirm(ctx)
		confirmed = true
	}
	if err == nil && l.Clock.Now() >= h.Lease.Until() { // the process was stopped, or the reply took too long
		failed := h.Fail("acquire", lockmigrate.ErrLost, nil)
		failed.Reason, failed.Note = lockmigrate.ReasonDeadline, "the reply came after the TTL"
		err = failed
		h.GiveBackLater(false)
	}
	if err == nil && l.Closed() {
		err = h.Fail("acquire", nil, lifetime.ErrClosed)
		h.GiveBackLater(false)
	}
	if e.Err = err; err != nil {
		l.Concluded(e, start)
		return nil, err
	}
	e.Fence, e.How = h.Fence, How(waited, h.Handed)
	l.own(ctx, h) // before anything can end it
	h.Watched(func() { l.Concluded(e, start) })
	return &h.first, nil
}

// Left is the error of a waiter whose context ended, or whose Locker was closed.
func Left(key string, cause error) error {
	if errors.Is(cause, lifetime.ErrClosed) {
		return &lockmigrate.Error{Op: "acquire", Key: key, Cause: lifetime.ErrClosed}
	}
	return &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: cause}
}

// Try makes one attempt that is not one of a wait. Answered tells that the server has said whether the key is free.
func (h *Hold) Try(ctx context.Context, m *protocol.ModernAcquire) (answered bool, err error) {
	outcome, err := h.Commands().Advance(ctx, m, protocol.Reply{}, h.Life.Left())
	if err != nil {
		return false, h.Fail("acquire", lockmigrate.ErrNotAcquired, err)
	}
	switch outcome.Step.Verdict {
	case protocol.Acquired:
		h.taken(m)
		return true, nil
	case protocol.Busy:
		return true, h.Fail("acquire", lockmigrate.ErrNotAcquired, nil)
	case protocol.Unsure:
		return false, h.CleanUp(ctx, outcome.Err, false)
	default:
		return false, h.Failed(ctx, outcome, false)
	}
}

func (h *Hold) taken(m *protocol.ModernAcquire) {
	h.Fence = m.FenceToken()
	h.Begin(m.Deadline())
}

// Compete tries again and again beside all others who wait, until the lock is ours, ctx ends or the server refuses. A connection
// that breaks, or a server that is away for a while, does not end the wait: the holder may release the lock at any time.
func (h *Hold) Compete(ctx context.Context, turn *waiting.Turn, next func() *protocol.ModernAcquire) error {
	unsettled := false // a question that stayed without an answer may have taken the key
	gaveUp := func(err error) error {
		if unsettled {
			h.Leave(false)
			return h.Unknown(err)
		}
		return Left(h.key, err)
	}
	for silent := 0; ; {
		m := next()
		outcome, err := h.locker.Ask(ctx, turn, m, protocol.Reply{}, func(o driver.Outcome) {
			defer h.locker.Background.End()
			h.abandoned(o)
		})
		if err != nil { // the machine may still run: hands off
			return gaveUp(err)
		}
		left := time.Duration(0)
		switch {
		case outcome.Step.Verdict == protocol.Acquired:
			h.taken(m)
			return nil
		case outcome.Step.Verdict == protocol.Busy:
			silent, unsettled, left = 0, false, m.Left()
		case outcome.Step.Verdict != protocol.Foreign && !driver.Refused(outcome.Err):
			silent++
			unsettled = unsettled || outcome.Step.Verdict == protocol.Unsure && !driver.Elsewhere(outcome.Err)
			left = min(time.Duration(silent)*pause, longestPause)
		default:
			if unsettled {
				h.Leave(false)
			}
			return h.Failed(ctx, outcome, false)
		}
		if _, err := turn.Wait(ctx, untilLook(left)); err != nil {
			return gaveUp(err)
		}
	}
}

// untilLook is how long to sleep when the holder's TTL has left to go; negative for none.
func untilLook(left time.Duration) time.Duration {
	if left < 0 || left > MaxSleep {
		return MaxSleep
	}
	return left + time.Millisecond
}

// Failed ends an acquisition that cannot go on. Queued tells that we stand in a queue on the server.
func (h *Hold) Failed(ctx context.Context, outcome driver.Outcome, queued bool) error {
	switch outcome.Step.Verdict {
	case protocol.Foreign:
		err := h.Fail("acquire", lockmigrate.ErrForeignFormat, outcome.Err)
		err.Note = "the key is of another type: a lock of another format?"
		return err
	case protocol.Unsure:
		return h.CleanUp(ctx, outcome.Err, true)
	case protocol.Failed:
		if queued {
			h.Leave(true)
		}
	}
	return h.Fail("acquire", nil, outcome.Err)
}
