package bench

import (
	"context"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type redsyncLock struct{ *redsync.Mutex }

func (l redsyncLock) Release(ctx context.Context) error {
	_, err := l.UnlockContext(ctx)
	return err
}

func (l redsyncLock) Extend(ctx context.Context) error {
	_, err := l.ExtendContext(ctx)
	return err
}

// redsyncOver locks over redigo's pool.
func redsyncOver(pool *redis.Pool, options ...redsync.Option) func(context.Context, string) (redsyncLock, error) {
	locks := redsync.New(redsyncredigo.NewPool(pool))
	return func(ctx context.Context, key string) (redsyncLock, error) {
		mutex := locks.NewMutex(key, options...)
		return redsyncLock{mutex}, mutex.LockContext(ctx)
	}
}

// openRedsync retries every so often, or at redsync's own random intervals if that is zero.
func openRedsync(every time.Duration) func(t testing.TB, addr string) client {
	return func(t testing.TB, addr string) client {
		pool := poolFor(addr)
		options := []redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(1 << 30)}
		if every > 0 {
			options = append(options, redsync.WithRetryDelay(every))
		}
		return clientOf(t, redsyncOver(pool, options...), pool.Close)
	}
}

// redislockOver waits if it retries.
func redislockOver(rdb *goredis.Client, ttl time.Duration, retries bool) func(context.Context, string) (*redislock.Lock, error) {
	locks, options := redislock.New(rdb), &redislock.Options{}
	if retries {
		options.RetryStrategy = redislock.LinearBackoff(5 * time.Millisecond)
	}
	return func(ctx context.Context, key string) (*redislock.Lock, error) {
		return locks.Obtain(ctx, key, ttl, options)
	}
}

func openRedislock(t testing.TB, addr string) client {
	rdb := goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: 256})
	return clientOf(t, redislockOver(rdb, ttl, true), rdb.Close)
}

// rueidisLock ends the lock's context, which is rueidislock's release.
type rueidisLock struct {
	inside context.Context
	end    context.CancelFunc
}

func (l rueidisLock) Release(context.Context) error { l.end(); return nil }

func rueidislockOver(addr string, ttl time.Duration, tuned bool) (rueidislock.Locker, error) {
	option := rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyValidity: ttl}
	if tuned {
		option.KeyMajority = 1 // NoLoopTracking besides makes it hang at 64 goroutines
	}
	return rueidislock.NewLocker(option)
}

func openRueidislock(tuned bool) func(t testing.TB, addr string) client {
	return func(t testing.TB, addr string) client {
		locker, err := rueidislockOver(addr, ttl, tuned)
		check(t, err)
		return clientOf(t, func(ctx context.Context, key string) (rueidisLock, error) {
			inside, release, err := locker.WithContext(ctx, key)
			return rueidisLock{inside, release}, err
		}, func() error { locker.Close(); return nil })
	}
}
