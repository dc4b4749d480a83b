package quorum_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
)

// TestAQuorumTellsWhatItCouldNotUndo: whoever left before the replies is told that the lock was not acquired; that its
// token may stay on most servers for a TTL must not be kept from the observer.
func TestAQuorumTellsWhatItCouldNotUndo(t *testing.T) {
	var pools []lockmigrate.Pool
	var routes []*redistest.Route
	for range 3 {
		route := redistest.NewRoute(redistest.Mini(t).Addr)
		pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", "", redis.DialContextFunc(route.Dial))
		}}
		t.Cleanup(func() { _ = pool.Close() })
		pools, routes = append(pools, pool), append(routes, route)
	}
	var told atomic.Int64
	seen := &redistest.Told{}
	q, err := quorum.New(pools, modern.Options{
		TTL: time.Minute, ReplyTimeout: 50 * time.Millisecond, Observer: func(e lockmigrate.Event) {
			seen.Observe(e)
			if e.Op == "give back" {
				told.Add(1)
			}
		},
	})
	require.NoError(t, err)
	first, err := q.Acquire(t.Context(), "before")
	require.NoError(t, err)
	require.NoError(t, first.Release(t.Context()))

	for _, r := range routes {
		r.HalfOpen() // commands run, and nobody hears of it
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = q.TryAcquire(ctx, "orders")
	require.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
	require.Eventually(t, func() bool { return told.Load() == 1 && seen.Of("orders") }, 10*time.Second, time.Millisecond)
	for _, r := range routes {
		r.Heal()
	}
	q.Close()
}
