package modern_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/modern"
)

// New connections hang while those that are there work: the waiters wait for that once, and not one after the other.
func TestWaitersBesideADialThatHangs(t *testing.T) {
	const waiters, turns = 4, 15
	world.Run(t, 1, func(w *world.World) {
		route := w.Process("a").Route(w.Server())
		locker := newLocker(w, route.Pool(), modern.Options{ReplyTimeout: 20 * time.Second})
		do := func() error {
			return locker.Do(w.Context(), key, func(context.Context) error { return nil })
		}
		require.NoError(w, do())
		route.Refuse(true)
		began := time.Now()
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() {
				for range turns {
					assert.NoError(w, do())
				}
			})
		}
		all.Wait()
		assert.Less(w, time.Since(began), 6*time.Second)
		route.Heal()
	})
}

// A server that restarts ends no wait, for any kind of waiter: the connections are made again, and the first waiter then
// gets the lock.
func TestWaitersOutliveARestart(t *testing.T) {
	for name, opts := range map[string]kind{
		"queue": {}, "unfair": {Unfair: true}, "redisson": {Redisson: true}, "pooled": {Pooled: true},
	} {
		t.Run(name, func(t *testing.T) {
			world.Run(t, 1, func(w *world.World) {
				s := w.Server()
				holder := openOver(w, s.Pool(), opts)
				_, err := holder.Acquire(w.Context(), key)
				require.NoError(w, err)
				waiter := openOver(w, s.Pool(), opts)
				const n = 3
				done := make(chan error, n)
				for range n {
					go func() {
						ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
						defer cancel()
						k, err := waiter.Acquire(ctx, key)
						if err == nil {
							err = k.Release(ctx)
						}
						done <- err
					}()
				}
				time.Sleep(500 * time.Millisecond) // a first attempt that is under way may end in an error
				s.Kill()
				time.Sleep(500 * time.Millisecond) // it is away for so long
				s.Start()
				for range n {
					assert.NoError(w, <-done)
				}
			})
		})
	}
}

// Options.Wait bounds all of an Acquire, also the first attempt.
func TestWaitBoundsTheWholeAcquire(t *testing.T) {
	for name, opts := range map[string]kind{
		"queue": {}, "unfair": {Unfair: true}, "redisson": {Redisson: true}, "pooled": {Pooled: true},
	} {
		t.Run(name, func(t *testing.T) {
			opts.Wait, opts.ReplyTimeout = 200*time.Millisecond, 10*time.Second
			world.Run(t, 1, func(w *world.World) {
				s := w.Server()
				locker := openOver(w, s.Pool(), opts)
				k, err := locker.Acquire(w.Context(), "other")
				require.NoError(w, err)
				require.NoError(w, k.Release(w.Context()))
				defer s.Freeze()()
				start := time.Now()
				_, err = locker.Acquire(context.Background(), key)
				assert.ErrorContains(w, err, "Options.Wait is over")
				assert.Less(w, time.Since(start), 210*time.Millisecond)
			})
		})
	}
}

// Options.Wait bounds what follows an acquisition: here replicas that never confirm.
func TestWaitBoundsTheReplicas(t *testing.T) {
	locker := open(t, redistest.Real(t), kind{Wait: 200 * time.Millisecond, ReplyTimeout: 10 * time.Second, Replicas: 1, TTL: 27 * time.Second})
	start := time.Now()
	_, err := locker.Acquire(context.Background(), key)
	assert.ErrorContains(t, err, "Options.Wait is over")
	assert.Less(t, time.Since(start), 5*time.Second)
}

// Do comes back as soon as its context is over, although the server is silent.
func TestDoComesBackWhenItsContextIsOver(t *testing.T) {
	world.Run(t, 1, func(w *world.World) {
		s := w.Server()
		locker := newLocker(w, s.Pool(), modern.Options{ReplyTimeout: 10 * time.Second})
		ctx, cancel := context.WithCancel(w.Context())
		var thaw func()
		start := time.Now()
		err := locker.Do(ctx, key, func(ctx context.Context) error {
			thaw = s.Freeze()
			start = time.Now()
			cancel()
			return nil
		})
		assert.Error(w, err)
		assert.Less(w, time.Since(start), 5*time.Second)
		thaw()
	})
}

// The connections for waiting cannot be made, and no attempt ends by itself: who waits asks over the line, which lives.
func TestADialThatHangsHoldsUpNoWaiter(t *testing.T) {
	world.Run(t, 1, func(w *world.World) {
		s := w.Server()
		route := w.Process("waiter").Route(s)
		waiter := newLocker(w, route.Pool(), modern.Options{ReplyTimeout: 10 * time.Second})
		k, err := waiter.Acquire(w.Context(), "other")
		require.NoError(w, err)
		require.NoError(w, k.Release(w.Context()))
		route.Refuse(true)
		holder := newLocker(w, s.Pool(), modern.Options{})
		held, err := holder.Acquire(w.Context(), key)
		require.NoError(w, err)
		got := make(chan error, 1)
		go func() {
			k, err := waiter.Acquire(w.Context(), key)
			if err == nil {
				err = k.Release(w.Context())
			}
			got <- err
		}()
		redistest.Await(w, "a waiter in line", 4*time.Second, func() bool { return s.Do("ZCARD", "{"+key+"}:queue") == int64(1) })
		released := time.Now()
		require.NoError(w, held.Release(w.Context()))
		require.NoError(w, <-got)
		assert.Less(w, time.Since(released), 4*time.Second)
		route.Heal()
	})
}
