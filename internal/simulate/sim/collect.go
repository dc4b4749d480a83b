package sim

import (
	"fmt"
	"strings"
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

// Collect makes a report of a sweep's outcomes.
func Collect(table Grid, outcomes []Outcome, seed uint64) *Report {
	r := &Report{Grid: table, Outcomes: outcomes}
	for i := range outcomes {
		r.Add(&outcomes[i].Result)
	}
	r.Seed = seed
	for _, scheme := range Schemes {
		if row := row(table, outcomes, scheme); row.Cells > 0 { // of a scheme that did not run nothing is known
			r.Rows = append(r.Rows, row)
		}
	}
	return r
}

// row sums a scheme up. Its break is looked for where lease and hold time are the grid's own.
func row(table Grid, outcomes []Outcome, scheme string) Row {
	r := Row{Scheme: scheme}
	var own []*Outcome
	for i := range outcomes {
		o := &outcomes[i]
		if o.Scheme != scheme {
			continue
		}
		r.Cells++
		r.Overlaps += o.Overlaps
		r.Unpromised += o.Unpromised()
		if o.Broken > 0 {
			r.Broken++
		}
		if o.Lease == table.Lease && o.Hold == table.Hold {
			own = append(own, o)
		}
	}
	r.Breaks = edges(own, func(o *Outcome) bool { return o.Broken > 0 })
	r.Predicted = edges(own, func(o *Outcome) bool { return o.Breaks() })
	return r
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
