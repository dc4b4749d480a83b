package modern_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

func TestTokens(t *testing.T) {
	locker := newLocker(t, redistest.Mini(t).Pool(), modern.Options{})
	seen := map[string]bool{}
	for range 500 {
		lock, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		assert.Regexp(t, `^[5-9]\d{18}$`, lock.Token())
		assert.False(t, seen[lock.Token()], "never twice")
		seen[lock.Token()] = true
		n, err := strconv.ParseInt(lock.Token(), 10, 64)
		require.NoError(t, err)
		assert.Less(t, n, int64(9.2e18))
		require.NoError(t, lock.Release(t.Context()))
	}
}

// Fencing tokens rise by acquisition, by hand-over and by asking, and go on rising when the counter has
// expired.
func TestFencingTokensRise(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		lockers := []lockmigrate.Locker{newLocker(t, s.Pool(), modern.Options{FenceTTL: time.Minute}), newLocker(t, s.Pool(), modern.Options{FenceTTL: time.Minute})}
		var last int64
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for range 20 {
					lock, err := lockers[i%2].Acquire(t.Context(), key)
					if !assert.NoError(t, err) {
						return
					}
					assert.Greater(t, lock.Fence(), last)
					last = lock.Fence()
					if last%5 == 0 {
						s.Do("DEL", "{"+key+"}:fence") // as if it had expired
					}
					assert.NoError(t, lock.Release(t.Context()))
				}
			})
		}
		all.Wait()
		assert.NotEqualValues(t, -1, s.Do("PTTL", "{"+key+"}:fence"), "it leaks no key")
	})
}

// TestFencingTokensWithoutTheirCounter: the server that grants the second lock has never heard of the first one's counter. Its
// clock alone decides, and a clock that is far behind decides wrongly: docs/guarantees.md says so.
func TestFencingTokensWithoutTheirCounter(t *testing.T) {
	s := redistest.NewClocked(t)
	locker := newLocker(t, s.Pool(), modern.Options{FenceTTL: time.Minute})
	draw := func() int64 {
		lock, err := locker.Acquire(t.Context(), key)
		require.NoError(t, err)
		defer func() { require.NoError(t, lock.Release(t.Context())) }()
		return lock.Fence()
	}
	first := draw()
	s.Do("FLUSHALL")
	second := draw()
	assert.Greater(t, second, first, "the clocks agree")

	s.Step(-time.Hour)
	third := draw()
	assert.Greater(t, third, second, "the counter is there")
	s.Do("FLUSHALL")
	assert.Less(t, draw(), third, "no counter, and a clock that is behind")
}

// A waiter that wants a fencing token gets one though the holder that hands over knows of none.
func TestFencingBesideOthers(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		plain, fenced := newLocker(t, s.Pool(), modern.Options{}), newLocker(t, s.Pool(), modern.Options{FenceTTL: time.Minute})
		lock, err := plain.Acquire(t.Context(), key)
		require.NoError(t, err)
		got := make(chan int64, 1)
		go func() {
			lock, err := fenced.Acquire(t.Context(), key)
			assert.NoError(t, err)
			got <- lock.Fence()
		}()
		require.Eventually(t, func() bool { return s.Do("EXISTS", "{"+key+"}:queue") == int64(1) }, time.Minute, time.Millisecond)
		require.NoError(t, lock.Release(t.Context()))
		assert.Positive(t, <-got)
	})
}

