package redisson_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "orders"

func newLocker(t *testing.T, pool lockmigrate.Pool, opts modern.Options) lockmigrate.Locker {
	t.Helper()
	locker, err := redisson.New(pool, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

// What stands on the key is what RLock writes: one field, "<uuid>:<number>", with the hold count, and a TTL of 30 s. An
// owner's Locks are one hold there, and only the last release deletes the key.
func TestLeasesOfRedissonsFormat(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		locker := newLocker(t, s.Pool(), modern.Options{})
		owner := modern.WithOwner(t.Context(), "me")
		first, err := locker.Acquire(owner, key)
		require.NoError(t, err)
		assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}:1$`, first.Token())
		holds := func() map[string]string {
			fields, err := redis.StringMap(s.Do("HGETALL", key), nil)
			require.NoError(t, err)
			return fields
		}
		assert.Equal(t, map[string]string{first.Token(): "1"}, holds())
		assert.InDelta(t, 29_500, s.Do("PTTL", key), 1_000)
		assert.WithinDuration(t, time.Now().Add(30*time.Second), first.Expiry(), time.Second)
		second, err := locker.TryAcquire(owner, key)
		require.NoError(t, err)
		assert.Equal(t, map[string]string{first.Token(): "1"}, holds())

		_, err = newLocker(t, s.Pool(), modern.Options{}).TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		require.NoError(t, first.Release(t.Context()))
		assert.Equal(t, map[string]string{first.Token(): "1"}, holds())
		require.NoError(t, second.Release(t.Context()))
		assert.Empty(t, holds())
		assert.Zero(t, first.Fence())
	})
}

// TestALostSubscriptionKeepsNobodyFromAFreeKey: the connection that listens is dead and nobody knows. In Redisson's layout
// a waiter subscribes before it asks.
func TestALostSubscriptionKeepsNobodyFromAFreeKey(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("waiter")
		var lost atomic.Int64
		route.Decide = func(words []string) world.Fault {
			return world.Fault{LoseCommand: words[0] == "SUBSCRIBE" && strings.HasPrefix(words[1], "redisson") && lost.Add(1) == 1}
		}
		pool := route.Pool()
		opts := modern.Options{TTL: time.Minute, ReplyTimeout: 200 * time.Millisecond}
		holder, waiter := newLocker(t, s.Pool(), opts), newLocker(t, pool, opts)
		held, err := holder.Acquire(t.Context(), "orders")
		require.NoError(t, err)
		ctx := redistest.Bounded(t, 30*time.Second)
		got := redistest.BeginTurn(ctx, waiter.Acquire, "orders")
		redistest.Await(t, "the subscription is lost", func() bool { return lost.Load() > 0 })
		freed := time.Now()
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, <-got)
		assert.Less(t, time.Since(freed), 5*time.Second)
	})
}

// A release of an inner Lock that arrives late, after it was sent again, leaves the outer one its key.
func TestALateReleaseTakesNoHoldAway(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("owner")
		var late atomic.Bool // the next script is
		route.Decide = func(words []string) (f world.Fault) {
			if words[0] == "EVALSHA" && late.Swap(false) {
				f.LateCommand = 200 * time.Millisecond
			}
			return f
		}
		pool := route.Pool()
		locker := newLocker(t, pool, modern.Options{TTL: time.Minute, ReplyTimeout: 100 * time.Millisecond})
		owner := modern.WithOwner(t.Context(), "owner")
		outer, err := locker.Acquire(owner, key)
		require.NoError(t, err)
		inner, err := locker.Acquire(owner, key)
		require.NoError(t, err)
		late.Store(true)
		require.NoError(t, inner.Release(t.Context()))
		time.Sleep(300 * time.Millisecond) // what was sent has arrived
		assert.NoError(t, outer.Context().Err())
		assert.EqualValues(t, 1, s.Do("EXISTS", key), "the outer Lock is not released")
		late.Store(false)
		require.NoError(t, outer.Release(t.Context()))
		assert.EqualValues(t, 0, s.Do("EXISTS", key))
	})
}

// An owner that was stopped past the deadline comes back, and acquires again before anybody has told it of the loss. It must not get
// what it does not hold any more.
func TestNobodyReentersPastTheDeadline(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		locker := newLocker(t, s.Pool(), modern.Options{TTL: time.Minute})
		var made *lockers.Hold
		redisson.Made(locker, func(h *lockers.Hold) { made = h })
		owner := modern.WithOwner(t.Context(), "owner")
		_, err := locker.TryAcquire(owner, key)
		require.NoError(t, err)
		hold := made
		hold.Lease.Begin(hold.Lease.Began, hold.Lease.Began) // the watch looks at it in some seconds
		_, err = locker.TryAcquire(owner, key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		assert.Equal(t, 1, hold.Count())
	})
}
