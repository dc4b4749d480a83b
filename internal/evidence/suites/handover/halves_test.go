// Package handover is the evidence for package handover on real servers: the examples of Wrap, and fleets of processes that move from one lock to
// another while they are killed, stopped and cut off.
package handover

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/examples/locks"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// half makes a lock on the server of an address, as one process has it, and says how it ends.
type half func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error)

// poll is how often those ask that nobody wakes.
const poll = 10 * time.Millisecond

var halves = map[string]half{
	"legacy": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return legacy.New(pool, legacy.Options{Lease: ttl, Poll: poll, ReplyTimeout: ttl / 3})
	}),
	"compat": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return compat.New(pool, compat.Options{TTL: ttl, FenceTTL: time.Hour, ReplyTimeout: ttl / 3})
	}),
	"modern": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return modern.New(pool, modern.Options{TTL: ttl, FenceTTL: time.Hour, ReplyTimeout: ttl / 3})
	}),
	"redisson": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return redisson.New(pool, modern.Options{TTL: ttl, ReplyTimeout: ttl / 3})
	}),
	"redsync": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return locks.Redsync("redsync", redsync.New(redsyncredigo.NewPool(pool)), ttl, redsync.WithRetryDelay(poll)), nil
	}),
	"redislock": func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		client := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
		return locks.Redislock("redislock", redislock.New(client), ttl, poll), func() { _ = client.Close() }, nil
	},
	"rueidislock": func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyPrefix: "rl", KeyMajority: 1, FallbackSETPX: true, KeyValidity: ttl, ExtendInterval: ttl / 4,
		})
		if err != nil {
			return nil, nil, err
		}
		return locks.Rueidislock("rueidislock", locker, "rl", ttl), locker.Close, nil
	},
	"postgres": func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		return locks.Postgres("postgres", postgresConfig(addr), ttl), func() {}, nil
	},
	"etcd": func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		client := etcdClient(addr)
		return locks.Etcd("etcd", client, ttl), func() { _ = client.Close() }, nil
	},
}

func ours(make func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error)) half {
	return func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		pool := poolOf(addr, ttl/3)
		l, err := make(pool, ttl)
		return l, func() { _ = pool.Close() }, err
	}
}

// poolOf has a bound on every reply: redsync's adapter for redigo has none.
func poolOf(addr string, reply time.Duration) *redis.Pool {
	return &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialConnectTimeout(reply), redis.DialReadTimeout(reply), redis.DialWriteTimeout(reply))
	}}
}

func TestMain(m *testing.M) {
	if text := os.Getenv(memberOf); text != "" {
		serve(text)
		return
	}
	redistest.Main(m, redistest.Redis)
}
