package bench

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type redsyncLock struct{ *redsync.Mutex }

func (l redsyncLock) Release(ctx context.Context) error {
	_, err := l.UnlockContext(ctx)
	return err
}

// openRedsync retries every so often, or at redsync's own random intervals if that is zero.
func openRedsync(every time.Duration) func(addr string) (client, error) {
	return func(addr string) (client, error) {
		pool := poolFor(addr)
		options := []redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(1 << 30)}
		if every > 0 {
			options = append(options, redsync.WithRetryDelay(every))
		}
		locks := redsync.New(redsyncredigo.NewPool(pool))
		return clientOf(func(ctx context.Context, key string) (redsyncLock, error) {
			mutex := locks.NewMutex(key, options...)
			return redsyncLock{mutex}, mutex.LockContext(ctx)
		}, pool.Close), nil
	}
}

func openRedislock(addr string) (client, error) {
	rdb := goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: 256})
	locks, options := redislock.New(rdb), &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)}
	return clientOf(func(ctx context.Context, key string) (*redislock.Lock, error) {
		return locks.Obtain(ctx, key, ttl, options)
	}, rdb.Close), nil
}

// rueidisLock ends the lock's context, which is rueidislock's release.
type rueidisLock context.CancelFunc

func (l rueidisLock) Release(context.Context) error { l(); return nil }

func openRueidislock(tuned bool) func(addr string) (client, error) {
	return func(addr string) (client, error) {
		option := rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyValidity: ttl}
		if tuned {
			option.KeyMajority = 1 // NoLoopTracking besides makes it hang at 64 goroutines
		}
		locker, err := rueidislock.NewLocker(option)
		return clientOf(func(ctx context.Context, key string) (rueidisLock, error) {
			_, release, err := locker.WithContext(ctx, key)
			return rueidisLock(release), err
		}, func() error { locker.Close(); return nil }), err
	}
}
