package fleets

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
)

// A Redisson waiter wakes on our release and ours on its, far under every timer: RLock's is the holder's
// TTL, ours too. The channel's name depends on whether the key has a brace, and on a cluster it may be a sharded one.
func TestRedissonWakesAndIsWoken(t *testing.T) {
	t.Parallel()
	keys := []string{"orders", "{orders}:7", "orders:{7}", "{7}"}
	t.Run("one server", func(t *testing.T) {
		server := redistest.Real(t)
		java := holders.Start(t, holders.Redisson, server.URL(), holders.Arg("lease", 30*time.Second))
		for _, key := range append(keys, "orders{7", "orders}7", "{}orders") {
			t.Run(key, func(t *testing.T) { wakesAndIsWoken(t, server.Pool(), []*redistest.Server{server}, java, key, 10) })
		}
	})
	t.Run("a cluster", func(t *testing.T) {
		servers := redistest.NewCluster(t, 3, 0)
		pool, err := cluster.New(cluster.Options{Addrs: servers.Addrs()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = pool.Close() })
		java := holders.Start(t, holders.Redisson, servers.Masters[0].URL(),
			holders.Arg("lease", 30*time.Second), holders.Arg("cluster", strings.Join(servers.Addrs(), ",")))
		for _, key := range keys {
			t.Run(key, func(t *testing.T) { wakesAndIsWoken(t, pool, servers.Masters, java, key, 3) })
		}
	})
}

func wakesAndIsWoken(t *testing.T, pool lockmigrate.Pool, servers []*redistest.Server, java *holders.Holder, key string, rounds int) {
	locker, err := redisson.New(pool, modern.Options{Poll: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	subscribed := func() bool {
		for _, s := range servers {
			for _, kind := range []string{"CHANNELS", "SHARDCHANNELS"} {
				names, _ := redis.Strings(s.Try("PUBSUB", kind, "redisson_lock__channel*"))
				if len(names) > 0 {
					return true
				}
			}
		}
		return false
	}
	var ours, theirs []time.Duration
	late := redistest.NewLateness(t)
	for range rounds {
		lock, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		java.Send("acquire %s", key)
		require.Eventually(t, subscribed, time.Minute, time.Millisecond)
		time.Sleep(20 * time.Millisecond) // RLock tries once more after it has subscribed
		released := time.Now()
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, "acquired", java.Next(time.Minute).Event)
		theirs = append(theirs, time.Since(released)-late.Most())

		_, err = locker.TryAcquire(t.Context(), key)
		require.ErrorIs(t, err, lockmigrate.ErrNotAcquired, "RLock excludes us")
		// Java's own subscription ends some time after it has the lock.
		require.Eventually(t, func() bool { return !subscribed() }, time.Minute, time.Millisecond)
		got := make(chan time.Time, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		go func() {
			lock, err := locker.Acquire(ctx, key)
			got <- time.Now()
			if assert.NoError(t, err) {
				assert.NoError(t, lock.Release(t.Context()))
			}
		}()
		require.Eventually(t, subscribed, time.Minute, time.Millisecond)
		time.Sleep(20 * time.Millisecond)
		released = time.Now()
		require.Equal(t, "released", java.Do("release %s", key).Event)
		ours = append(ours, (<-got).Sub(released)-late.Most())
		cancel()
		require.Eventually(t, func() bool {
			lock, err := locker.TryAcquire(t.Context(), key)
			return err == nil && assert.NoError(t, lock.Release(t.Context()))
		}, time.Minute, time.Millisecond)
	}
	t.Logf("beyond the machine's lateness, RLock woke after %v, ours after %v", theirs, ours)
	for i := range ours {
		assert.Less(t, ours[i], 500*time.Millisecond)
		assert.Less(t, theirs[i], 500*time.Millisecond)
	}
}

// TestBridgeWaiterWakesAtAJavaDelete (G8): from the server's execution of an unmodified Java client's DEL to the return of Acquire
// in a waiting Go process, on a server with client tracking. A machine that is busy with other suites wakes every process late.
func TestBridgeWaiterWakesAtAJavaDelete(t *testing.T) {
	server := redistest.Real(t)
	java := holders.Start(t, holders.JedisLock, server.URL(), holders.Arg("lease", time.Minute))
	var mode redistest.Mode
	l := locker(t, server, compat.Options{ShortestLease: 10 * time.Second, Observer: mode.Observe})
	monitor, late := server.Monitor(), redistest.NewLateness(t)
	var took, beyond []time.Duration // beyond what timers were late by at that moment
	const rounds = 40
	for range rounds {
		require.Equal(t, "acquired", java.Do("acquire orders").Event)
		var lock lockmigrate.Lock
		var at time.Time
		done := make(chan error, 1)
		go func() {
			var err error
			lock, err = l.Acquire(t.Context(), "orders")
			at = time.Now()
			done <- err
		}()
		redistest.Await(t, "a waiter that tracks the key", func() bool { return mode.Is() == "tracking" })
		monitor.Watched(t)
		require.Equal(t, "released", java.Do("release orders").Event)
		require.NoError(t, <-done)
		commands := monitor.Commands()
		deleted := slices.IndexFunc(commands, func(c redistest.Command) bool { return c.Words[0] == "DEL" && c.Words[1] == "orders" })
		require.GreaterOrEqual(t, deleted, 0, "MONITOR does not tell of the DEL")
		took = append(took, at.Sub(commands[deleted].At))
		beyond = append(beyond, took[len(took)-1]-late.Most())
		require.NoError(t, lock.Release(t.Context()))
	}
	slices.Sort(took)
	slices.Sort(beyond)
	t.Logf("from DEL to the holder's start: median %v, p90 %v, worst %v of %d", took[rounds/2], took[rounds*9/10], took[rounds-1], rounds)
	assert.LessOrEqual(t, beyond[rounds/2], 5*time.Millisecond, "the median")
}
