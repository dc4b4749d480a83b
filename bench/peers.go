package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/gomodule/redigo/redis"
)

type redsyncClient struct {
	pool    *redis.Pool
	sync    *redsync.Redsync
	options []redsync.Option
}

// openRedsync retries every so often, or at redsync's own random intervals if that is zero.
func openRedsync(every time.Duration) func(addr string) (client, error) {
	return func(addr string) (client, error) {
		pool := poolFor(addr)
		options := []redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(1 << 30)}
		if every > 0 {
			options = append(options, redsync.WithRetryDelay(every))
		}
		return &redsyncClient{pool, redsync.New(redsyncredigo.NewPool(pool)), options}, nil
	}
}

func (c *redsyncClient) Close() { _ = c.pool.Close() }

func (c *redsyncClient) Pair(ctx context.Context, key string) error {
	mutex := c.sync.NewMutex(key, c.options...)
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	_, err := mutex.UnlockContext(ctx)
	return err
}

func (c *redsyncClient) Acquire(ctx context.Context, key string) (func() error, error) {
	mutex := c.sync.NewMutex(key, c.options...)
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error {
		_, err := mutex.UnlockContext(context.WithoutCancel(ctx))
		return err
	}, nil
}

type redislockClient struct {
	redis   *goredis.Client
	locks   *redislock.Client
	options *redislock.Options
}

func openRedislock(addr string) (client, error) {
	rdb := goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: 256})
	return &redislockClient{rdb, redislock.New(rdb), &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)}}, nil
}

func (c *redislockClient) Close() { _ = c.redis.Close() }

func (c *redislockClient) Pair(ctx context.Context, key string) error {
	lock, err := c.locks.Obtain(ctx, key, ttl, c.options)
	if err != nil {
		return err
	}
	return lock.Release(ctx)
}

func (c *redislockClient) Acquire(ctx context.Context, key string) (func() error, error) {
	lock, err := c.locks.Obtain(ctx, key, ttl, c.options)
	if err != nil {
		return nil, err
	}
	return func() error { return lock.Release(context.WithoutCancel(ctx)) }, nil
}

type rueidislockClient struct{ locker rueidislock.Locker }

func openRueidislock(tuned bool) func(addr string) (client, error) {
	return func(addr string) (client, error) {
		option := rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyValidity: ttl}
		if tuned {
			option.KeyMajority = 1 // NoLoopTracking besides makes it hang at 64 goroutines
		}
		locker, err := rueidislock.NewLocker(option)
		return &rueidislockClient{locker}, err
	}
}

func (c *rueidislockClient) Close() { c.locker.Close() }

func (c *rueidislockClient) Pair(ctx context.Context, key string) error {
	_, release, err := c.locker.WithContext(ctx, key)
	if err != nil {
		return err
	}
	release()
	return nil
}

func (c *rueidislockClient) Acquire(ctx context.Context, key string) (func() error, error) {
	// Its release is the cancellation of the context; the wait's end must not be that of the lock.
	held, release, err := c.locker.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	_ = held
	return func() error { release(); return nil }, nil
}
