package compat

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// A waiter whose attempt fails because a connection broke, or because the server loads its data, is busy with a script or
// is a master no more, tries again until its context ends: it has waited for somebody else's release, which may come at any time, and
// a restart of the server is no reason to lose its place. Refusals (a missing right, no memory) are answers.
//
// An attempt whose reply was lost may have taken the key. It is given back in the background, by its own
// value, and the next attempt is one with another value: until the old one is given back, or its TTL is
// over, it is held by a stranger like any other. A wait that ends before that is an unknown outcome.

const (
	firstPause   = 20 * time.Millisecond // after an attempt that broke; it doubles
	longestPause = time.Second
)

// broke tells whether an attempt failed in a way that says nothing about the lock. A line that was closed is
// such a way: a connection that listens is replaced together with the line beside it.
func broke(err error) bool {
	var e *lockmigrate.Error
	switch {
	case errors.Is(err, lockmigrate.ErrUnknownOutcome):
		return true
	case !errors.As(err, &e) || e.Kind != nil || e.Cause == nil:
		return false
	case errors.Is(err, errClosed), errors.Is(err, topology.ErrClosed), strings.HasSuffix(e.Cause.Error(), "closed pool"):
		return false // for good; redigo's error for it has no name
	}
	return !driver.Refused(err)
}

// pendingUndo is what an attempt may have left on the server.
type pendingUndo struct {
	until   time.Time       // when it has passed at the latest
	settled <-chan struct{} // closed once it is known that nothing is there; nil: that cannot be known
}

func (d *pendingUndo) gone() bool {
	select {
	case <-d.settled:
		return true
	default:
		return !time.Now().Before(d.until)
	}
}

// setbacks are what went wrong during one wait. The zero value is none.
type setbacks struct {
	pause time.Duration
	left  []*pendingUndo
}

// take notes a failed attempt and returns when to make the next one.
func (s *setbacks) take(err error, next retryHint) retryHint {
	s.forget()
	if next.left != nil {
		s.left = append(s.left, next.left)
	}
	if !broke(err) {
		s.pause = 0
		return next
	}
	s.pause = min(max(2*s.pause, firstPause), longestPause)
	return retryHint{after: max(s.pause, next.after), pollOnly: true} // a line that breaks and comes back wakes everybody
}

// forget drops what is gone.
func (s *setbacks) forget() {
	s.left = slices.DeleteFunc(s.left, (*pendingUndo).gone)
}

// end is the error of a wait that is over: err is the last attempt's, cause is why no other follows; nil
// where err itself is why.
func (s *setbacks) end(ctx context.Context, key string, err, cause error) error {
	s.forget()
	if len(s.left) > 0 {
		e := &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrUnknownOutcome, Note: "the reply to an attempt of this wait was lost"}
		for _, left := range s.left {
			if left.until.After(e.Until) {
				e.Until = left.until
			}
		}
		if e.Cause = cause; cause == nil {
			e.Cause = err
		}
		if ctx.Err() != nil {
			e.Cause = context.Cause(ctx)
		}
		return e
	}
	var e *lockmigrate.Error
	switch {
	case cause == nil:
		return err
	case broke(err) && errors.As(err, &e): // what was unknown about it is settled
		return notAcquired(key, errors.Join(cause, e.Cause))
	default:
		return withCause(err, cause)
	}
}
