package sim

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// TestFailoversComeAtTheirRate: failovers that are drawn come about as often as asked for, on each master at other times, and
// nothing runs while nobody answers. Clients whose clocks agree overlap only within a lease of a failover, and nowhere without one.
func TestFailoversComeAtTheirRate(t *testing.T) {
	redistest.Unraced(t) // one goroutine
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

// smallFleet is 40 clients of a service on 20 keys of 4 masters, so that they meet. A client takes a lock about once a second, and crashes.
func smallFleet(scheme model.Scheme) *Fleet {
	tokens := ""
	if !scheme.Old() {
		tokens = " queue fence renew=10s settle=50ms grace=1s yield=300ms"
	}
	return parsed("run 30s\nmasters 4\nnetwork 100us/200us/1ms/5ms\nclient s-* " + scheme.String() + " count=40 keys=order-0:*20 lease=30s hold=5ms..100ms think=500ms..1400ms" +
		" first=0s..1s crash-every=5s..20s restart=1s" + tokens)
}

func TestAnyNumberOfCoresIsOneResult(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, scheme := range []model.Scheme{model.Legacy, model.Bridge, model.Modern, model.Sidecar} {
		f := smallFleet(scheme)
		var results [3]Sum
		for i, cores := range []int{1, 2, 5} {
			runtime.GOMAXPROCS(cores)
			results[i] = RunAll(f, 7, 3, nil)
		}
		require.Equal(t, results[0], results[1], scheme)
		require.Equal(t, results[0], results[2], scheme)
		sum := results[0]
		require.Greater(t, sum.Acquisitions, int64(1000), scheme)
		require.Greater(t, sum.LongestWait, 30*time.Millisecond, "nobody met: the fleet says nothing about exclusion")
	}
}

// Clients that share keys share them on every master; those that do not never meet, whatever their clocks say.
func TestKeysAreShared(t *testing.T) {
	f := smallFleet(model.Legacy)
	for i := range f.Clients {
		f.Clients[i].Chaos = Chaos{}
	}
	f.Clients[3].Offset = time.Minute
	pairs := 0
	RunAll(f, 1, 5, func(int, int) { pairs++ })
	require.Positive(t, pairs, "a clock ahead by two leases breaks the lock")

	for i := range f.Clients {
		f.Clients[i].Keys = []KeySet{{Prefix: fmt.Sprint("own-", i, ":"), Count: 20}}
	}
	pairs = 0
	RunAll(f, 1, 5, func(int, int) { pairs++ })
	require.Zero(t, pairs, "each has keys of its own")
}

// A client with keys on several masters takes as many turns as the same client with one.
func TestMastersKeepTheRate(t *testing.T) {
	f := smallFleet(model.Modern)
	f.Until = 2 * time.Minute
	for i := range f.Clients {
		f.Clients[i].Chaos = Chaos{}
		f.Clients[i].Keys[0].Count = 200
	}
	w := new(World)
	parted := RunAll(f, 1, 1, nil).Turns
	for master := range f.Masters {
		require.InEpsilon(t, float64(parted)/4, w.runMaster(f, 1, master).Turns, 0.25, "each master has about a quarter of the keys")
	}
	f.Masters = 0
	require.InEpsilon(t, w.Run(f, 1).Turns, parted, 0.05)
}

// What befalls a process befalls it on all masters at the same time.
func TestACrashIsEverywhere(t *testing.T) {
	f := smallFleet(model.Legacy)
	crashes := map[int32]map[protocol.Instant]int{}
	w := World{Trace: func(r *Record) {
		if r.Kind == Strikes {
			if crashes[r.Client] == nil {
				crashes[r.Client] = map[protocol.Instant]int{}
			}
			crashes[r.Client][r.At]++
		}
	}}
	for master := range f.Masters {
		w.runMaster(f, 1, master)
	}
	require.Len(t, crashes, 40)
	for client, times := range crashes {
		for at, n := range times {
			require.Equal(t, 4, n, "client %d at %v", client, at)
		}
	}
}
