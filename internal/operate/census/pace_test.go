package census

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func TestPagesAdaptToTheServer(t *testing.T) {
	for _, c := range []struct {
		count     int
		roundTrip time.Duration
		cost      time.Duration
		want      int
	}{
		{100, 0, time.Millisecond, 200},
		{1000, 0, time.Millisecond, 1000},
		{100, 0, 5 * time.Millisecond, 100},
		{100, 0, 20 * time.Millisecond, 50},
		{10, 0, time.Second, 10},
		{100, 30 * time.Millisecond, 31 * time.Millisecond, 200}, // far away, and quick
		{100, 30 * time.Millisecond, 45 * time.Millisecond, 100},
		{100, 30 * time.Millisecond, 90 * time.Millisecond, 50},
	} {
		s := scanner{count: c.count, most: mostCount, roundTrip: c.roundTrip}
		s.adapt(c.cost)
		assert.Equal(t, c.want, s.count, "%+v", c)
	}
}

func TestScanKeepsTheRate(t *testing.T) {
	s := redistest.Mini(t)
	for i := range 300 {
		s.Mini.Set(fmt.Sprint("k", i), "v")
	}
	_, sum, err := scan(t, s, Options{Rate: 1000})
	require.NoError(t, err)
	assert.EqualValues(t, 300, sum.Scanned)
	assert.GreaterOrEqual(t, sum.Elapsed, 250*time.Millisecond)
}
