package sim

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
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
