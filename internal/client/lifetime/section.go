package lifetime

import (
	"context"
	"errors"
	"time"

	"github.com/lockmigrate/lockmigrate"
)

// promptly is how long a release may take when the caller's context is over.
const promptly = 250 * time.Millisecond

var errHurry = errors.New("the context is over, and the release is still without an answer")

// Do acquires the lock of a key and runs work with a context that ends when ctx or the lock does. It releases the lock on every way
// out, panics included. The release may take as long as patience, and no longer than promptly once ctx is over: a caller who does not
// want to wait any more is not kept by a server that does not answer. A release that goes on behind it is an unknown outcome.
//
// The error is work's own; without one, it is the error of the release. A loss is never left out: if the lock was lost before
// it was released, errors.Is(err, ErrLost) holds whatever work returned.
func Do(ctx context.Context, key string, acquire func(context.Context, string) (lockmigrate.Lock, error), patience time.Duration, work func(ctx context.Context) error) (err error) {
	lock, err := acquire(ctx, key)
	if err != nil {
		return err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		bounded, hurry := context.WithCancelCause(bounded)
		defer context.AfterFunc(ctx, func() { time.AfterFunc(promptly, func() { hurry(errHurry) }) })()
		released := lock.Release(bounded)
		switch {
		case err == nil:
			err = released
		case errors.Is(err, lockmigrate.ErrLost):
		case errors.Is(released, lockmigrate.ErrLost):
			err = errors.Join(err, released)
		default: // a release that failed says nothing about a loss before it
			if lost := context.Cause(lock.Context()); errors.Is(lost, lockmigrate.ErrLost) {
				err = errors.Join(err, lost)
			}
		}
	}()
	held, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(lock.Context(), func() { cancel(context.Cause(lock.Context())) })
	defer stop()
	return work(held)
}