func TestOwnerReenters(t *testing.T) {
	for name, opts := range map[string]kind{"token": {}, "redisson": {Redisson: true}} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				locker := open(t, s, opts)
				mine := modern.WithOwner(t.Context(), "me")
				first, err := locker.Acquire(mine, key)
				require.NoError(t, err)
				second, err := locker.TryAcquire(mine, key)
				require.NoError(t, err)
				assert.Equal(t, first.Token(), second.Token())

				_, err = locker.TryAcquire(modern.WithOwner(t.Context(), "another"), key)
				assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
				_, err = locker.TryAcquire(t.Context(), key)
				assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)

				require.NoError(t, second.Release(t.Context()))
				assert.ErrorIs(t, second.Release(t.Context()), lockmigrate.ErrReleased, "counted off once")
				assert.NoError(t, first.Context().Err(), "still held")
				assert.EqualValues(t, 1, s.Do("EXISTS", key))
				require.NoError(t, first.Release(t.Context()))
				assert.EqualValues(t, 0, s.Do("EXISTS", key))

				third, err := locker.TryAcquire(mine, key)
				require.NoError(t, err, "afresh")
				s.Do("DEL", key)
				assert.ErrorIs(t, third.Renew(t.Context()), lockmigrate.ErrLost)
				fourth, err := locker.TryAcquire(mine, key)
				require.NoError(t, err, "what is lost is not held")
				require.NoError(t, fourth.Release(t.Context()))
				assert.EqualValues(t, 0, s.Do("EXISTS", key), "it was the only one of its hold")
			})
		})
	}
}

// TestTheEmptyIDIsNoOwner: a caller who has no id would share it with all others who have none.
func TestTheEmptyIDIsNoOwner(t *testing.T) {
	locker := newLocker(t, redistest.Mini(t).Pool(), modern.Options{})
	ctx := modern.WithOwner(t.Context(), "")
	_, err := locker.TryAcquire(ctx, key)
	require.NoError(t, err)
	_, err = locker.TryAcquire(ctx, key)
	assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
}

func TestObserverHearsALocksLife(t *testing.T) {
	s := redistest.Mini(t)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var events []lockmigrate.Event
	var mu sync.Mutex
	logs := lockmigrate.LogTo(logger)
	opts := modern.Options{Observer: func(e lockmigrate.Event) {
		logs(e)
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}}
	locker := newLocker(t, s.Pool(), opts)
	lock, err := locker.Acquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, lock.Renew(t.Context()))
	_, err = locker.TryAcquire(t.Context(), key)
	require.Error(t, err)
	require.NoError(t, lock.Release(t.Context()))
	lock, err = locker.Acquire(t.Context(), key)
	require.NoError(t, err)
	s.Do("DEL", key)
	require.Error(t, lock.Release(t.Context()))
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, string(e.Kind))
		assert.Equal(t, key, e.Key)
	}
	assert.Equal(t, []string{"acquired", "renewed", "waited", "released", "acquired", "lost"}, kinds)
	assert.Contains(t, log.String(), `level=WARN msg="lock lost" op=hold key=orders`)
}

// Replicas: an acquisition counts only when enough of them have it.
func TestReplicas(t *testing.T) {
	master := redistest.Real(t)
	_, port, err := net.SplitHostPort(master.Addr)
	require.NoError(t, err)
	opts := modern.Options{TTL: 3 * time.Second, Replicas: 1}
	locker := newLocker(t, master.Pool(), opts)
	_, err = locker.TryAcquire(t.Context(), key)
	assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
	assert.ErrorContains(t, err, "0 of 1 replicas")
	assert.EqualValues(t, 0, master.Do("EXISTS", key), "given back")

	replica := redistest.Real(t, "--replicaof", "127.0.0.1 "+port)
	require.Eventually(t, func() bool {
		return strings.Contains(string(replica.Do("INFO", "replication").([]byte)), "master_link_status:up")
	}, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { return master.Do("WAIT", 1, 100) == int64(1) }, time.Minute, 10*time.Millisecond) // it answers the master too
	// For an eighth of the TTL a replica is waited for, and the machine may be busy.
	opts.TTL = 30 * time.Second
	locker = newLocker(t, master.Pool(), opts)
	lock, err := locker.Acquire(t.Context(), key)
	require.NoError(t, err)
	assert.Equal(t, lock.Token(), replica.Value(key), "it is there already")
	waiting := make(chan error, 1)
	go func() { waiting <- locker.Do(t.Context(), key, func(context.Context) error { return nil }) }()
	require.Eventually(t, func() bool { return master.Do("EXISTS", "{"+key+"}:queue") == int64(1) }, time.Minute, time.Millisecond)
	require.NoError(t, lock.Release(t.Context()))
	assert.NoError(t, <-waiting, "also when it was handed over")
}

