// Package versions runs every kind of lock on the servers that old and new fleets run on, from Redis 2.8 to 8 and Valkey: on
// each either two processes take turns and never meet, or the first use says what the server lacks and leaves no key.
package versions

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/holders"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

const (
	key = "lock.orders"
	ttl = time.Second // also what a killed holder costs the other one
)

// lock is a kind of lock: how a process takes it, and what it needs of a server.
type lock struct {
	name    string
	effects bool // it writes after it has read the server's clock: Redis 3.2 and later
	maker   holders.Maker
}

var locks = []lock{
	{"legacy-as-dialect", false, old(legacy.ReleaseAsDialect)},
	{"legacy-unexpired", false, old(legacy.ReleaseUnexpired)},
	{"legacy-compare", false, old(legacy.ReleaseCompare)},
	{"stage-legacy", false, bridged(compat.Options{Stage: compat.Legacy})},
	{"bridge", true, bridged(compat.Options{})},
	{"stage-modern", true, bridged(compat.Options{Stage: compat.Modern})},
	{"modern", true, token(modern.Options{})},
	{"modern-fencing", true, token(modern.Options{Fencing: true})},
	{"modern-share", true, token(modern.Options{Share: 20 * time.Millisecond})},
	{"modern-unfair", false, token(modern.Options{Unfair: true})},
	{"modern-unfair-fencing", true, token(modern.Options{Unfair: true, Fencing: true})},
	{"redisson", false, token(modern.Options{Layout: modern.Redisson})},
}

func TestMain(m *testing.M) {
	makers := map[string]holders.Maker{}
	for _, l := range locks {
		makers[l.name] = l.maker
	}
	holders.ServeIfAsked(makers)
	redistest.Main(m, redistest.Redis, redistest.Servers)
}

// acquirer is what the Lockers have in common.
type acquirer[L interface{ Release(context.Context) error }] interface {
	Acquire(ctx context.Context, key string) (L, error)
}

type taker[L interface{ Release(context.Context) error }] struct{ locker acquirer[L] }

func (t taker[L]) Acquire(ctx context.Context, key string) (func(context.Context) error, error) {
	l, err := t.locker.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func old(release legacy.ReleasePolicy) holders.Maker {
	return func(pool *redis.Pool, _ map[string]string) (holders.Taker, error) {
		locker, err := legacy.New(pool, legacy.Options{Lease: ttl, Release: release, Poll: 5 * time.Millisecond})
		return taker[*legacy.Lock]{locker}, err
	}
}

func bridged(opts compat.Options) holders.Maker {
	return func(pool *redis.Pool, _ map[string]string) (holders.Taker, error) {
		opts.TTL, opts.Lease, opts.ShortestLease = ttl, ttl, ttl
		locker, err := compat.New(pool, opts)
		return taker[*compat.Lock]{locker}, err
	}
}

func token(opts modern.Options) holders.Maker {
	return func(pool *redis.Pool, _ map[string]string) (holders.Taker, error) {
		opts.TTL = ttl
		locker, err := modern.New(pool, opts)
		return taker[*modern.Lock]{locker}, err
	}
}

// each runs a test on every server side by side, two at a time.
func each(t *testing.T, test func(t *testing.T, version string, start func(t *testing.T, args ...string) *redistest.Server)) {
	for _, name := range append([]string{""}, redistest.Names()...) {
		version := name
		if name == "" {
			version = "redis-server"
		}
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			test(t, version, func(t *testing.T, args ...string) *redistest.Server {
				if name == "" {
					return redistest.Real(t, args...)
				}
				return redistest.Of(t, name, args...)
			})
		})
	}
}

// Two processes take turns and never meet; where the server cannot run the lock, its first use says so, and no key stays.
func TestLocks(t *testing.T) {
	each(t, func(t *testing.T, version string, start func(*testing.T, ...string) *redistest.Server) {
		for _, l := range locks {
			t.Run(l.name, func(t *testing.T) {
				server := start(t)
				if l.effects && strings.HasPrefix(version, "redis-2.8") {
					refused(t, server, l)
					return
				}
				member := func() *holders.Holder { return holders.StartGo(t, l.name, server.URL()) }
				report := holders.Fleet{
					T: t, Server: server, Key: key, Members: []holders.Member{member, member}, Turns: 60, Each: 1,
					Kills: []int{0}, Hold: time.Millisecond, Limit: time.Minute,
				}.Run()
				assert.Equal(t, 1, report.Inside, redistest.Violated)
				assert.Zero(t, report.Overlaps, redistest.Violated)
				for _, e := range report.Errors {
					// Two old clients that both find a dead one's expiry: the loser's GETSET overwrites the winner's value.
					clobbered := strings.Contains(l.name, "legacy") && strings.Contains(e.Message, "lock lost")
					assert.True(t, clobbered, "%s: %s", e.Op, e.Message)
				}
				t.Log(report)
			})
		}
	})
}

func refused(t *testing.T, server *redistest.Server, l lock) {
	taker, err := l.maker(server.Pool(), nil)
	require.NoError(t, err)
	release, err := taker.Acquire(t.Context(), key)
	if !assert.Error(t, err, "an acquisition that cannot be contended") {
		assert.NoError(t, release(t.Context()))
		return
	}
	assert.Contains(t, err.Error(), "Redis before 3.2")
	assert.EqualValues(t, 0, server.Do("DBSIZE"), "keys left behind")
}
