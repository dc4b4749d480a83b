package soak

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

// The Go members of a soak.
const (
	follower  = "compat"   // compat.Locker, follows the namespace's stage
	token     = "modern"   // package modern, in line on the server
	redissons = "redisson" // package modern/redisson
	planted   = "planted"  // the bug
)

// wait bounds an attempt, so that a member whose key is out of reach turns to another.
const wait = 5 * time.Second

var makers = map[string]holders.Maker{
	follower: func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
		return over(pool, args, func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return compat.New(pool, compat.Options{
				Namespace: args["namespace"], Member: args["id"], Dialect: legacy.Dialect{Name: args["dialect"]}, TTL: ttl, Lease: lease, ShortestLease: lease,
				ClockLag: 100 * time.Millisecond, CommandDelay: delay, ReplyTimeout: ttl / 2, Wait: wait,
			})
		})
	},
	token: func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
		return over(pool, args, func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return modern.New(pool, modern.Options{TTL: ttl, ReplyTimeout: ttl / 2, FenceTTL: time.Minute, Yield: 20 * time.Millisecond, Wait: wait})
		})
	},
	redissons: func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
		return over(pool, args, func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return redisson.New(pool, modern.Options{TTL: ttl, ReplyTimeout: ttl / 2, Wait: wait})
		})
	},
	planted: func(pool *redis.Pool, _ map[string]string) (holders.Taker, error) { return bug{pool}, nil },
}

// over makes a member's lock over a pool of its topology.
func over(single *redis.Pool, args map[string]string, open func(lockmigrate.Pool) (lockmigrate.Locker, error)) (holders.Taker, error) {
	pool, err := poolOf(single, args)
	if err != nil {
		return nil, err
	}
	return holders.Of(open(pool))
}

// pool is one that can be closed.
type pool interface {
	lockmigrate.Pool
	Close() error
}

// poolOf connects as a service on this topology does.
func poolOf(single *redis.Pool, args map[string]string) (pool, error) {
	switch {
	case args["sentinels"] != "":
		return sentinel.New(sentinel.Options{Addrs: strings.Split(args["sentinels"], ","), Master: args["master"]})
	case args["cluster"] != "":
		return cluster.New(cluster.Options{Addrs: strings.Split(args["cluster"], ",")})
	}
	return single, nil
}

// bug is what the soak must find: it takes the key as others do, does not renew, overruns, and deletes
// what may be another's.
type bug struct{ pool *redis.Pool }

func (b bug) Acquire(ctx context.Context, key string) (holders.Held, error) {
	for {
		_, err := redis.String(b.do("SET", key, "6000000000000000001", "NX", "PX", 100))
		if err == nil {
			return holders.Held{Release: func(context.Context) error {
				_, err := b.do("DEL", key)
				return err
			}}, nil
		}
		if !errors.Is(err, redis.ErrNil) {
			return holders.Held{}, err
		}
		time.Sleep(2 * time.Millisecond) // the bug's poll
	}
}

func (b bug) do(name string, args ...any) (any, error) {
	conn := b.pool.Get()
	defer conn.Close()
	return conn.Do(name, args...)
}

func dialectOf(old string) legacy.Dialect {
	if old == "python" {
		return legacy.Dialect{Name: "redispy-float"}
	}
	return legacy.Dialect{Name: "jedis-ms"}
}
