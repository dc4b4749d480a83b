package compat_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/modern"
)

// eager are options of waiters that are not kept waiting by anything but each other. A claim lasts for seconds: a process that
// gets no processor for less does not lose what was handed to it.
func eager(change ...func(*compat.Options)) compat.Options {
	return quick(append([]func(*compat.Options){func(o *compat.Options) {
		o.TTL, o.Lease, o.ShortestLease, o.Yield = 20*time.Second, 20*time.Second, 10*time.Second, -1
	}}, change...)...)
}

// queued waits until so many stand in a key's queue on the server.
func queued(t testing.TB, s *redistest.Server, key string, n int64) {
	t.Helper()
	redistest.Await(t, "the queue on the server", time.Minute, func() bool { return s.Do("ZCARD", protocol.QueueKey(key)) == n })
}

// TestProcessesTakeTurns: of processes that all want one key again and again each gets its share. Woken all at once, whoever is near the
// server would win. Services may go from one package to the other in any order, because all who wait for a key stand in one queue: two
// processes of package modern are among them, in both stages.
func TestProcessesTakeTurns(t *testing.T) {
	const turns = 400
	s := redistest.Real(t)
	for _, stage := range []lockmigrate.Stage{lockmigrate.StageBridge, lockmigrate.StageModern} {
		t.Run(stage.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var lockers []lockmigrate.Locker
			for range 2 {
				m, err := modern.New(s.Pool(), modern.Options{FenceTTL: time.Minute})
				require.NoError(t, err)
				t.Cleanup(func() { _ = m.Close() })
				lockers = append(lockers, newLocker(t, s, eager(inStage(t, s, stage))), m)
			}
			var all sync.WaitGroup
			var fence atomic.Int64
			referee := redistest.NewReferee(t)
			counts := make([]int, len(lockers))
			start := make(chan struct{})
			for n, l := range lockers {
				all.Go(func() {
					<-start
					for referee.Turns() < turns {
						k, err := l.Acquire(ctx, "orders")
						if !assert.NoError(t, err, "worker %d", n) {
							return
						}
						referee.Turn(func() {
							assert.Less(t, fence.Swap(k.Fence()), k.Fence(), "fencing token")
							counts[n]++
							time.Sleep(time.Millisecond)
						})
						if !assert.NoError(t, k.Release(context.WithoutCancel(ctx)), "worker %d", n) {
							return
						}
					}
				})
			}
			close(start)
			all.Wait()
			t.Logf("turns of compat, modern, compat, modern: %d", counts)
			assert.LessOrEqual(t, 10*slices.Max(counts), 13*slices.Min(counts), "turns of compat, modern, compat, modern: %d", counts)
		})
	}
}

// TestWaitersOfProcessesAreServedInOrder: first in the queue, first served, and a newcomer or a TryAcquire
// does not come between.
func TestWaitersOfProcessesAreServedInOrder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		first := acquire(t, newLocker(t, s, eager()), "orders")
		const waiters = 4
		served := make(chan int, waiters)
		locks := make(chan lockmigrate.Lock)
		var all sync.WaitGroup
		defer all.Wait()
		for n := range waiters {
			l := compat.Tune(newLocker(t, s, eager()), 0, 2*time.Second) // nobody is passed over on a busy machine
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				k, err := l.Acquire(ctx, "orders")
				assert.NoError(t, err, "waiter %d:", n)
				served <- n
				locks <- k
			})
			queued(t, s, "orders", int64(n+1))
		}
		passer := newLocker(t, s, eager())
		release(t, first)
		for n := range waiters {
			assert.Equal(t, n, <-served, "waiter")
			k := <-locks
			assert.ErrorIs(t, failed(passer.TryAcquire(t.Context(), "orders")), lockmigrate.ErrNotAcquired, "a passer-by beside a holder")
			if k != nil {
				release(t, k)
			}
		}
		queued(t, s, "orders", 0)
	})
}

