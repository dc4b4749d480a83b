package compat_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// fair are the kinds of lock that wait in the order of their coming.
var fair = []string{"modern", "modern fenced", "bridge"}

// Who can only poll, because the pool is wrapped and cannot dial, gets its turn beside those who are told: the queue
// gives it the key too, and it finds out when it looks.
func TestAWrappedPoolGetsItsTurns(t *testing.T) {
	t.Parallel()
	for _, name := range fair {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			var turns [4]atomic.Int64
			referee := redistest.NewReferee(t)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			done := make(chan struct{}, len(turns))
			for i := range turns {
				var pool lockmigrate.Pool = s.Pool()
				if i == 0 {
					pool = wrapped{s.Pool()}
				}
				acquire := kinds[name].acquirer(t, pool)
				go func() {
					defer func() { done <- struct{}{} }()
					for ctx.Err() == nil {
						k, err := acquire(ctx, "orders")
						if err != nil {
							continue
						}
						referee.Turn(func() { time.Sleep(time.Millisecond) })
						turns[i].Add(1)
						assert.NoError(t, k.Release(context.Background()))
					}
				}()
			}
			for range turns {
				<-done
			}
			t.Logf("polling %d turns; listening %d, %d, %d", turns[0].Load(), turns[1].Load(), turns[2].Load(), turns[3].Load())
			assert.Greater(t, turns[0].Load(), int64(15), "of 4 s, in which it looks 40 times or more")
		})
	}
}

// A pool that has one connection and cannot dial is enough for a lock that is held for several renewals, and for
// others meanwhile: nothing keeps the connection between two commands.
func TestAPoolOfOneConnection(t *testing.T) {
	t.Parallel()
	for _, name := range fair {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			pool := &redis.Pool{MaxActive: 1, Wait: true, DialContext: func(ctx context.Context) (redis.Conn, error) {
				return redis.DialContext(ctx, "tcp", s.Addr)
			}}
			defer pool.Close()
			acquire := kinds[name].acquirer(t, wrapped{pool})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			kept, err := acquire(ctx, "kept")
			require.NoError(t, err)
			for range 20 {
				k, err := acquire(ctx, "other")
				require.NoError(t, err)
				time.Sleep(200 * time.Millisecond)
				require.NoError(t, k.Release(ctx))
			}
			require.NoError(t, kept.Context().Err(), "it was renewed")
			require.NoError(t, kept.Release(ctx))
		})
	}
}

// A waiter that came into the queue before its process listened may be given the key without a word. It looks for that, also
// when the process has come to listen since: else each such grant would cost its claim.
func TestWhoBeganByPollingGoesOn(t *testing.T) {
	t.Parallel()
	const waiters = 9
	for name, of := range map[string]opener{
		"modern": modernOf(modern.Options{TTL: time.Minute}),
		"bridge": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return compat.New(pool, compat.Options{TTL: time.Minute, Lease: time.Minute, ShortestLease: time.Minute, Yield: -1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			first, err := of.acquirer(t, s.Pool())(t.Context(), "orders")
			require.NoError(t, err)
			done := make(chan error, waiters)
			for range waiters {
				var dials atomic.Int32
				pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
					if dials.Add(1) > 1 { // the connection for commands comes first, those that listen come late
						time.Sleep(1200 * time.Millisecond)
					}
					return redis.DialContext(ctx, "tcp", s.Addr)
				}}
				t.Cleanup(func() { _ = pool.Close() })
				acquire := of.acquirer(t, pool)
				go func() {
					k, err := acquire(t.Context(), "orders")
					if err == nil {
						err = k.Release(context.Background())
					}
					done <- err
				}()
			}
			time.Sleep(4 * time.Second) // they wait, and listen by now
			late, released := redistest.NewLateness(t), time.Now()
			require.NoError(t, first.Release(t.Context()))
			for range waiters {
				require.NoError(t, <-done)
			}
			assert.Less(t, time.Since(released), 2500*time.Millisecond+late.Most(), "a claim of the bridge is 3 s")
		})
	}
}
