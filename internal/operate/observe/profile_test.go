package observe

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
)

// script writes lines as MONITOR does: at milliseconds, by a client, a command.
type recording struct{ strings.Builder }

func (r *recording) at(ms int64, client, command string, args ...any) {
	fmt.Fprintf(r, "%d.%06d [0 %s] %q", 1_700_000_000+ms/1000, ms%1000*1000, client, command)
	for _, a := range args {
		fmt.Fprintf(r, " %q", fmt.Sprint(a))
	}
	r.WriteString("\n")
}

// expiry is what a client writes at a time, with a clock that is off, for a lease of ten seconds.
func expiry(ms, off int64) int64 { return 1_700_000_000_000 + ms + off + 10_001 }

func (r *recording) profile(t *testing.T, opts Options) profile.Profile {
	t.Helper()
	o := New(opts)
	o.Keys.Scanning(0)
	o.Keys.Complete()
	require.NoError(t, ReadFile(context.Background(), strings.NewReader("OK\n"+r.String()+"garbage\n"), o))
	assert.EqualValues(t, 1, o.Report().Garbled)
	p := o.Profile()
	require.NoError(t, p.Validate())
	return p
}

// TestProfileOfDrift wants the drift of a clock that runs 200 ppm fast, within its error.
func TestProfileOfDrift(t *testing.T) {
	var r recording
	for n := range int64(600) {
		at := n * 1000
		for i, ppm := range []int64{0, 200} {
			who := fmt.Sprintf("10.0.0.%d:1", i+1)
			delay := (n*7 + int64(i)) % 3
			r.at(at+delay, who, "SETNX", fmt.Sprint("lock:", i), expiry(at, at*ppm/1_000_000))
			r.at(at+delay+10, who, "DEL", fmt.Sprint("lock:", i))
		}
	}
	p := r.profile(t, Options{Lease: 10_000_000_000})
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

// TestProfileOfAHostsClocks: the stretches of two connections of one host overlap, and the readings of its clock are in order.
func TestProfileOfAHostsClocks(t *testing.T) {
	var r recording
	for at := int64(0); at < 12_000; at += 100 {
		for n, begins := range []int64{0, 3_000} {
			if at < begins {
				continue
			}
			delay := int64(3)
			if at == []int64{5_000, 7_900}[n] { // the largest sample of its stretch
				delay = 0
			}
			who, key := fmt.Sprintf("10.0.0.1:%d", n), fmt.Sprint("lock:", n)
			r.at(at, who, "SETNX", key, expiry(at, -delay))
			r.at(at+5, who, "DEL", key)
		}
	}
	p := r.profile(t, Options{Group: ByHost, Lease: 10_000_000_000})
	require.Len(t, p.Clients, 1)
	assert.GreaterOrEqual(t, len(p.Clients[0].Clock), 2)
}
