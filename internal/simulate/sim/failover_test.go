package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// TestFailoversComeAtTheirRate: failovers that are drawn come about as often as asked for, on each master at other times, and
// nothing runs while nobody answers. Clients whose clocks agree overlap only within a lease of a failover, and nowhere without one.
func TestFailoversComeAtTheirRate(t *testing.T) {
	const hours, every, outage = 6, 10 * time.Minute, 5 * time.Second
	f := legacyFleet(4)
	f.Until, f.Masters = hours*time.Hour, 2
	f.Server = Server{FailoverEvery: Uniform(every/2, 3*every/2), Outage: Fixed(outage), Behind: Uniform(0, 2*time.Second)}
	for i := range f.Clients {
		c := &f.Clients[i]
		c.Lease, c.Hold = 30*time.Second, Uniform(5*time.Second, 20*time.Second)
		c.Keys = []KeySet{{Prefix: "order:", Count: 2}}
	}
	var stops, starts [2][]protocol.Instant
	var sum Tally
	for master := range stops {
		w := World{Trace: func(r *Record) {
			switch {
			case r.Kind == Strikes && r.Fault.Kind == Outage:
				stops[master] = append(stops[master], r.At)
			case r.Kind == Strikes && r.Fault.Kind == Failover:
				starts[master] = append(starts[master], r.At)
			case r.Kind == Executes && len(stops[master]) > len(starts[master]):
				require.GreaterOrEqual(t, r.At, stops[master][len(stops[master])-1].Add(outage), "a command ran while nobody answered")
			case r.Kind == Overlaps:
				require.NotEmpty(t, starts[master])
				require.Less(t, r.At.Sub(starts[master][len(starts[master])-1]), time.Minute, "an overlap that no failover explains")
			}
		}}
		r := w.runMaster(f, 1, master)
		require.EqualValues(t, len(starts[master]), r.Failovers)
		require.InDelta(t, hours*float64(time.Hour/every), float64(r.Failovers), hours)
		sum.Add(&r.Tally)
	}
	require.NotEqual(t, stops[0][0], stops[1][0], "the masters fail together")
	require.Positive(t, sum.Hazards[LostUpdate])
	require.Positive(t, sum.Overlaps)
	f.Server = Server{}
	r := new(World).Run(f, 1)
	require.Zero(t, r.Overlaps)
	require.Zero(t, r.Failovers)
}

// TestAFailoverLosesTheLastMoments: a replica that is behind takes over, as with Sentinel. In every scheme a holder whose write
// was lost may meet another. A token lock is exclusive again when that holder is through. A blind DEL of the old code goes on
// to free the lock of the next. Behind a sidecar, a grant whose DEL the failover lost may keep the lock for one lease more.
func TestAFailoverLosesTheLastMoments(t *testing.T) {
	const mostHeld, lease = 500 * time.Millisecond, 10 * time.Second
	first, second := protocol.Instant(20*time.Second), protocol.Instant(50*time.Second)
	for scheme := range model.Scheme(model.Schemes) {
		t.Run(scheme.String(), func(t *testing.T) {
			f := legacyFleet(2)
			f.Until = 90 * time.Second
			f.Faults = []Fault{{At: first, Kind: Failover, Client: -1, By: 300 * time.Millisecond}, {At: second, Kind: Failover, Client: -1, By: 300 * time.Millisecond}}
			within := lease
			for i := range f.Clients {
				c := &f.Clients[i]
				c.Scheme, c.Lease, c.Think, c.Member.Release = scheme, lease, Uniform(0, 2*time.Second), c.Dialect.Release
				c.Settle, c.Grace = 50*time.Millisecond, 500*time.Millisecond
				switch scheme {
				case model.Bridge, model.Modern:
					c.Queue, c.Renew, c.Lease, c.Claim = true, time.Second, 3*time.Second, time.Second
					within = mostHeld + 100*time.Millisecond
				case model.Sidecar:
					c.Behind, c.Renew = c.Name, time.Second
				case model.GoLegacy:
					c.Member.Release, c.Renew = protocol.ReleaseCompare, 3*time.Second
				}
			}
			var overlaps, late int64
			w := World{Trace: func(r *Record) {
				switch r.Kind {
				case Overlaps:
					overlaps++
					since := r.At.Sub(first)
					if r.At >= second {
						since = r.At.Sub(second)
					}
					require.Positive(t, since, "an overlap before any failover")
					require.Less(t, since, within, "an overlap that no failover explains")
				case Enters:
					if r.At > second.Add(2*lease) {
						late++
					}
				}
			}}
			var lost int64
			for seed := range uint64(20) {
				late = 0
				r := w.Run(f, seed)
				lost += r.Hazards[LostUpdate]
				require.Positive(t, late, "seed %d: nobody gets the lock any more", seed)
				require.Zero(t, r.Hazards[FenceDisorder])
			}
			require.Positive(t, lost)
			require.Positive(t, overlaps, "no failover lost a lock that is held: the test shows nothing")
		})
	}
}
