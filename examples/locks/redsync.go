package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
)

// Redsync is a half of redsync's mutexes. Nothing of redsync tells of a loss: the TTL bounds it. Give the connections of its pools timeouts, since not
// all of its adapters heed a context.
func Redsync(name string, rs *redsync.Redsync, ttl time.Duration, options ...redsync.Option) lockmigrate.Locker {
	take := func(ctx context.Context, key string, tries int) (*redsync.Mutex, error) {
		m := rs.NewMutex(key, append(slices.Clone(options), redsync.WithExpiry(ttl), redsync.WithTries(tries))...)
		return m, m.LockContext(ctx)
	}
	return handover.Wrap(name, handover.Funcs[*redsync.Mutex]{
		Acquire: func(ctx context.Context, key string) (*redsync.Mutex, error) { return take(ctx, key, 1<<30) },
		TryAcquire: func(ctx context.Context, key string) (*redsync.Mutex, error) {
			m, err := take(ctx, key, 1)
			return m, taken(err, lockmigrate.ErrNotAcquired)
		},
		Extend: func(ctx context.Context, m *redsync.Mutex) error {
			_, err := m.ExtendContext(ctx)
			return taken(err, lockmigrate.ErrLost)
		},
		Release: func(ctx context.Context, m *redsync.Mutex) error {
			_, err := m.UnlockContext(ctx)
			return taken(err, lockmigrate.ErrLost)
		},
		TTL: ttl,
	})
}

// taken adds what it means that another has the lock, or that nobody has it any more.
func taken(err, means error) error {
	var others *redsync.ErrTaken
	if errors.As(err, &others) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return fmt.Errorf("%w: %w", means, err)
	}
	return err
}
