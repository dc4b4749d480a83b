package grid

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Outcome is what the runs of a cell came to.
type Outcome struct {
	Cell
	Runs      int
	Broken    int    // runs with an overlap
	FirstSeed uint64 // of the first broken run
	Hash      uint64 // over all its runs' traces
	Ops       int64
	Simulated time.Duration
	sim.Tally
}

// Plan is a list of cells and how often to run each.
type Plan struct {
	Cells   []Cell
	Runs    int
	Seed    uint64
	Workers int // 0 is one for each core
	// Progress, if set, is called now and then with the number of cells done.
	Progress func(done int)
}

// Run runs all cells. The outcome is the same for any number of workers.
func (p *Plan) Run(ctx context.Context) ([]Outcome, error) {
	outcomes := make([]Outcome, len(p.Cells))
	workers := p.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var next, done atomic.Int64
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			var w sim.World
			for {
				i := int(next.Add(1)) - 1
				if i >= len(p.Cells) || ctx.Err() != nil {
					return
				}
				outcomes[i] = p.cell(&w, i)
				if n := done.Add(1); p.Progress != nil && n%16 == 0 {
					p.Progress(int(n))
				}
			}
		})
	}
	group.Wait()
	return outcomes, ctx.Err()
}

// cell runs one cell. Its seeds are its own, so that it can be run again alone.
func (p *Plan) cell(w *sim.World, i int) Outcome {
	o := Outcome{Cell: p.Cells[i], Runs: p.Runs}
	fleet := o.Fleet()
	for n := range p.Runs {
		seed := p.Seed + uint64(n)
		r := w.Run(fleet, seed)
		if r.Overlaps > 0 {
			if o.Broken == 0 {
				o.FirstSeed = seed
			}
			o.Broken++
		}
		o.Hash = o.Hash*0x9e3779b97f4a7c15 ^ r.Hash
		o.Ops += r.Ops
		o.Simulated += r.Simulated
		o.Tally.Add(&r.Tally)
	}
	return o
}

// Unpromised counts the overlaps that break a promise: any where the scheme promises to hold, and any
// between two clients of the new schemes.
func (o *Outcome) Unpromised() int64 {
	if o.Promised() {
		return o.Overlaps
	}
	if !o.tokensPromised() {
		return 0
	}
	return o.Pairs[2][2] + o.Pairs[2][3] + o.Pairs[3][2] + o.Pairs[3][3]
}

// Grid is the axes of a sweep. Two maps are drawn for each scheme: skew against lease with the hold time
// fixed, and skew against hold time with the lease fixed.
type Grid struct {
	Schemes []string
	Skews   []time.Duration
	Leases  []time.Duration
	Holds   []time.Duration
	Lease   time.Duration // while the hold time varies
	Hold    time.Duration // while the lease varies
}

// StandardGrid is the grid of a sweep that is given no other.
func StandardGrid() Grid {
	return Grid{
		Schemes: Schemes,
		Skews:   Range(-12*time.Second, 12*time.Second, time.Second),
		Leases:  Range(3*time.Second, 12*time.Second, time.Second),
		Holds:   Range(time.Second, 12*time.Second, time.Second),
		Lease:   10 * time.Second,
		Hold:    2 * time.Second,
	}
}

// Range lists the durations from lo to hi.
func Range(lo, hi, step time.Duration) []time.Duration {
	var all []time.Duration
	for d := lo; d <= hi && step > 0; d += step {
		all = append(all, d)
	}
	return all
}

// Cells lists the grid's cells: for each scheme first the map of leases, then that of hold times.
func (g *Grid) Cells(s *Setting) []Cell {
	var cells []Cell
	for _, scheme := range g.Schemes {
		for _, lease := range g.Leases {
			for _, skew := range g.Skews {
				cells = append(cells, Cell{scheme, skew, lease, g.Hold, s})
			}
		}
		for _, hold := range g.Holds {
			for _, skew := range g.Skews {
				cells = append(cells, Cell{scheme, skew, g.Lease, hold, s})
			}
		}
	}
	return cells
}
