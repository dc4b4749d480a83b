package observe

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
		o := New(Options{})
		for i, sum := range c.sums {
			one := &leads{trip: time.Millisecond, of: protocol.JedisMS, clock: unbounded}
			for range enough {
				one.add(lead{ahead: sum}, time.Millisecond)
			}
			addr := fmt.Sprint("10.0.0.", i)
			o.clients[addr] = &client{o: o, addr: addr, uses: map[string]*use{"f": {leads: map[bool]*leads{false: one}}}}
		}
		o.solve(true)
		assert.Equal(t, c.sure, o.family("f").lease.doubt == "", c.sums)
	}
}
