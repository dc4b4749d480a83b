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

// A waiter that came into the queue before its process listened may be given the key without a word. It looks for that, also
// when the process has come to listen since: else each such grant would cost its claim.
func TestWhoBeganByPollingGoesOn(t *testing.T) {
	const waiters = 9
	for name, of := range map[string]opener{
		"modern": modernOf(modern.Options{TTL: time.Minute}),
		"bridge": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return compat.New(pool, compat.Options{TTL: time.Minute, Lease: time.Minute, ShortestLease: time.Minute, Yield: -1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
				first, err := of.acquirer(t, s.Pool())(t.Context(), "orders")
				require.NoError(t, err)
				done := make(chan error, waiters)
				for range waiters {
					var dials atomic.Int32
					pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
						if dials.Add(1) > 1 { // the connection for commands comes first, those that listen come late
							time.Sleep(1200 * time.Millisecond)
						}
						return s.Dial(ctx)
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
				released := time.Now()
				require.NoError(t, first.Release(t.Context()))
				for range waiters {
					require.NoError(t, <-done)
				}
				assert.Less(t, time.Since(released), 2500*time.Millisecond, "a claim of the bridge is 3 s")
			})
		})
	}
}
