package sim

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// Report is what a sweep found.
type Report struct {
	Sum
	Grid     Grid
	Outcomes []Outcome // in the order of Grid.Cells
	Rows     []Row
}

// Row is one line of the table: where a scheme breaks, and where it should.
type Row struct {
	Scheme     string
	Breaks     string // the least skew that broke it
	Predicted  string
	Cells      int
	Broken     int
	Overlaps   int64
	Unpromised int64
}

// Run plays all cells of a grid, each with so many seeds from one on: they are the cell's own, so that it can be run again alone. The report is
// the same for any number of cores. Progress, if it is not nil, is called now and then with the number of cells done.
func (g *Grid) Run(ctx context.Context, runs int, seed uint64, progress func(done int)) (*Report, error) {
	cells := g.Cells()
	r := &Report{Grid: *g, Outcomes: make([]Outcome, len(cells))}
	var done atomic.Int64
	Each(ctx, len(cells), func(w *World, i int) {
		o := &r.Outcomes[i]
		o.Cell = cells[i]
		fleet := o.Fleet()
		for n := range runs {
			result := w.Run(fleet, seed+uint64(n))
			o.Add(&result)
		}
		if n := done.Add(1); progress != nil && n%16 == 0 {
			progress(int(n))
		}
	})
	for i := range r.Outcomes {
		r.Add(&r.Outcomes[i].Result)
	}
	r.Seed = seed
	for _, scheme := range Schemes {
		if row := r.row(scheme); row.Cells > 0 { // of a scheme that did not run nothing is known
			r.Rows = append(r.Rows, row)
		}
	}
	return r, ctx.Err()
}

// row sums a scheme up. Its break is looked for where lease and hold time are the grid's own.
func (r *Report) row(scheme string) Row {
	row := Row{Scheme: scheme}
	var own []*Outcome
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Scheme != scheme {
			continue
		}
		row.Cells++
		row.Overlaps += o.Overlaps
		row.Unpromised += o.Unpromised()
		if o.Broken > 0 {
			row.Broken++
		}
		if o.Lease == r.Grid.Lease && o.Hold == r.Grid.Hold {
			own = append(own, o)
		}
	}
	row.Breaks = edges(own, func(o *Outcome) bool { return o.Broken > 0 })
	row.Predicted = edges(own, func(o *Outcome) bool { return o.Breaks() })
	return row
}

// edges are the least skews on either side of zero at which some cells break.
func edges(cells []*Outcome, breaks func(*Outcome) bool) string {
	if len(cells) == 0 {
		return "not tried"
	}
	sides := map[bool]*Outcome{} // ahead, or behind
	for _, o := range cells {
		if least := sides[o.Skew >= 0]; breaks(o) && (least == nil || o.Skew.Abs() < least.Skew.Abs()) {
			sides[o.Skew >= 0] = o
		}
	}
	switch behind, ahead := sides[false], sides[true]; {
	case ahead != nil && ahead.Skew == 0:
		return "any skew"
	case ahead != nil && behind != nil:
		return signedSeconds(behind.Skew) + ", " + signedSeconds(ahead.Skew)
	case ahead != nil:
		return signedSeconds(ahead.Skew)
	case behind != nil:
		return signedSeconds(behind.Skew)
	}
	return "nowhere"
}

// PlayCommand is the command line that plays a cell's first broken run again.
func (o *Outcome) PlayCommand() string {
	return fmt.Sprintf("lockmigrate simulate --scheme %s --skew=%v --lease %v --hold %v --seed %d --as story", o.Scheme, o.Skew, o.Lease, o.Hold, o.FirstSeed)
}

func signedSeconds(d time.Duration) string { return strings.Replace(signed(d), "-", "−", 1) }
