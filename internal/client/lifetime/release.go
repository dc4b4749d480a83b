package lifetime

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// errGivenBack stands for the error of a released lock, which is made when somebody asks for it.
var errGivenBack = &lockmigrate.Error{Op: "release", Kind: lockmigrate.ErrReleased}

// Release gives the lock back. The renewals end with the call. When ctx ends before the reply, or has ended before, the
// release goes on in the background. One that failed is tried again there until the lease is over: a server that refuses now,
// as a replica or one without memory does, may run it later. It may be called again after an error; the first call
// after the lock was given back returns nil.
func (l *Life) Release(ctx context.Context) error {
	if ctx == nil {
		return l.Fail("release", nil, ErrNoContext)
	}
	l.mu.Lock()
	l.rests = true
	gone, over := l.gone, l.why()
	if gone && l.failing && l.ended == error(errGivenBack) {
		l.failing, over = false, nil
	}
	l.mu.Unlock()
	if gone {
		return over
	}
	err := l.ask(ctx)
	l.mu.Lock()
	l.failing = err != nil
	l.mu.Unlock()
	return err
}

// ask is Release for a lock that is not known to be gone.
func (l *Life) ask(ctx context.Context) error {
	l.locker.Watch.Rest(&l.Lease)
	if cause := context.Cause(ctx); cause != nil {
		return l.releaseBehind(ctx, cause)
	}
	if err := l.lock(ctx, releasing); err != nil {
		return l.releaseBehind(ctx, err)
	}
	if !l.locker.Background.Begin() {
		defer l.unlock()
		return l.orLost(l.Fail("release", nil, ErrClosed))
	}
	return l.release(ctx, false)
}

// Unconfirmed tells that an earlier release may have run. It is for Kind.Release.
func (l *Life) Unconfirmed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent > 1
}

// release runs one release, behind its caller or not. It has the turn, and is counted in background.
func (l *Life) release(ctx context.Context, behind bool) error {
	l.mu.Lock()
	gone, over := l.gone, l.why()
	if !gone {
		l.sent++
	}
	l.mu.Unlock()
	if gone { // by the release before us
		l.unlock()
		l.locker.Background.End()
		return over
	}
	goesOn, asked := false, false
	defer func() {
		if !asked { // the pool panicked: it may have been sent
			l.tryAgain()
		}
		l.handBack(&goesOn)
	}()
	outcome, err := l.kind.Release(ctx, l.Left())
	asked = true
	switch {
	case err == nil, behind && outcome.Step.Verdict == protocol.Failed:
		if err != nil {
			outcome.Err = err // there was no connection in all that time; the deadline is watched on
		}
		return l.released(outcome)
	case outcome.Step.Verdict == protocol.Unsure: // the turn, too, goes on in the background
		goesOn = true
		e := l.Fail("release", lockmigrate.ErrUnknownOutcome, err)
		e.Until, e.Note = l.Expiry(), "the release goes on in the background"
		return l.orLost(e)
	default: // nothing was sent
		l.mu.Lock()
		l.sent--
		l.mu.Unlock()
		return l.releaseBehind(ctx, err)
	}
}

// releaseBehind releases in the background, for a caller who does not wait: a lock must not be kept for its TTL because of
// that.
func (l *Life) releaseBehind(ctx context.Context, cause error) error {
	e := l.Fail("release", nil, cause)
	e.Note = "the release goes on in the background"
	if l.goBehind(ctx, releasing) == nil {
		return l.orLost(e)
	}
	return l.orLost(l.Fail("release", nil, errors.Join(cause, ErrClosed)))
}

// goBehind runs one release in the background, unless one is under way there. ErrClosed: nothing runs there any more.
func (l *Life) goBehind(ctx context.Context, of purpose) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.behind {
		return nil
	}
	l.behind = l.locker.Background.Go(func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*l.locker.ReplyTimeout)
		defer cancel()
		err := l.lock(bounded, of)
		l.mu.Lock()
		l.behind = false
		l.mu.Unlock()
		if err != nil {
			l.tryAgain()
			return
		}
		l.locker.Background.Extend()
		_ = l.release(bounded, true)
	})
	if !l.behind {
		return ErrClosed
	}
	return nil
}

// tryAgain sets when a release that failed is tried again. Nobody may wait for that: it is counted in background only while it
// runs.
func (l *Life) tryAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := cmp.Or(l.locker.Pause, 50*time.Millisecond)
	l.pause = min(max(2*l.pause, first), 20*first)
	if left := l.Lease.Until().Sub(l.locker.Now()); l.pause < left && !l.waits {
		l.waits = true
		time.AfterFunc(l.pause, func() {
			l.mu.Lock()
			l.waits = false
			gone := l.gone
			l.mu.Unlock()
			if !gone {
				_ = l.goBehind(context.Background(), retrying)
			}
		})
	}
}

// released ends the lock as far as the verdict allows.
func (l *Life) released(outcome driver.Outcome) error {
	l.mu.Lock()
	v, again, retry := outcome.Step.Verdict, l.sent > 1, l.turn.of == retrying
	if v == protocol.Failed {
		l.sent--
	}
	l.mu.Unlock()
	switch {
	case v == protocol.NotOurs && again && l.locker.Now() >= l.Lease.Until(): // the earlier release ran, or the lease has run out
		l.dispose()
		defer l.kind.Gone()
		l.Lost(Deadline)
		return l.Over()
	case v == protocol.Released, v == protocol.NotOurs && again:
		// The key is not ours any more after an earlier release whose reply was lost. Before the deadline that is by our
		// own doing: nobody has taken it from us.
		l.dispose()
		defer l.kind.Gone()
		if l.end(errGivenBack) {
			defer l.kind.Ended(nil)
			l.observe(lockmigrate.Event{Kind: lockmigrate.EventReleased, Op: "release"})
			return nil
		}
		return l.Over() // it was lost before: what was left of it is gone now
	case v == protocol.NotOurs, v == protocol.Displaced:
		l.dispose()
		defer l.kind.Gone()
		l.LoseTo(v, "release")
		return l.Over()
	}
	l.note(outcome.Err)
	e := l.Fail("release", nil, outcome.Err)
	if v != protocol.Failed {
		e.Kind, e.Until = lockmigrate.ErrUnknownOutcome, l.Expiry()
	}
	e.Note = "it is tried again until the lease is over"
	l.kind.Explain(e)
	defer l.tryAgain()
	if !retry { // a server that refuses for long is told of once
		l.observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "release", Err: e})
	}
	return l.orLost(e)
}

// dispose ends the watch: nothing of ours is on the server any more.
func (l *Life) dispose() {
	l.locker.Watch.Remove(&l.Lease)
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
}
