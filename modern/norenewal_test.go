package modern_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// A lock that was handed over is held for its TTL too where nobody renews it, and not for the claim.
func TestHandedOverWithoutRenewal(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		opts := modern.Options{TTL: 20 * time.Second, RenewEvery: -1}
		holder, err := newLocker(t, s.Pool(), opts).Acquire(t.Context(), key)
		require.NoError(t, err)
		waiter, got := newLocker(t, s.Pool(), opts), make(chan lockmigrate.Lock, 1)
		go func() {
			lock, err := waiter.Acquire(t.Context(), key)
			assert.NoError(t, err)
			got <- lock
		}()
		redistest.Await(t, "a waiter in line", 10*time.Second, func() bool {
			return s.Do("EXISTS", "{"+key+"}:queue") == int64(1)
		})
		require.NoError(t, holder.Release(t.Context()))
		lock := <-got
		assert.Greater(t, time.Until(lock.Expiry()), 15*time.Second)
		assert.Greater(t, s.Do("PTTL", key), int64(15_000))
		require.NoError(t, lock.Release(t.Context()))
	})
}
