package compat_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/lockmigrate/lockmigrate/legacy"
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
	redistest.Await(t, "the queue on the server", func() bool { return s.Do("ZCARD", protocol.QueueKey(key)) == n })
}

// TestProcessesTakeTurns: of processes that all want one key again and again each gets its share. Woken all at once, whoever is near the
// server would win. Services may go from one package to the other in any order, because all who wait for a key stand in one queue: two
// processes of package modern are among them, in both stages.
func TestProcessesTakeTurns(t *testing.T) {
	const turns = 400
	s := redistest.Real(t)
	for _, stage := range []lockmigrate.Stage{lockmigrate.StageBridge, lockmigrate.StageModern} {
		t.Run(stage.String(), func(t *testing.T) {
			ctx := redistest.Bounded(t, 2*time.Minute)
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
				ctx := redistest.Bounded(t, 2*time.Minute)
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
				redistest.Within(t, what, within, func() bool {
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

// crowd has bridge clients of several processes leave no moment between them on a key.
func crowd(t *testing.T, s *redistest.Server, hold time.Duration) (turns *atomic.Int64) {
	turns = &atomic.Int64{}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 {
		l := newLocker(t, s, quick())
		for range 2 {
			all.Go(func() {
				for ctx.Err() == nil {
					k, err := l.Acquire(ctx, "orders")
					if err != nil {
						continue
					}
					turns.Add(1)
					time.Sleep(hold)
					_ = k.Release(context.WithoutCancel(ctx))
				}
			})
		}
	}
	t.Cleanup(func() { cancel(); all.Wait() })
	return turns
}

// gapState is the state of the gaps on a key, as bridge_yield.lua keeps it; ok tells that there is one.
func gapState(s *redistest.Server) (mode, step int64, ok bool) {
	fields := strings.Fields(s.Value(protocol.YieldKey("orders")))
	if len(fields) != 11 {
		return 0, 0, false
	}
	_, err := fmt.Sscan(fields[0]+" "+fields[8], &mode, &step)
	return mode, step, err == nil
}

// firstTurn is how long an old client waits that comes now.
func firstTurn(t *testing.T, s *redistest.Server) time.Duration {
	t.Helper()
	old, err := legacy.New(s.Pool(), legacy.Options{Lease: 10 * time.Second})
	require.NoError(t, err)
	defer old.Close()
	ctx := redistest.Bounded(t, time.Minute)
	began := time.Now()
	k, err := old.Acquire(ctx, "orders")
	require.NoError(t, err, "the old client:")
	took := time.Since(began)
	assert.NoError(t, k.Release(t.Context()))
	return took
}

const (
	gap   = 120 * time.Millisecond // of dialect jedis-ms
	slack = 700 * time.Millisecond // of a busy machine
)

// TestNoGapsWithoutOldClients: where nobody sends SETNX bridge clients leave nothing free; the first old client that comes is
// noticed soon.
func TestNoGapsWithoutOldClients(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		turns := crowd(t, s, 5*time.Millisecond)
		looked := false
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			mode, _, ok := gapState(s)
			if looked = looked || ok; mode != 0 {
				t.Fatalf("a gap after %d turns, and no old client is there", turns.Load())
			}
		}
		require.False(t, !looked || turns.Load() < 50, "%d turns; the state was seen: %v", turns.Load(), looked)
		// Three gaps to the next look, a hold, and the pause between two looks of the old client.
		if took, bound := firstTurn(t, s), 3*gap+gap+100*time.Millisecond+slack; took > bound {
			t.Errorf("the first turn took %v, want %v", took, bound)
		}
		for range 3 { // it comes in again and again
			before := turns.Load()
			redistest.Await(t, "the bridge's next turns", func() bool { return turns.Load() > before+4 })
			firstTurn(t, s)
		}
	})
}

// TestOldClientWhenGapsAreRare: another application sends SETNX. Gaps of no use get rarer, down to one in sixteen gaps' time; an
// old client that comes then waits for that, a hold and a gap at most.
func TestOldClientWhenGapsAreRare(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		crowd(t, s, 5*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		var noise sync.WaitGroup
		defer noise.Wait()
		defer cancel()
		noise.Go(func() {
			conn := s.Conn()
			for ctx.Err() == nil {
				_, _ = conn.Do("SETNX", "of another application", 1)
				time.Sleep(10 * time.Millisecond)
			}
		})
		most := 16 * gap
		redistest.Await(t, "gaps as rare as they get", func() bool {
			_, step, _ := gapState(s)
			return step == most.Milliseconds()
		})
		if took, bound := firstTurn(t, s), most+2*gap+slack; took > bound {
			t.Errorf("the first turn took %v, want %v", took, bound)
		}
	})
}

// TestYieldOfTheRecord: the record says for how long a key is left free. A member may say more, not less.
func TestYieldOfTheRecord(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		const least = 300 * time.Millisecond
		store := namespaceOf(t, s, stages.Record{Shortest: time.Second, Yield: least})
		moveTo(t, store, stages.Bridge)
		for _, c := range []struct {
			yield time.Duration
			fits  bool
		}{{0, true}, {time.Second, true}, {200 * time.Millisecond, false}, {-1, false}} {
			l := newLocker(t, s, quick(ofOrders, func(o *compat.Options) { o.Yield = c.yield }))
			err := l.Ready(t.Context())
			if fits := err == nil; fits != c.fits || !fits && !errors.Is(err, lockmigrate.ErrStage) {
				t.Errorf("Yield %v beside the record's 300 ms: %v", c.yield, err)
			}
			if !c.fits {
				continue
			}
			conn, want := s.Conn(), max(c.yield, least)
			k := acquire(t, l, "orders:1")
			now := time.Now().UnixMilli()
			require.NoError(t, failed(conn.Do("SET", protocol.YieldKey("orders:1"), fmt.Sprintf("0 %[1]d 60000 0 100 -2 %[1]d 0 100 0 0", now-1000))))
			time.Sleep(2 * time.Millisecond)
			release(t, k)
			began := time.Now()
			release(t, acquire(t, l, "orders:1"))
			assert.GreaterOrEqual(t, time.Since(began), want-50*time.Millisecond, "Yield %v: the key was left free for", c.yield)
			s.Do("DEL", protocol.YieldKey("orders:1"))
			l.Close()
		}
	})
}

