// Package critical runs work inside a lock, whatever kind of lock it is.
package critical

import (
	"context"
	"errors"
	"time"
)

// promptly is how long a release may take when the caller's context is over.
const promptly = 250 * time.Millisecond

var errHurry = errors.New("the context is over, and the release is still without an answer")

// Held is a lock that we hold.
type Held interface {
	Context() context.Context // ends when the lock does
	Release(ctx context.Context) error
}

// Section runs work with a context that ends when ctx or the lock does, and gives the lock back on every
// way out, panics included. The release has patience to come through, but once ctx is over no more than promptly: a
// caller who does not want to wait any more is not kept by a server that does not answer. What goes on behind it is
// told as an unknown outcome. The error is work's own; without one, that of the release.
func Section(ctx context.Context, lock Held, patience time.Duration, work func(ctx context.Context) error) (err error) {
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		bounded, hurry := context.WithCancelCause(bounded)
		defer context.AfterFunc(ctx, func() { time.AfterFunc(promptly, func() { hurry(errHurry) }) })()
		if released := lock.Release(bounded); err == nil {
			err = released
		}
	}()
	held, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(lock.Context(), func() { cancel(context.Cause(lock.Context())) })
	defer stop()
	return work(held)
}
