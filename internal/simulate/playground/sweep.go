package playground

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Sweep is what the page shows of a sweep: two maps for each scheme, and the smallest runs that break. Times are in milliseconds.
type Sweep struct {
	Made    string             `json:"made"`
	Skews   []int64            `json:"skews"`
	Rows    map[string][]int64 `json:"rows"`  // of the maps: the leases, and the hold times
	Lease   int64              `json:"lease"` // while the hold time varies
	Hold    int64              `json:"hold"`  // while the lease varies
	Schemes []Scheme           `json:"schemes"`
	Runs    []*Smallest        `json:"runs"`
}

// Scheme is one scheme's two maps: rows of cells, as shade writes them.
type Scheme struct {
	sim.Row
	Maps map[string][][]int `json:"maps"`
}

// Smallest is the smallest run that breaks a row of a map with a clock ahead, or one behind.
type Smallest struct {
	*Run
	Scheme string `json:"scheme"`
	Axis   string `json:"axis"`
	Skew   int64  `json:"skew"` // of the cell
	Lease  int64  `json:"lease"`
	Hold   int64  `json:"hold"`
}

// mostRuns bounds the runs that a page has: it must stay a file that one can send.
const mostRuns = 400

// skewStep is the smallest change of a clock that a shrunk run distinguishes.
const skewStep = 100 * time.Millisecond

// place is where a smallest run belongs.
type place struct {
	scheme, axis string
	row          int64
	behind       bool
}

// OfSweep makes the page's view of a sweep that command made. It looks for the smallest runs, which takes most of its time.
func OfSweep(r *sim.Report, command string) *Sweep {
	g := &r.Grid
	s := &Sweep{
		Made:  fmt.Sprintf("%s: seed %d, trace %016x, %d server operations in %v of virtual time", command, r.Seed, r.Hash, r.Ops, r.Simulated.Round(time.Second)),
		Skews: list(g.Skews), Rows: map[string][]int64{"lease": list(g.Leases), "hold": list(g.Holds)}, Lease: g.Lease.Milliseconds(), Hold: g.Hold.Milliseconds(),
	}
	best := map[place]*sim.Outcome{}
	var order []place
	rest := r.Outcomes // in the order of Grid.Cells
	for i := range r.Rows {
		scheme := Scheme{Row: r.Rows[i], Maps: map[string][][]int{}}
		for _, axis := range []string{"lease", "hold"} {
			for _, row := range s.Rows[axis] {
				cells := make([]int, len(g.Skews))
				for c := range cells {
					o := &rest[c]
					cells[c] = shade(&o.Cell, o.Broken, o.Runs)
					at := place{scheme.Scheme, axis, row, o.Skew < 0}
					if o.Broken > 0 && best[at] == nil {
						order = append(order, at)
					}
					if was := best[at]; o.Broken > 0 && (was == nil || o.Skew.Abs() < was.Skew.Abs()) {
						best[at] = o
					}
				}
				scheme.Maps[axis] = append(scheme.Maps[axis], cells)
				rest = rest[len(cells):]
			}
		}
		s.Schemes = append(s.Schemes, scheme)
	}
	// The runs nearest to the grid's own lease and hold time come first.
	far := func(at place) time.Duration {
		o := best[at]
		d := (o.Lease - g.Lease).Abs() + (o.Hold - g.Hold).Abs()
		if o.Skew < 0 {
			d += time.Millisecond
		}
		return d
	}
	slices.SortStableFunc(order, func(a, b place) int { return cmp.Compare(far(a), far(b)) })
	w := new(sim.World)
	for _, at := range order[:min(len(order), mostRuns)] {
		s.Runs = append(s.Runs, shrink(w, best[at], at.axis))
	}
	f := scenario.Clobber().Fleet
	clobber := &Smallest{Run: look(w, &f, 1, "clocks agree, nobody overruns: a loser's GETSET shortens the winner's lease"), Scheme: "clobber"}
	clobber.Replay = "lockmigrate simulate --scheme clobber --as story"
	s.Runs = append(s.Runs, clobber)
	return s
}

func list(all []time.Duration) []int64 {
	n := make([]int64, len(all))
	for i, d := range all {
		n[i] = d.Milliseconds()
	}
	return n
}

// shrink finds the smallest run that breaks a cell's fleet.
func shrink(w *sim.World, o *sim.Outcome, axis string) *Smallest {
	planned, _ := sim.Planned(w, o.Fleet(), o.FirstSeed)
	small := sim.Shrink(w, planned, skewStep)
	run := look(w, small, 0, fmt.Sprintf("%s: the smallest run that breaks it at lease %v, hold %v.", o.Scheme, o.Lease, o.Hold))
	run.Replay = o.PlayCommand() + " --shrink"
	return &Smallest{run, o.Scheme, axis, o.Skew.Milliseconds(), o.Lease.Milliseconds(), o.Hold.Milliseconds()}
}