// TestLegacyHolderIsWatchedAtOnce: a legacy client may work for a millisecond only, and nobody but the server
// tells of its DEL. Behind a bridge holder, which tells of its release itself, there is no such hurry.
func TestLegacyHolderIsWatchedAtOnce(t *testing.T) {
	s := redistest.Real(t)
	l := newLocker(t, s, quick())
	watched := func(hold func() (release func())) (shortest time.Duration) {
		shortest = time.Hour
		for range 8 {
			release := hold()
			monitor := s.Monitor()
			done := redistest.BeginTurn(t.Context(), l.Acquire, "orders")
			shortest = min(shortest, monitor.Watched(t))
			release()
			require.NoError(t, <-done)
		}
		return shortest
	}

	ends := time.Now().Add(time.Minute).UnixMilli()
	if d := watched(func() func() {
		s.Do("SET", "orders", ends)
		return func() { s.Do("DEL", "orders") }
	}); d > 5*time.Millisecond {
		t.Errorf("a legacy holder's key was watched after %v", d)
	}
	other := newLocker(t, s, quick(func(o *compat.Options) { o.TTL = time.Minute }))
	if d := watched(func() func() {
		k, err := other.Acquire(t.Context(), "orders")
		require.NoError(t, err)
		return func() { _ = k.Release(t.Context()) }
	}); d < 9*time.Millisecond {
		t.Errorf("a bridge holder's key was watched after %v: for nothing", d)
	}
}

// A waiter that came into the queue before its process listened may be given the key without a word. It looks for that, also
// when the process has come to listen since: else each such grant would cost its claim.
func TestWhoBeganByPollingGoesOn(t *testing.T) {
	const waiters = 9
	for _, name := range []string{"modern", "bridge"} {
		t.Run(name, func(t *testing.T) {
			redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
				first, err := kinds[name].acquirer(t, s.Pool(), time.Minute)(t.Context(), "orders")
				require.NoError(t, err)
				var done [waiters]<-chan error
				for i := range done {
					var dials atomic.Int32
					pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
						if dials.Add(1) > 1 { // the connection for commands comes first, those that listen come late
							time.Sleep(1200 * time.Millisecond)
						}
						return s.Dial(ctx)
					}}
					t.Cleanup(func() { _ = pool.Close() })
					done[i] = redistest.BeginTurn(t.Context(), kinds[name].acquirer(t, pool, time.Minute), "orders")
				}
				time.Sleep(4 * time.Second) // they wait, and listen by now
				released := time.Now()
				require.NoError(t, first.Release(t.Context()))
				for _, over := range done {
					require.NoError(t, <-over)
				}
				assert.Less(t, time.Since(released), 2500*time.Millisecond, "a claim of the bridge is 3 s")
			})
		})
	}
}
