package observe

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// turn is a client that takes a lock at an instant, with a clock that is off, and gives it back.
func (t *tape) turn(at, delay, off time.Duration, addr, key string) {
	t.at = epoch.Add(at)
	value := t.ms(10*time.Second + off)
	t.wait(delay)
	t.run(addr, "SETNX", key, value)
	t.wait(5 * time.Millisecond)
	t.run(addr, "DEL", key)
}

// TestProfileOfDrift wants the drift of a clock that runs 200 ppm fast, within its error.
func TestProfileOfDrift(t *testing.T) {
	tp := newTape(Options{Lease: 10 * time.Second})
	for n := range time.Duration(600) {
		for i, ppm := range []time.Duration{0, 200} {
			at := n * time.Second
			tp.turn(at+20*time.Millisecond*time.Duration(i), (n*7+time.Duration(i))%3*time.Millisecond, at*ppm/1_000_000, fmt.Sprintf("10.0.0.%d:1", i+1), fmt.Sprint("lock:", i))
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
