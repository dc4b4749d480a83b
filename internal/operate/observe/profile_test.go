package observe

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestProfileOfDrift wants the drift of a clock that runs 200 ppm fast, within its error.
func TestProfileOfDrift(t *testing.T) {
	tp := newTape(Options{Lease: 10 * time.Second})
	for n := range time.Duration(600) {
		for i, ppm := range []time.Duration{0, 200} {
			at := n * time.Second
			tp.at = epoch.Add(at + 20*time.Millisecond*time.Duration(i))
			tp.turn(fmt.Sprintf("10.0.0.%d:1", i+1), fmt.Sprint("lock:", i), 10*time.Second, at*ppm/1_000_000, (n*7+time.Duration(i))%3*time.Millisecond)
		}
	}
	tp.report()
	p := tp.o.Profile()
	require.Len(t, p.Clients, 2)
	for _, c := range p.Clients {
		want := 0.0
		if c.Name == "10.0.0.2:1" {
			want = 200
		}
		ppm, off, known := c.Drift()
		t.Log(c.Name, ppm, off, c.Clock)
		assert.True(t, known)
		assert.InDelta(t, want, ppm, off)
		assert.Less(t, off, 150.0)
	}
}
