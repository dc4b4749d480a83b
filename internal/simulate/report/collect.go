package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// maxRuns bounds the runs that a report draws: it must stay a file that one can send.
const maxRuns = 34

// skewStep is the smallest change of a clock that a shrunk run distinguishes.
const skewStep = 100 * time.Millisecond

// Collect makes a report of a sweep's outcomes.
func Collect(table sim.Grid, outcomes []sim.Outcome, seed uint64) *Report {
	r := &Report{Seed: seed, Grid: table, Outcomes: outcomes}
	var hash uint64
	for i := range outcomes {
		o := &outcomes[i]
		hash = hash*0x9e3779b97f4a7c15 ^ o.Hash
		r.Ops += o.Ops
		r.Simulated += o.Simulated
	}
	r.TraceHash = fmt.Sprintf("%016x", hash)
	for _, scheme := range sim.Schemes {
		if row := row(table, outcomes, scheme); row.Cells > 0 { // of a scheme that did not run nothing is known
			r.Rows = append(r.Rows, row)
		}
	}
	return r
}

// row sums a scheme up. Its break is looked for where lease and hold time are the grid's own.
func row(table sim.Grid, outcomes []sim.Outcome, scheme string) Row {
	r := Row{Scheme: scheme}
	var found, closed edges
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
			found.note(o.Skew, o.Broken > 0)
			closed.note(o.Skew, o.Predict() == sim.Breaks)
		}
	}
	r.Breaks, r.Predicted = found.String(), closed.String()
	return r
}

// edges are the least skews on either side of zero at which a scheme breaks.
type edges struct {
	ahead, behind              time.Duration
	hasAhead, hasBehind, tried bool
}

// What edges say without a skew: no cell broke, or the sweep has no cell of that lease and hold time.
const (
	nowhere  = "nowhere"
	notTried = "not tried"
)

func (e *edges) note(skew time.Duration, breaks bool) {
	e.tried = true
	switch {
	case !breaks:
	case skew >= 0 && (!e.hasAhead || skew < e.ahead):
		e.ahead, e.hasAhead = skew, true
	case skew < 0 && (!e.hasBehind || skew > e.behind):
		e.behind, e.hasBehind = skew, true
	}
}

func (e *edges) String() string {
	switch {
	case e.hasAhead && e.ahead == 0:
		return "any skew"
	case e.hasAhead && e.hasBehind:
		return signedSeconds(e.behind) + ", " + signedSeconds(e.ahead)
	case e.hasAhead:
		return signedSeconds(e.ahead)
	case e.hasBehind:
		return signedSeconds(e.behind)
	case e.tried:
		return nowhere
	default:
		return notTried
	}
}

// Shrink adds a minimal run for each row of the maps that breaks: its break with the smallest skew, on
// either side of zero; and last the break that needs no skew at all.
func (r *Report) Shrink() {
	best := map[string]*sim.Outcome{}
	var order []string
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Broken == 0 {
			continue
		}
		axis, value := r.axis(i, o)
		id := RunID(o.Scheme, axis, value, o.Skew < 0)
		if best[id] == nil {
			order = append(order, id)
		}
		if was := best[id]; was == nil || o.Skew.Abs() < was.Skew.Abs() {
			best[id] = o
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(rank(r.Grid, best[a]), rank(r.Grid, best[b])) })
	w := new(sim.World)
	for _, id := range order[:min(len(order), maxRuns)] {
		r.Runs = append(r.Runs, ShrinkCell(w, id, best[id]))
	}
	r.Runs = append(r.Runs, clobberRun(w))
}

// rank prefers the runs nearest to the grid's own lease and hold time.
func rank(g sim.Grid, o *sim.Outcome) time.Duration {
	d := (o.Lease - g.Lease).Abs() + (o.Hold - g.Hold).Abs()
	if o.Skew < 0 {
		d += time.Millisecond
	}
	return d
}

// axis tells which map an outcome belongs to, and its row.
func (r *Report) axis(i int, o *sim.Outcome) (string, time.Duration) {
	perScheme := (len(r.Grid.Leases) + len(r.Grid.Holds)) * len(r.Grid.Skews)
	if i%perScheme < len(r.Grid.Leases)*len(r.Grid.Skews) {
		return "lease", o.Lease
	}
	return "hold", o.Hold
}

// ShrinkCell finds the smallest run that breaks a cell's fleet.
func ShrinkCell(w *sim.World, id string, o *sim.Outcome) Run {
	planned, _ := sim.Planned(w, o.Fleet(), o.FirstSeed)
	small := sim.NewShrinker(w, skewStep).Shrink(planned)
	records, result := Trace(w, small, 0)
	s := scenario.Scenario{
		Purpose: []string{fmt.Sprintf("%s: the smallest run that breaks it at lease %v, hold %v.", o.Scheme, o.Lease, o.Hold)},
		Fleet:   *small, Seed: 1, Seeds: 1,
		Expect: []scenario.Expectation{{What: "overlaps", Op: "=", N: result.Overlaps}},
	}
	return Run{
		ID: id, Fleet: small, Records: records, Scenario: s.Format(),
		Title:  title(o, small, result.Ops),
		Replay: PlayCommand(o) + " --shrink",
	}
}

func title(o *sim.Outcome, small *sim.Fleet, commands int64) string {
	skew := "clocks agree"
	for i := range small.Clients {
		if off := small.Clients[i].Offset; off != 0 {
			skew = "one clock " + Ahead(off)
		}
	}
	return fmt.Sprintf("%s, lease %v, hold %v: %s, %d clients, %d server commands", o.Scheme, o.Lease, o.Hold, skew, len(small.Clients), commands)
}

// PlayCommand is the command line that plays a cell's first broken run again.
func PlayCommand(o *sim.Outcome) string {
	line := fmt.Sprintf("lockmigrate simulate --scheme %s --skew=%v --lease %v --hold %v --seed %d", o.Scheme, o.Skew, o.Lease, o.Hold, o.FirstSeed)
	if n := o.Setting.Clients; n != sim.StandardSetting().Clients {
		line += fmt.Sprintf(" --clients %d", n)
	}
	return line + o.Setting.Flags + " --as story"
}
