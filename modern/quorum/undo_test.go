package quorum_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
)

// three returns a Locker over three servers of a world, after its first lock, with a reply timeout of 60 ms.
func three(w *world.World, observer lockmigrate.Observer) (q lockmigrate.Locker, servers []*world.Server, routes []*world.Route) {
	var pools []lockmigrate.Pool
	p := w.Process("quorum")
	for i := range 3 {
		servers = append(servers, w.Server())
		routes = append(routes, p.Route(servers[i]))
		pools = append(pools, routes[i].Pool())
	}
	q, err := quorum.New(pools, modern.Options{TTL: time.Minute, ReplyTimeout: 60 * time.Millisecond, Observer: observer})
	require.NoError(w, err)
	w.Cleanup(func() { _ = q.Close() })
	first, err := q.Acquire(w.Context(), "before")
	require.NoError(w, err)
	require.NoError(w, first.Release(w.Context()))
	return q, servers, routes
}

// TestAQuorumTellsWhatItCouldNotUndo: whoever left before the replies is told that the lock was not acquired; that its
// token may stay on most servers for a TTL must not be kept from the observer.
func TestAQuorumTellsWhatItCouldNotUndo(t *testing.T) {
	world.Run(t, 1, func(w *world.World) {
		var told atomic.Int32
		seen := &redistest.Told{}
		q, _, routes := three(w, func(e lockmigrate.Event) {
			seen.Observe(e)
			if e.Op == "give back" {
				told.Add(1)
			}
		})
		for _, r := range routes {
			r.HalfOpen() // commands run, and nobody hears of it
		}
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := q.TryAcquire(ctx, "orders")
		require.ErrorIs(w, err, lockmigrate.ErrNotAcquired)
		time.Sleep(time.Second)
		require.EqualValues(w, 1, told.Load())
		require.True(w, seen.Of("orders"))
		for _, r := range routes {
			r.Heal()
		}
	})
}

// TestALateVoteIsUndone: the servers answer again about when an attempt gives up. What it goes on to do without its caller must not
// take the key behind the release that undoes the attempt. The key stayed taken for a TTL, and nobody was told.
func TestALateVoteIsUndone(t *testing.T) {
	for after := 110 * time.Millisecond; after < 140*time.Millisecond; after += time.Millisecond {
		world.Run(t, uint64(after), func(w *world.World) {
			q, servers, routes := three(w, nil)
			for _, r := range routes {
				r.HalfOpen()
				time.AfterFunc(after, r.Heal)
			}
			ctx, cancel := context.WithTimeout(w.Context(), 280*time.Millisecond)
			defer cancel()
			k, err := q.Acquire(ctx, "orders")
			if err == nil {
				require.NoError(w, k.Release(w.Context()))
			}
			time.Sleep(2 * time.Second)
			for _, s := range servers {
				require.Equal(w, int64(0), s.Do("EXISTS", "orders"), "healed after %v", after)
			}
		})
	}
}
