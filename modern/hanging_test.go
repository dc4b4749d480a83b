package modern_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// New connections hang while those that are there work: the waiters wait for that once, and not one after the other.
func TestWaitersBesideADialThatHangs(t *testing.T) {
	const waiters, turns = 4, 15
	s := redistest.Real(t)
	route := redistest.NewRoute(s.Addr)
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.Addr, redis.DialContextFunc(route.Dial))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	locker := newLocker(t, pool, modern.Options{ReplyTimeout: 20 * time.Second})
	do := func() error {
		return locker.Do(t.Context(), key, func(context.Context) error { return nil })
	}
	require.NoError(t, do())
	route.Refuse(true)
	began := time.Now()
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() {
			for range turns {
				assert.NoError(t, do())
			}
		})
	}
	all.Wait()
	assert.Less(t, time.Since(began), 6*time.Second)
}

// A server that restarts ends no wait, for any kind of waiter: the connections are made again, and the first waiter then
// gets the lock.
func TestWaitersOutliveARestart(t *testing.T) {
	for name, opts := range map[string]kind{
		"queue": {}, "unfair": {Unfair: true}, "redisson": {Redisson: true}, "pooled": {Pooled: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			holder := open(t, s, opts)
			_, err := holder.Acquire(t.Context(), key)
			require.NoError(t, err)
			var mode redistest.Mode
			opts.Observer = mode.Observe
			waiter := open(t, s, opts)
			const n = 3
			done := make(chan error, n)
			for range n {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					k, err := waiter.Acquire(ctx, key)
					if err == nil {
						err = k.Release(ctx)
					}
					done <- err
				}()
			}
			redistest.Await(t, "they wait", 10*time.Second, func() bool { return mode.Is() != "idle" })
			time.Sleep(500 * time.Millisecond) // a first attempt that is under way may end in an error
			s.Kill()
			time.Sleep(500 * time.Millisecond) // it is away for so long
			s.Start()
			for range n {
				assert.NoError(t, <-done)
			}
		})
	}
}

// Options.Wait bounds all of an Acquire, also the first attempt, and what follows an acquisition.
func TestWaitBoundsTheWholeAcquire(t *testing.T) {
	for name, opts := range map[string]kind{
		"queue": {}, "unfair": {Unfair: true}, "redisson": {Redisson: true}, "pooled": {Pooled: true},
		"replicas": {Replicas: 1, TTL: 27 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts.Wait, opts.ReplyTimeout = 200*time.Millisecond, 10*time.Second
			s := redistest.Real(t)
			locker := open(t, s, opts)
			if opts.Replicas == 0 {
				k, err := locker.Acquire(t.Context(), "other")
				require.NoError(t, err)
				require.NoError(t, k.Release(t.Context()))
				thaw := s.Freeze()
				defer thaw()
			}
			start := time.Now()
			_, err := locker.Acquire(context.Background(), key)
			took := time.Since(start)
			assert.Error(t, err)
			assert.ErrorContains(t, err, "Options.Wait is over")
			assert.Less(t, took, 5*time.Second)
		})
	}
}

// Do comes back soon after its context is over, although the server is silent.
func TestDoComesBackWhenItsContextIsOver(t *testing.T) {
	s := redistest.Real(t)
	locker := newLocker(t, s.Pool(), modern.Options{ReplyTimeout: 10 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	var thaw func()
	start := time.Now()
	err := locker.Do(ctx, key, func(ctx context.Context) error {
		thaw = s.Freeze()
		start = time.Now()
		cancel()
		return nil
	})
	took := time.Since(start)
	thaw()
	assert.Error(t, err)
	assert.Less(t, took, 5*time.Second)
}

// The connections for waiting cannot be made, and no attempt ends by itself: who waits asks over the line, which lives.
func TestADialThatHangsHoldsUpNoWaiter(t *testing.T) {
	s := redistest.Real(t)
	pool := s.Pool()
	var dials atomic.Int32
	waiter := newLocker(t, &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		if dials.Add(1) > 1 {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return pool.DialContext(ctx)
	}}, modern.Options{ReplyTimeout: 10 * time.Second})
	holder := newLocker(t, s.Pool(), modern.Options{})
	held, err := holder.Acquire(t.Context(), key)
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		k, err := waiter.Acquire(t.Context(), key)
		if err == nil {
			err = k.Release(t.Context())
		}
		got <- err
	}()
	redistest.Await(t, "a waiter in line", 4*time.Second, func() bool {
		n, _ := redis.Int(s.Try("ZCARD", "{"+key+"}:queue"))
		return n == 1
	})
	released := time.Now()
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, <-got)
	assert.Less(t, time.Since(released), 4*time.Second)
}
