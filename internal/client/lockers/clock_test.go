package lockers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func TestServerClockIsRefreshed(t *testing.T) {
	s := redistest.Mini(t)
	read := aged(lockers.NewServerClock(s.Pool(), time.Second), time.Hour)
	require.NoError(t, read.Sync(t.Context()))
	s.Mini.SetTime(time.Now().Add(-time.Hour))
	require.NoError(t, read.Sync(t.Context()))
	assert.WithinDuration(t, time.Now().Add(-time.Hour), read.Now(), time.Second)
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
	began := time.Now()
	require.NoError(t, read.Sync(t.Context()))
	trips := time.Since(began)
	assert.WithinDuration(t, time.Now(), read.Now(), trips/2+time.Millisecond)
}
