package modern_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "orders"

func newLocker(t testing.TB, pool lockmigrate.Pool, opts modern.Options) lockmigrate.Locker {
	t.Helper()
	locker, err := modern.New(pool, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

// ways are the ways of waiting and of sending that every behaviour must hold for.
func ways(t *testing.T, test func(t *testing.T, s *redistest.Server, opts kind)) {
	t.Helper()
	for name, opts := range map[string]kind{
		"queue": {}, "fenced": {FenceTTL: time.Minute}, "unfair": {Unfair: true}, "pooled": {Pooled: true}, "redisson": {Redisson: true},
		"untracked": {Untracked: true, Poll: 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) { test(t, s, opts) })
		})
	}
}

func TestAcquireAndRelease(t *testing.T) {
	ways(t, func(t *testing.T, s *redistest.Server, opts kind) {
		locker := open(t, s, opts)
		lock, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, key, lock.Key())
		if !opts.Redisson {
			assert.Equal(t, lock.Token(), s.Value(key))
			n, err := strconv.ParseInt(lock.Token(), 10, 64)
			require.NoError(t, err, "legacy-safe")
			assert.GreaterOrEqual(t, n, int64(5e18))
		} else {
			assert.EqualValues(t, 1, s.Do("HLEN", key))
		}
		ttl := s.Do("PTTL", key).(int64)
		assert.InDelta(t, 29_000, ttl, 1_000)
		assert.WithinDuration(t, time.Now().Add(30*time.Second), lock.Expiry(), time.Second)
		assert.Equal(t, opts.FenceTTL > 0, lock.Fence() > 0)

		_, err = open(t, s, opts).TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		require.NoError(t, lock.Renew(t.Context()))

		require.NoError(t, lock.Release(t.Context()))
		assert.EqualValues(t, 0, s.Do("EXISTS", key))
		assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrReleased)
		assert.ErrorIs(t, lock.Release(t.Context()), lockmigrate.ErrReleased)
		assert.ErrorIs(t, lock.Renew(t.Context()), lockmigrate.ErrReleased)
	})
}

// The lock excludes, in one process and across Lockers, whatever the way of waiting.
func TestExclusion(t *testing.T) {
	ways(t, func(t *testing.T, s *redistest.Server, opts kind) {
		const lockers, workers = 3, 4
		turns := redistest.Rounds(5, 15)
		referee := redistest.NewReferee(t)
		var all sync.WaitGroup
		for range lockers {
			locker := open(t, s, opts)
			for range workers {
				all.Go(func() {
					var last int64
					for range turns {
						lock, err := locker.Acquire(t.Context(), key)
						if !assert.NoError(t, err) {
							return
						}
						referee.Turn(func() {
							if opts.FenceTTL > 0 {
								assert.Greater(t, lock.Fence(), last)
								last = lock.Fence()
							}
						})
						assert.NoError(t, lock.Release(t.Context()))
					}
				})
			}
		}
		all.Wait()
		assert.EqualValues(t, lockers*workers*turns, referee.Turns())
		require.Eventually(t, func() bool { return s.Do("EXISTS", key, "{"+key+"}:queue") == int64(0) }, 10*time.Second, time.Millisecond)
	})
}

// A context may end at any moment of the first attempt: the error has its cause, also where the server's answer was there before it.
func TestEachMomentOfAnAttemptHasItsCause(t *testing.T) {
	ways(t, func(t *testing.T, s *redistest.Server, opts kind) {
		lock, err := open(t, s, opts).TryAcquire(t.Context(), key)
		require.NoError(t, err)
		locker, reason := open(t, s, opts), errors.New("the caller lost interest")
		for i := range 300 {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Duration(i)*time.Microsecond, func() { cancel(reason) })
			_, err := locker.Acquire(ctx, key)
			require.ErrorIs(t, err, reason, "cancelled after %d µs", i)
		}
		require.NoError(t, lock.Release(t.Context()))
	})
}

// kind is a way to lock that a behaviour must hold for: some options of modern, or modern/redisson, and what the pool can do.
type kind struct {
	TTL, Wait, ReplyTimeout, Poll, FenceTTL time.Duration
	Unfair                                  bool
	Replicas                                int
	Observer                                lockmigrate.Observer

	Redisson  bool
	Pooled    bool // the pool only hands out connections
	Untracked bool // without the right to client tracking
}

// open returns a Locker of a kind over a server.
func open(t testing.TB, s *redistest.Server, k kind) lockmigrate.Locker {
	t.Helper()
	if k.Untracked {
		return openOver(t, s.Untracked(), k)
	}
	return openOver(t, s.Pool(), k)
}

func openOver(t testing.TB, pool lockmigrate.Pool, k kind) lockmigrate.Locker {
	t.Helper()
	if k.Pooled {
		pool = struct{ lockmigrate.Pool }{pool}
	}
	if k.Redisson {
		l, err := redisson.New(pool, modern.Options{TTL: k.TTL, Wait: k.Wait, ReplyTimeout: k.ReplyTimeout, Poll: k.Poll, Observer: k.Observer})
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	return newLocker(t, pool, modern.Options{
		TTL: k.TTL, Wait: k.Wait, ReplyTimeout: k.ReplyTimeout, Poll: k.Poll, FenceTTL: k.FenceTTL, Unfair: k.Unfair, Replicas: k.Replicas,
		Observer: k.Observer,
	})
}
