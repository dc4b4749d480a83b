package modern_test

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/modern"
)

// oldHolder takes the key as an old client does: without a TTL.
func oldHolder(t *testing.T, s *redistest.Server) {
	t.Helper()
	require.EqualValues(t, 1, s.Do("SETNX", key, time.Now().Add(time.Minute).UnixMilli()))
}

// waits begins an acquisition, and returns when so many stand in the server's queue. With watching it
// returns only when the acquisition watches the key.
func waits(t *testing.T, s *redistest.Server, locker lockmigrate.Locker, inLine int, watching bool) <-chan lockmigrate.Lock {
	t.Helper()
	monitor := s.Monitor()
	got := make(chan lockmigrate.Lock, 1)
	go func() {
		lock, err := locker.Acquire(context.Background(), key)
		assert.NoError(t, err)
		got <- lock
	}()
	redistest.Await(t, "a place in the queue", func() bool { return s.Do("ZCARD", queueKey) == int64(inLine) })
	redistest.Await(t, "the watch", func() bool {
		return !watching || slices.ContainsFunc(monitor.Commands(), func(c redistest.Command) bool { return c.Words[0] == "EXISTS" })
	})
	return got
}

const queueKey = "{" + key + "}:queue"

// asked tells which commands took or asked for the key, by their names.
func asked(m *redistest.Monitor) (names []string) {
	for _, c := range m.Commands() {
		if name := c.Words[0]; name == "SET" || name == "EVALSHA" || name == "EVAL" {
			names = append(names, name)
		}
	}
	return names
}

// The first in line takes a key that an old client deletes with one plain SET, leaves the queue behind
// that, and hands the key on in order.
func TestOldClientsDeletionIsOneSetAway(t *testing.T) {
	s := redistest.Real(t)
	one, two := newLocker(t, s.Pool(), modern.Options{}), newLocker(t, s.Pool(), modern.Options{})
	oldHolder(t, s)
	first := waits(t, s, one, 1, true)
	second := waits(t, s, two, 2, false)
	monitor := s.Monitor()
	s.Do("DEL", key)
	lock := <-first
	redistest.Await(t, "the entry's removal", func() bool { return s.Do("ZCARD", queueKey) == int64(1) })
	assert.Equal(t, []string{"SET"}, asked(monitor))
	assert.Equal(t, lock.Token(), s.Value(key))
	assert.InDelta(t, 29_000, s.Do("PTTL", key), 1_000)
	assert.Empty(t, second)

	require.NoError(t, lock.Release(t.Context()))
	next := <-second
	assert.Equal(t, next.Token(), s.Value(key))
	assert.EqualValues(t, 0, s.Do("EXISTS", queueKey))
	require.NoError(t, next.Release(t.Context()))
	assert.EqualValues(t, 0, s.Do("EXISTS", key))
}

// The first in line behind an old client watches the key at once, and not only when it has waited for a while
// as behind its own kind: an old client may work for a millisecond only.
func TestOldClientIsWatchedAtOnce(t *testing.T) {
	s := redistest.Real(t)
	locker := newLocker(t, s.Pool(), modern.Options{})
	shortest := time.Hour
	for range 10 {
		oldHolder(t, s)
		monitor := s.Monitor()
		got := waits(t, s, locker, 1, true)
		shortest = min(shortest, monitor.Watched(t))
		s.Do("DEL", key)
		require.NoError(t, (<-got).Release(t.Context()))
	}
	assert.Less(t, shortest, 5*time.Millisecond, "from the question to the watch")
}

// Whoever is faster than the first in line has the key; the first keeps its place and its watch.
func TestOldClientsDeletionTakenByAnother(t *testing.T) {
	s := redistest.Real(t)
	oldHolder(t, s)
	first := waits(t, s, newLocker(t, s.Pool(), modern.Options{}), 1, true)
	ticket := s.Do("ZSCORE", queueKey, entry(t, s))
	for range 3 {
		monitor := s.Monitor()
		s.Do("GETSET", key, time.Now().Add(time.Minute).UnixMilli()) // the change that the waiter hears of frees nothing
		var names []string
		redistest.Await(t, "a SET and a question", func() bool { names = append(names, asked(monitor)...); return len(names) >= 2 })
		assert.Equal(t, []string{"SET", "EVALSHA"}, names)
	}
	assert.Equal(t, ticket, s.Do("ZSCORE", queueKey, entry(t, s)))
	s.Do("DEL", key)
	require.NoError(t, (<-first).Release(t.Context()))
	assert.EqualValues(t, 0, s.Do("EXISTS", queueKey))
}

// entry is the only one that stands in the queue.
func entry(t *testing.T, s *redistest.Server) string {
	t.Helper()
	all := s.Do("ZRANGE", queueKey, 0, -1).([]any)
	require.Len(t, all, 1)
	return string(all[0].([]byte))
}

