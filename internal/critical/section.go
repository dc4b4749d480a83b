// Package critical runs work inside a lock, whatever kind of lock it is.
package critical

import (
	"context"
	"time"
)

// Held is a lock that we hold.
type Held interface {
	Context() context.Context // ends when the lock does
	Release(ctx context.Context) error
}

// Section runs work with a context that ends when ctx or the lock does, and gives the lock back on every
// way out, panics included. The release has patience to come through, whatever has become of ctx. The
// error is work's own; without one, that of the release.
func Section(ctx context.Context, lock Held, patience time.Duration, work func(ctx context.Context) error) (err error) {
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
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
