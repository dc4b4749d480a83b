package lockers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func TestServerClockFollowsTheServer(t *testing.T) {
	s := redistest.Mini(t)
	const ahead = 10 * time.Minute
	s.Mini.SetTime(time.Now().Add(ahead))
	read := lockers.NewServerClock(s.Pool(), time.Second)
	_, _, ok := read.Offset()
	assert.False(t, ok)
	require.NoError(t, read.Sync(t.Context()))
	offset, bound, ok := read.Offset()
	require.True(t, ok)
	assert.InDelta(t, ahead, offset, float64(time.Second), "the embedded server's clock stands still meanwhile")
	assert.Positive(t, bound)
	assert.WithinDuration(t, time.Now().Add(ahead), read.Now(), time.Second)
}

func TestServerClockIsRefreshed(t *testing.T) {
	s := redistest.Mini(t)
	read := aged(lockers.NewServerClock(s.Pool(), time.Second), time.Hour)
	require.NoError(t, read.Sync(t.Context()))
	s.Mini.SetTime(time.Now().Add(-time.Hour))
	require.NoError(t, read.Sync(t.Context()))
	offset, _, _ := read.Offset()
	assert.InDelta(t, -time.Hour, offset, float64(time.Second))
}

func TestServerClockWithoutItsServer(t *testing.T) {
	s := redistest.Mini(t)
	pool := s.Pool()
	fresh := aged(lockers.NewServerClock(pool, time.Second), time.Hour)
	require.NoError(t, fresh.Sync(t.Context()))
	old := aged(lockers.NewServerClock(pool, time.Second), time.Nanosecond)
	require.NoError(t, old.Sync(t.Context()))
	s.Mini.Close()
	assert.NoError(t, fresh.Sync(t.Context()), "a measurement is good until MaxAge")
	assert.Error(t, old.Sync(t.Context()))
}

// aged measures each time, and keeps a measurement for so long when it cannot.
func aged(c *lockers.ServerClock, most time.Duration) *lockers.ServerClock {
	c.Refresh, c.MaxAge = time.Nanosecond, most
	return c
}

// On a real server the offset of a clock on the same host is within the round trip.
func TestServerClockIsPrecise(t *testing.T) {
	s := redistest.Real(t)
	read := lockers.NewServerClock(s.Pool(), time.Second)
	require.NoError(t, read.Sync(t.Context()))
	offset, bound, _ := read.Offset()
	assert.LessOrEqual(t, offset.Abs(), bound+time.Millisecond)
}