// TestQueueOutlivesItsWaiters: a waiter that died, one that gave up and one that never hears anything do not
// keep the others out.
func TestQueueOutlivesItsWaiters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		first := acquire(t, newLocker(t, s, eager()), "orders")
		s.Do("ZADD", protocol.QueueKey("orders"), 1, "1000 0 1 lockmigrate:wake:nobody dead")
		s.Do("ZADD", protocol.QueueKey("orders"), 2, "no entry at all")

		ctx, cancel := context.WithCancelCause(t.Context())
		var gone sync.WaitGroup
		gone.Go(func() {
			_, err := newLocker(t, s, eager()).Acquire(ctx, "orders")
			if !errors.Is(err, lockmigrate.ErrNotAcquired) || !strings.Contains(err.Error(), "no patience") {
				t.Errorf("a cancelled wait: %v", err)
			}
		})
		queued(t, s, "orders", 3)
		cancel(errors.New("no patience"))
		gone.Wait()
		queued(t, s, "orders", 2) // it has left the queue

		var last sync.WaitGroup
		last.Go(func() { release(t, acquire(t, newLocker(t, s, eager()), "orders")) })
		queued(t, s, "orders", 3)
		release(t, first)
		last.Wait()
		queued(t, s, "orders", 0)
	})
}

// TestAGrantedWaiterThatIsStoppedCostsItsClaim: it listens, is handed the lock, and never speaks. The next one has the lock
// when that claim is over, and not when a TTL is.
func TestAGrantedWaiterThatIsStoppedCostsItsClaim(t *testing.T) {
	const claim = 700 * time.Millisecond
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		first := acquire(t, newLocker(t, s, eager()), "orders")
		stopped := redis.PubSubConn{Conn: s.Conn()}
		require.NoError(t, stopped.Subscribe("lockmigrate:wake:stopped"))
		stopped.ReceiveWithTimeout(time.Minute)
		entry := protocol.Entry{Claim: claim, Guarded: true, Channel: "lockmigrate:wake:stopped", Token: "6999999999999999999"}
		s.Do("ZADD", protocol.QueueKey("orders"), 1, entry.String())
		served := make(chan lockmigrate.Lock)
		l := newLocker(t, s, eager())
		go func() { served <- acquire(t, l, "orders") }()
		queued(t, s, "orders", 2)
		began := time.Now()
		release(t, first)
		k := <-served
		if took := time.Since(began); took < claim || took > 15*time.Second {
			t.Errorf("the next one came after %v, the claim is %v and the TTL 20 s", took, claim)
		}
		release(t, k)
	})
}

// TestWaitersInTheQueueFollowTheStage: those who wait when the stage changes get their turn in the new one, whether they look again and again or
// stand in the queue.
func TestWaitersInTheQueueFollowTheStage(t *testing.T) {
	for from, queue := range map[stages.Stage]int64{stages.Legacy: 0, stages.Bridge: 2} {
		redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
			store := namespace(t, s)
			moveTo(t, store, from)
			var lockers []compat.Locker
			for range 2 {
				l := newLocker(t, s, quick(ofOrders, func(o *compat.Options) { o.TTL = 2 * time.Second }))
				runs(t, l, from)
				lockers = append(lockers, l)
			}
			k := acquire(t, lockers[0], "orders:1")
			var all sync.WaitGroup
			for _, l := range lockers {
				all.Go(func() {
					got := acquire(t, l, "orders:1")
					assert.Equal(t, from+1, got.Stage())
					release(t, got)
				})
			}
			queued(t, s, "orders:1", queue)
			moveTo(t, store, from+1)
			for _, l := range lockers {
				runs(t, l, from+1)
			}
			release(t, k)
			all.Wait()
			queued(t, s, "orders:1", 0)
		})
	}
}

// TestAQueueThatWentBackInTime: the key's queue has places of locks that are over, of processes that live. Each gives the key back at once;
// before, each kept it for its claim.
func TestAQueueThatWentBackInTime(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"modern", "bridge"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var turns [8]atomic.Int64
			var all sync.WaitGroup
			for i := range turns {
				acquire := kinds[name].acquirer(t, s.Pool(), short)
				all.Go(func() {
					for ctx.Err() == nil {
						k, err := acquire(ctx, "orders")
						if err != nil {
							continue
						}
						turns[i].Add(1)
						time.Sleep(2 * time.Millisecond)
						_ = k.Release(context.Background())
					}
				})
			}
			defer all.Wait()
			defer stop()
			each := func(what string, within time.Duration) {
				t.Helper()
				var before [8]int64
				for i := range turns {
					before[i] = turns[i].Load()
				}
				redistest.Await(t, what, within, func() bool {
					for i := range turns {
						if turns[i].Load() < before[i]+3 {
							return false
						}
					}
					return true
				})
			}
			each("turns at first", 10*time.Second)
			queued(t, s, "orders", 6)
			s.Do("SWAPDB", 0, 1)
			each("turns with an empty queue", 10*time.Second)
			s.Do("SWAPDB", 0, 1)
			each("turns with the queue of before", 8*time.Second)
		})
	}
}
