package sim

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// TestBoundary finds where each scheme breaks without being told, and compares it with the closed
// form: it must lie within one step of the grid.
func TestBoundary(t *testing.T) {
	redistest.Need(t, redistest.Proofs)
	redistest.Unraced(t)
	g := StandardGrid()
	const step = time.Second
	r, err := g.Run(t.Context(), 5, 1, nil)
	require.NoError(t, err)
	at := map[[3]time.Duration]map[string]*Outcome{}
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		require.Zero(t, o.Unpromised(), "%s, skew %v, lease %v, hold %v, seed %d", o.Scheme, o.Skew, o.Lease, o.Hold, o.FirstSeed)
		k := [3]time.Duration{o.Skew, o.Lease, o.Hold}
		if at[k] == nil {
			at[k] = map[string]*Outcome{}
		}
		at[k][o.Scheme] = o
		if o.Scheme == "bridge" || o.Scheme == "modern" {
			require.Zero(t, o.Overlaps)
			require.Positive(t, o.Acquisitions)
		}
	}
	for k, schemes := range at {
		o := schemes["legacy"]
		if (o.Broken > 0) == o.Breaks() {
			continue
		}
		outward, inward := o.Cell, o.Cell // one step away from 0, and one step nearer
		outward.Skew, inward.Skew = k[0]+sign(k[0])*step, k[0]-sign(k[0])*step
		require.True(t, outward.Breaks() != o.Breaks() || inward.Breaks() != o.Breaks(),
			"skew %v, lease %v, hold %v: %d of %d runs broke, predicted that it breaks: %v", k[0], k[1], k[2], o.Broken, o.Runs, o.Breaks())
	}
}

func sign(d time.Duration) time.Duration {
	if d < 0 {
		return -1
	}
	return 1
}

// TestSameAtAnyNumberOfThreads compares outcomes and hashes.
func TestSameAtAnyNumberOfThreads(t *testing.T) {
	g := StandardGrid()
	g.Skews, g.Leases, g.Holds = Range(-12*time.Second, 12*time.Second, 6*time.Second), g.Leases[:4], g.Holds[:4]
	var first *Report
	for _, threads := range []int{1, 2, 7} {
		before := runtime.GOMAXPROCS(threads)
		r, err := g.Run(t.Context(), 2, 7, nil)
		runtime.GOMAXPROCS(before)
		require.NoError(t, err)
		if first == nil {
			first = r
		}
		require.Equal(t, first, r, "%d threads", threads)
	}
}

// cell is one of a sweep.
func cell(scheme string, skew, lease, hold time.Duration) *Cell {
	return &Cell{Scheme: scheme, Skew: skew, Lease: lease, Hold: hold, Clients: 4, Poll: lease / 40}
}

// TestTokenLocksSurviveEverythingPromised: drift, losses, crashes, and clocks that are stepped.
func TestTokenLocksSurviveEverythingPromised(t *testing.T) {
	for _, scheme := range []string{"bridge", "modern"} {
		for _, hold := range Range(time.Second, 20*time.Second, 2*time.Second) {
			c := cell(scheme, time.Hour, 10*time.Second, hold)
			c.Clients = 6
			f := c.Fleet()
			f.Network.LoseReply, f.Network.LoseRequest, f.Network.Repeat, f.Network.RepeatReply = 5000, 5000, 5000, 5000
			for i := range f.Clients {
				f.Clients[i].DriftPPM = 500 * int64(1-2*(i%2))
				f.Clients[i].Chaos = Chaos{CrashEvery: Uniform(5*time.Second, time.Minute), Restart: Fixed(time.Second), StepEvery: Uniform(time.Second, time.Minute), Step: Uniform(-time.Hour, time.Hour)}
			}
			sum := RunAll(f, 3, 40, nil)
			require.Zero(t, sum.Overlaps, "%s hold %v seed %d", scheme, hold, sum.FirstSeed)
			require.Zero(t, sum.Hazards[FenceDisorder])
		}
	}
}

// BenchmarkTenThousandCells is a sweep of 10,000 cells with 100 seeds each; `-benchtime 1x`.
func BenchmarkTenThousandCells(b *testing.B) {
	g := Grid{
		Schemes: Schemes, Lease: 10 * time.Second, Hold: 2 * time.Second,
		Skews:  Range(-12*time.Second, 12*time.Second, 500*time.Millisecond),
		Leases: Range(3*time.Second, 10*time.Second, 500*time.Millisecond)[:14],
		Holds:  Range(time.Second, 12*time.Second, 500*time.Millisecond)[:20],
	}
	var ops int64
	for b.Loop() {
		r, err := g.Run(b.Context(), 100, 1, nil)
		require.NoError(b, err)
		ops += r.Ops
	}
	b.ReportMetric(float64(len(g.Cells())), "cells") // 49 skews x 34 rows x 6 schemes
	b.ReportMetric(float64(ops)/b.Elapsed().Seconds(), "ops/s")
}

