package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
)

// Redislock is a half of the locks of bsm/redislock, which is asked for every poll. Nothing of redislock tells of a loss: the TTL bounds it.
func Redislock(name string, client *redislock.Client, ttl, poll time.Duration) lockmigrate.Locker {
	refused := func(err, means error) error {
		if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, redislock.ErrLockNotHeld) {
			return fmt.Errorf("%w: %w", means, err)
		}
		return err
	}
	return handover.Wrap(name, handover.Funcs[*redislock.Lock]{
		Acquire: func(ctx context.Context, key string) (*redislock.Lock, error) {
			for { // redislock itself gives up after the TTL where ctx has no deadline
				lock, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)})
				if !errors.Is(err, redislock.ErrNotObtained) || ctx.Err() != nil {
					return lock, err
				}
			}
		},
		TryAcquire: func(ctx context.Context, key string) (*redislock.Lock, error) {
			lock, err := client.Obtain(ctx, key, ttl, nil)
			return lock, refused(err, lockmigrate.ErrNotAcquired)
		},
		Extend: func(ctx context.Context, lock *redislock.Lock) error {
			return refused(lock.Refresh(ctx, ttl, nil), lockmigrate.ErrLost)
		},
		Release: func(ctx context.Context, lock *redislock.Lock) error {
			return refused(lock.Release(ctx), lockmigrate.ErrLost)
		},
		TTL: ttl,
	})
}