// What goes past the script must not go past what the script keeps: fencing tokens, and the share of
// those who only poll. A key that has a TTL is mostly renewed when it changes, and costs one question.
func TestOldClientsDeletionByTheScript(t *testing.T) {
	for name, opts := range map[string]modern.Options{"fenced": {FenceTTL: time.Minute}, "shared": {Yield: 50 * time.Millisecond}, "TTL": {}} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t)
			oldHolder(t, s)
			if name == "TTL" {
				s.Do("PEXPIRE", key, 60_000)
			}
			got := waits(t, s, newLocker(t, s.Pool(), opts), 1, true)
			monitor := s.Monitor()
			s.Do("DEL", key)
			lock := <-got
			assert.Equal(t, []string{"EVALSHA"}, asked(monitor))
			assert.Equal(t, opts.FenceTTL > 0, lock.Fence() > 0)
			require.NoError(t, lock.Release(t.Context()))
		})
	}
}

// The entry's removal does not come through: the release removes it, and hands the key to nobody who is
// not there any more; and it still tells the loss of the lock.
func TestOldClientsDeletionLeavesAnEntry(t *testing.T) {
	for name, stolen := range map[string]bool{"held": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t)
			proxy := redistest.NewProxy(t, s)
			var lost atomic.Int32
			proxy.Before(func(words []string) {
				if words[0] == "ZREM" && lost.Add(1) <= 2 {
					proxy.Cut()
				}
			})
			pool := &redis.Pool{DialContext: redistest.Dialer(proxy.Addr)}
			t.Cleanup(func() { _ = pool.Close() })
			oldHolder(t, s)
			got := waits(t, s, newLocker(t, pool, modern.Options{}), 1, true)
			s.Do("DEL", key)
			lock := <-got
			redistest.Await(t, "both losses", func() bool { return lost.Load() == 2 })
			assert.EqualValues(t, 1, s.Do("ZCARD", queueKey))
			if !stolen {
				require.NoError(t, lock.Release(t.Context()))
				assert.EqualValues(t, 0, s.Do("EXISTS", key, queueKey))
				return
			}
			s.Do("SET", key, "a thief's")
			assert.ErrorIs(t, lock.Release(t.Context()), lockmigrate.ErrLost)
			assert.Equal(t, "a thief's", s.Value(key))
			assert.EqualValues(t, 0, s.Do("EXISTS", queueKey))
		})
	}
}

// A lock that was handed over is held for its TTL too where nobody renews it, and not for the claim.
func TestHandedOverWithoutRenewal(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		opts := modern.Options{TTL: 20 * time.Second, RenewEvery: -1}
		holder, err := newLocker(t, s.Pool(), opts).Acquire(t.Context(), key)
		require.NoError(t, err)
		waiter, got := newLocker(t, s.Pool(), opts), make(chan lockmigrate.Lock, 1)
		go func() {
			lock, err := waiter.Acquire(t.Context(), key)
			assert.NoError(t, err)
			got <- lock
		}()
		redistest.Await(t, "a waiter in line", func() bool {
			return s.Do("EXISTS", "{"+key+"}:queue") == int64(1)
		})
		require.NoError(t, holder.Release(t.Context()))
		lock := <-got
		assert.Greater(t, time.Until(lock.Expiry()), 15*time.Second)
		assert.Greater(t, s.Do("PTTL", key), int64(15_000))
		require.NoError(t, lock.Release(t.Context()))
	})
}

// TestGrantIsNotOverheard: FAILOVER swaps a master and its replica and loses no key. A waiter whose connections survive it
// listens at a replica then, where it hears what the new master publishes and is not counted. The release at the new
// master passes it over; it must not take the key for its own beside the next holder.
func TestGrantIsNotOverheard(t *testing.T) {
	first := redistest.Real(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(first.Addr)
	second := redistest.Real(t, "--repl-diskless-sync-delay", "0", "--replicaof", host+" "+port)
	is := func(s *redistest.Server, role string) bool {
		says, err := redis.Values(s.Try("ROLE"))
		return err == nil && string(says[0].([]byte)) == role && (role == "master" || string(says[3].([]byte)) == "connected")
	}
	redistest.Await(t, "a replica", func() bool { return is(second, "slave") })

	holder, err := newLocker(t, first.Pool(), modern.Options{}).TryAcquire(t.Context(), key)
	require.NoError(t, err)
	waiter := newLocker(t, first.Pool(), modern.Options{})
	modern.SetClaim(waiter, 30*time.Second) // it relies on what it hears in half of that
	ctx, leave := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(ctx, key)
		waited <- err
	}()
	redistest.Await(t, "a waiter in line", func() bool {
		n, _ := redis.Int(second.Try("ZCARD", "{"+key+"}:queue"))
		return n == 1
	})
	first.Do("FAILOVER")
	redistest.Await(t, "the failover", func() bool { return is(second, "master") && is(first, "slave") })

	released, err := redis.Int(second.Try("EVAL", scripts.ModernRelease.Source, 2, key, "{"+key+"}:queue", holder.Token()))
	require.NoError(t, err)
	require.Equal(t, 1, released)
	_, err = newLocker(t, second.Pool(), modern.Options{}).TryAcquire(t.Context(), key)
	require.NoError(t, err)
	select { // its address leads to the replica, which refuses it (READONLY): it goes on waiting
	case err := <-waited:
		t.Fatalf("the waiter has come back, with %v", err)
	case <-time.After(time.Second):
	}
	leave()
	assert.Error(t, <-waited, "the waiter holds what another holds")
}