// parsed is the fleet that a text describes.
func parsed(text string) *Fleet {
	s, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return &s.Fleet
}

func legacyFleet(n int) *Fleet {
	return parsed(fmt.Sprintf("run 1m\nnetwork 100us/200us/1ms/5ms\nclient c-* legacy count=%d release=blind hold=50ms..500ms think=0s..500ms first=0s..500ms", n))
}

// BenchmarkSixClients is the documented scenario: six old clients near their server, the referee on.
func BenchmarkSixClients(b *testing.B) {
	f := legacyFleet(6)
	var w World
	var ops int64
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ops += w.Run(f, uint64(i)).Ops
	}
	b.ReportMetric(float64(ops)/b.Elapsed().Seconds(), "ops/s")
}

// hourly is a fleet of old clients whose clocks agree, and whose work never outlasts the lease.
func hourly(clients int) *Fleet {
	f := legacyFleet(clients)
	f.Until = time.Hour
	for i := range f.Clients {
		c := &f.Clients[i]
		c.Hold, c.Think, c.Member.Release = Uniform(time.Second, 5*time.Second), Uniform(0, 5*time.Second), c.Dialect.Release
	}
	return f
}

// fails gives the fleet's server failovers, and the key pauses: where the replica has the lock of the holder before, that keeps others away.
func fails(f *Fleet) {
	f.Server = Server{FailoverEvery: Uniform(30*time.Second, time.Minute), Outage: Fixed(time.Second), Behind: Fixed(2 * time.Second)}
	for i := range f.Clients {
		f.Clients[i].Think = Uniform(0, 20*time.Second)
	}
}

// tried runs a fleet, and returns what clients are to blame for beside the causes.
func tried(t *testing.T, f *Fleet) (Tally, []int) {
	t.Helper()
	w := new(World)
	r := w.Run(f, 1)
	sum, blamed := int64(0), r.Causes[FailedOver]
	for _, x := range r.Causes {
		sum += x
	}
	for _, x := range w.Blamed {
		blamed += int64(x)
	}
	require.Equal(t, []int64{r.Overlaps, r.Overlaps}, []int64{sum, blamed}, "each overlap has one cause, and one who is to blame")
	return r.Tally, w.Blamed
}

// TestEachCause: a fleet with one thing wrong has the overlaps of that cause, and the stale deletes that follow from it.
func TestEachCause(t *testing.T) {
	right, _ := tried(t, hourly(4))
	require.Zero(t, right.Overlaps, "nothing is wrong")
	for _, c := range []struct {
		cause Cause
		wrong func(f *Fleet)
		by    int
	}{
		{Skew, func(f *Fleet) { f.Clients[2].Offset = 8 * time.Second }, 2},
		{Skew, func(f *Fleet) { f.Clients[1].DriftPPM = 2500 }, 1}, // 9 s at the end
		{Overran, func(f *Fleet) { f.Clients[3].Hold = Uniform(8*time.Second, 13*time.Second) }, 3},
		{FailedOver, fails, server},
	} {
		t.Run(c.cause.String(), func(t *testing.T) {
			f := hourly(4)
			c.wrong(f)
			r, blamed := tried(t, f)
			require.Positive(t, r.Causes[c.cause])
			for cause, n := range r.Causes {
				// A stale delete that comes before the winner has heard of its lock is not seen, and is taken for a skew. It is rare.
				if Cause(cause) != c.cause && Cause(cause) != Deleted {
					require.LessOrEqual(t, n, r.Overlaps/50, Cause(cause))
				}
			}
			require.Zero(t, r.Told, "the old code hears of nothing")
			if c.by == server {
				require.Zero(t, r.Causes[Deleted], "what follows from a failover is the failover's")
				return
			}
			for i, n := range blamed {
				if i != c.by {
					require.LessOrEqual(t, int64(n), r.Causes[Deleted], "%d", i)
				}
			}
			require.GreaterOrEqual(t, int64(blamed[c.by]), r.Causes[c.cause])
		})
	}
}

// TestTold: a holder of a token hears at its next renewal that a failover has lost its lock; one without renewals does not.
func TestTold(t *testing.T) {
	for _, renew := range []time.Duration{500 * time.Millisecond, 0} {
		f := hourly(3)
		fails(f)
		for i := range f.Clients {
			c := &f.Clients[i]
			c.Scheme, c.Renew = model.Modern, renew
		}
		r, _ := tried(t, f)
		require.Positive(t, r.Causes[FailedOver])
		require.Equal(t, r.Overlaps, r.Causes[FailedOver])
		require.Equal(t, renew > 0, r.Told[FailedOver] > 0, "%+v", r)
	}
}
