package legacy_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func TestServerClockFollowsTheServer(t *testing.T) {
	s := redistest.Mini(t)
	const ahead = 10 * time.Minute
	s.Mini.SetTime(time.Now().Add(ahead))
	clock := legacy.NewServerClock(s.Pool(), legacy.ServerClockOptions{})
	_, _, ok := clock.Offset()
	assert.False(t, ok)
	require.NoError(t, clock.Sync(t.Context()))
	offset, bound, ok := clock.Offset()
	require.True(t, ok)
	assert.InDelta(t, ahead, offset, float64(time.Second), "the embedded server's clock stands still meanwhile")
	assert.Positive(t, bound)
	assert.WithinDuration(t, time.Now().Add(ahead), clock.Now(), time.Second)

	// A member whose host is ten minutes behind the server writes the expiry that the server would.
	lock, err := newLocker(t, s.Pool(), legacy.Options{Lease: time.Minute, Clock: clock}).TryAcquire(t.Context(), key)
	require.NoError(t, err)
	written, err := strconv.ParseInt(s.Value(key), 10, 64)
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now().Add(ahead+time.Minute), time.UnixMilli(written), time.Second)
	assert.NoError(t, lock.Context().Err())
	assert.NoError(t, lock.Release(t.Context()))
}

func TestServerClockIsRefreshed(t *testing.T) {
	s := redistest.Mini(t)
	clock := legacy.NewServerClock(s.Pool(), legacy.ServerClockOptions{Refresh: time.Nanosecond, Samples: 1})
	require.NoError(t, clock.Sync(t.Context()))
	s.Mini.SetTime(time.Now().Add(-time.Hour))
	require.NoError(t, clock.Sync(t.Context()))
	offset, _, _ := clock.Offset()
	assert.InDelta(t, -time.Hour, offset, float64(time.Second))
}

func TestServerClockWithoutItsServer(t *testing.T) {
	s := redistest.Mini(t)
	pool := s.Pool()
	fresh := legacy.NewServerClock(pool, legacy.ServerClockOptions{Refresh: time.Nanosecond, MaxAge: time.Hour})
	require.NoError(t, fresh.Sync(t.Context()))
	old := legacy.NewServerClock(pool, legacy.ServerClockOptions{Refresh: time.Nanosecond, MaxAge: time.Nanosecond})
	require.NoError(t, old.Sync(t.Context()))
	s.Mini.Close()
	assert.NoError(t, fresh.Sync(t.Context()), "a measurement is good until MaxAge")
	assert.Error(t, old.Sync(t.Context()))

	_, err := newLocker(t, pool, legacy.Options{Clock: old}).TryAcquire(t.Context(), key)
	assert.ErrorContains(t, err, "read the server's clock", "no lock by a clock that is not known")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newLocker(t, pool, legacy.Options{Clock: old}).TryAcquire(cancelled, key)
	assert.ErrorIs(t, err, legacy.ErrNotAcquired)
	assert.ErrorIs(t, err, context.Canceled)
}

// On a real server the offset of a clock on the same host is within the round trip.
func TestServerClockIsPrecise(t *testing.T) {
	s := redistest.Real(t)
	clock := legacy.NewServerClock(s.Pool(), legacy.ServerClockOptions{Samples: 20})
	require.NoError(t, clock.Sync(t.Context()))
	offset, bound, _ := clock.Offset()
	assert.LessOrEqual(t, offset.Abs(), bound+time.Millisecond)
}
