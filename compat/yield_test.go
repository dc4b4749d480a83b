package compat_test

import (
	"context"
	"errors"
	"fmt"
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
)

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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
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
			redistest.Await(t, "the bridge's next turns", time.Minute, func() bool { return turns.Load() > before+4 })
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
		redistest.Await(t, "gaps as rare as they get", time.Minute, func() bool {
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