// A client without the right to the queue's key or channel is told what it can do.
func TestMissingRightsAreExplained(t *testing.T) {
	s := redistest.Real(t)
	s.Do("ACL", "SETUSER", "app", "on", ">pw", "~orders*", "resetchannels", "+@all")
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.Addr, redis.DialUsername("app"), redis.DialPassword("pw"))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	holder := newLocker(t, s.Pool(), modern.Options{TTL: 400 * time.Millisecond, RenewEvery: -1})
	_, err := holder.Acquire(t.Context(), key)
	require.NoError(t, err)
	_, err = newLocker(t, pool, modern.Options{}).Acquire(t.Context(), key)
	require.Error(t, err)
	assert.NotErrorIs(t, err, lockmigrate.ErrNotAcquired)
	assert.ErrorContains(t, err, "Options.Unfair")

	unfair := newLocker(t, pool, modern.Options{Unfair: true, Poll: 20 * time.Millisecond})
	lock, err := unfair.Acquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))
}

// With Yield, a client that only polls gets in though the waiters hand the key on to each other.
func TestYieldLetsPollersIn(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		locker := newLocker(t, s.Pool(), modern.Options{Yield: 20 * time.Millisecond, Poll: 5 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					err := locker.Do(ctx, key, func(context.Context) error { return nil })
					if err != nil {
						assert.ErrorIs(t, err, context.Canceled)
					}
				}
			})
		}
		poller := s.Conn()
		got := 0
		require.Eventually(t, func() bool {
			if reply, err := poller.Do("SET", key, "poller", "NX", "PX", 1000); err == nil && reply != nil {
				got++
				_, err := poller.Do("DEL", key)
				require.NoError(t, err)
			}
			return got >= 5
		}, time.Minute, 5*time.Millisecond)
		cancel()
		all.Wait()
	})
}

func TestForeignTypeIsHeld(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s.Do("HSET", key, "uuid:1", 1)
		locker := newLocker(t, s.Pool(), modern.Options{})
		_, err := locker.TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		_, err = locker.Acquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrForeignFormat)
		s.Do("SET", "other", "text")
		_, err = open(t, s, kind{Redisson: true}).Acquire(t.Context(), "other")
		assert.ErrorIs(t, err, lockmigrate.ErrForeignFormat)
	})
}

// A Dial that returns neither a connection nor an error is an error of each attempt, and no panic of the library's.
func TestADialThatReturnsNothing(t *testing.T) {
	l := newLocker(t, &redis.Pool{Dial: func() (redis.Conn, error) { return nil, nil }}, modern.Options{ReplyTimeout: 50 * time.Millisecond})
	_, err := l.TryAcquire(t.Context(), key)
	assert.ErrorContains(t, err, "neither a connection nor an error")
	ctx := redistest.Bounded(t, 300*time.Millisecond)
	_, err = l.Acquire(ctx, key)
	assert.Error(t, err)
}

// TestALockerForgetsItsOwners: what an owner held and has released or lost keeps no memory.
func TestALockerForgetsItsOwners(t *testing.T) {
	s := redistest.Mini(t)
	locker := newLocker(t, s.Pool(), modern.Options{})
	for i := range 10 {
		lock, err := locker.TryAcquire(modern.WithOwner(t.Context(), fmt.Sprint("request ", i)), key)
		require.NoError(t, err)
		assert.Equal(t, 1, modern.Owned(locker))
		if i%2 == 0 {
			require.NoError(t, lock.Release(t.Context()))
		} else {
			s.Do("DEL", key)
			require.ErrorIs(t, lock.Renew(t.Context()), lockmigrate.ErrLost)
		}
	}
	assert.Zero(t, modern.Owned(locker))
}
