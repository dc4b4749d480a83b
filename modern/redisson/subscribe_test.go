package redisson_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/modern"
)

// TestALostSubscriptionKeepsNobodyFromAFreeKey: the connection that listens is dead and nobody knows. In Redisson's layout
// a waiter subscribes before it asks.
func TestALostSubscriptionKeepsNobodyFromAFreeKey(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("waiter")
		var lost atomic.Int64
		route.Decide = func(words []string) world.Fault {
			return world.Fault{LoseCommand: words[0] == "SUBSCRIBE" && strings.HasPrefix(words[1], "redisson") && lost.Add(1) == 1}
		}
		pool := route.Pool()
		opts := modern.Options{TTL: time.Minute, ReplyTimeout: 200 * time.Millisecond}
		holder, waiter := newLocker(t, s.Pool(), opts), newLocker(t, pool, opts)
		held, err := holder.Acquire(t.Context(), "orders")
		require.NoError(t, err)
		got := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		go func() {
			k, err := waiter.Acquire(ctx, "orders")
			if err == nil {
				err = k.Release(t.Context())
			}
			got <- err
		}()
		redistest.Await(t, "the subscription is lost", 10*time.Second, func() bool { return lost.Load() > 0 })
		freed := time.Now()
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, <-got)
		assert.Less(t, time.Since(freed), 5*time.Second)
	})
}
