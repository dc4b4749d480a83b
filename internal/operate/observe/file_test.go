package observe

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func TestMain(m *testing.M) {
	holders.ServeIfAsked(nil)
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// TestFromFile reads a recorded stream whose keys are not known at the start.
func TestFromFile(t *testing.T) {
	recorded := `OK
1700000000.000000 [0 10.0.0.1:1] "SETNX" "lock:a" "1700000030001"
1700000000.000400 [0 10.0.0.1:1] "GET" "lock:a"
1700000000.100000 [0 10.0.0.1:1] "SETNX" "lock:a" "1700000030101"
1700000000.100400 [0 10.0.0.1:1] "GET" "lock:a"
1700000000.150000 [0 10.0.0.2:1] "DEL" "lock:a"
1700000000.200000 [0 10.0.0.1:1] "SETNX" "lock:a" "1700000030201"
1700000000.210000 [0 10.0.0.3:1] "SETNX" "lock:a" "1700000035211"
1700000000.210300 [0 10.0.0.3:1] "GET" "lock:a"
1700000000.300000 [0 10.0.0.1:1] "DEL" "lock:a"
garbage
1700000000.310000 [0 10.0.0.3:1] "SETNX" "lock:a" "1700000035311"
1700000000.320000 [0 10.0.0.4:1] "DEL" "lock:a"
1700000000.330000 [0 10.0.0.4:1] "SETNX" "lock:a" "1700000030331"
1700000000.340000 [0 10.0.0.3:1] "DEL" "lock:a"
`
	o := New(Options{})
	require.NoError(t, ReadFile(context.Background(), strings.NewReader(recorded), o))
	r := o.Report()
	assert.EqualValues(t, 1, r.Garbled)
	assert.EqualValues(t, 13, r.Commands)
	rows := map[string]Row{}
	for _, row := range r.Clients {
		rows[row.Addr] = row
	}
	assert.EqualValues(t, 1, rows["10.0.0.1:1"].Acquired, "the first outcomes are settled by its own GET")
	assert.EqualValues(t, 30_000, *rows["10.0.0.3:1"].LeaseMS)
	assert.InDelta(t, 5000, *rows["10.0.0.3:1"].SkewMS, 5)
	assert.Equal(t, map[string]int64{"stale-delete": 2}, r.Hazards)
	require.Len(t, r.Overlaps, 1)
	assert.Equal(t, "10.0.0.3:1", r.Overlaps[0].First.Addr)
	assert.Equal(t, "10.0.0.4:1", r.Overlaps[0].Second.Addr)
	assert.NoError(t, o.Profile().Validate())
}

func TestRoundLease(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		sums []time.Duration
		want time.Duration
		sure bool
	}{
		{[]time.Duration{-60 * s, 30 * s, 30 * s, 30 * s, 120 * s}, 30 * s, true},
		{[]time.Duration{-60 * s, 25 * s, 30 * s, 35 * s, 120 * s}, 30 * s, false}, // most clocks are wrong with it
		{[]time.Duration{30*s + 3*time.Millisecond}, 30 * s, false},
		{[]time.Duration{60 * s, 60*s + 8*time.Millisecond, 72 * s}, 60 * s, true},
		{[]time.Duration{300 * time.Millisecond, 301 * time.Millisecond}, 300 * time.Millisecond, true},
		// A lease of 4.5 s, or three clocks that are wrong by the same half a second: nobody can tell.
		{[]time.Duration{4500 * time.Millisecond, 4501 * time.Millisecond, 4502 * time.Millisecond, 7 * s}, 5 * s, false},
	} {
		var fleet []*host
		for _, sum := range c.sums {
			fleet = append(fleet, &host{sum: sum, leads: &leads{quantum: time.Millisecond}})
		}
		assert.Equal(t, c.want, roundLease(fleet, unbounded), c.sums)
		seen := map[writer]*leads{}
		for i, sum := range c.sums {
			one := &leads{trip: time.Millisecond, of: protocol.JedisMS, clock: unbounded}
			for range enough {
				one.add(lead{ahead: sum}, time.Millisecond)
			}
			seen[writer{client: &client{o: New(Options{}), addr: fmt.Sprint("10.0.0.", i)}, family: "f"}] = one
		}
		assert.Equal(t, c.sure, solve(seen, nil, 0).family["f"].doubt == "", c.sums)
	}
}

func TestFamilyOf(t *testing.T) {
	for key, want := range map[string]string{
		"lock:order:17": "lock:order:#", "lock:mail": "lock:mail", "job42": "job#", "a1b2c3d4e5": "#",
		"": "", "x\x00y9z": "x\x00y#z", "deadbeef": "deadbeef",
	} {
		assert.Equal(t, want, Family(key), key)
	}
	assert.Equal(t, Family("u:7f9c24e8-3b12-4fe1-91e0-5b7e6c1d2a30"), Family("u:aa9c24e8-3c12-4fe2-91f0-5b7e6c1d2a31"))
}
