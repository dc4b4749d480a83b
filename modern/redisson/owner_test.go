package redisson_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// A release of an inner Lock that arrives late, after it was sent again, leaves the outer one its key.
func TestALateReleaseTakesNoHoldAway(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("owner")
		var late atomic.Bool // the next script is
		route.Decide = func(words []string) (f world.Fault) {
			if words[0] == "EVALSHA" && late.Swap(false) {
				f.LateCommand = 200 * time.Millisecond
			}
			return f
		}
		pool := route.Pool()
		locker := newLocker(t, pool, modern.Options{TTL: time.Minute, ReplyTimeout: 100 * time.Millisecond})
		owner := modern.WithOwner(t.Context(), "owner")
		outer, err := locker.Acquire(owner, key)
		require.NoError(t, err)
		inner, err := locker.Acquire(owner, key)
		require.NoError(t, err)
		late.Store(true)
		require.NoError(t, inner.Release(t.Context()))
		time.Sleep(300 * time.Millisecond) // what was sent has arrived
		assert.NoError(t, outer.Context().Err())
		assert.EqualValues(t, 1, s.Do("EXISTS", key), "the outer Lock is not released")
		late.Store(false)
		require.NoError(t, outer.Release(t.Context()))
		assert.EqualValues(t, 0, s.Do("EXISTS", key))
	})
}

// An owner that was stopped past the deadline comes back, and acquires again before anybody has told it of the loss. It must not get
// what it does not hold any more.
func TestNobodyReentersPastTheDeadline(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		locker := newLocker(t, s.Pool(), modern.Options{TTL: time.Minute})
		var made *lockers.Hold
		redisson.Made(locker, func(h *lockers.Hold) { made = h })
		owner := modern.WithOwner(t.Context(), "owner")
		_, err := locker.TryAcquire(owner, key)
		require.NoError(t, err)
		hold := made
		hold.Lease.Begin(hold.Lease.Began, hold.Lease.Began) // the watch looks at it in some seconds
		_, err = locker.TryAcquire(owner, key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		assert.Equal(t, 1, hold.Count())
	})
}
