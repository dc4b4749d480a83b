package main

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Run is one run as the page shows it. All times are in milliseconds of true time.
type Run struct {
	End      int64   `json:"end"`
	Lanes    []*Lane `json:"lanes"`
	Key      []Value `json:"key"`      // what stands on the key
	Both     []Span  `json:"both"`     // two or more are inside
	Break    *Break  `json:"break"`    // the first of these; nil: nobody came in beside another
	Steps    []Step  `json:"steps"`    // the last ones up to the break, or to the end
	Scenario string  `json:"scenario"` // a file for lockmigrate simulate --scenario

	Runs    int   `json:"runs"`    // that were tried; this is one of them
	Turns   int64 `json:"turns"`   // in all of them
	Seconds int64 `json:"seconds"` // of the fleet's time, in all of them
}

// Span is a stretch of time: from, to.
type Span [2]int64

// open is the end of a stretch that lasts.
const open = -1

// Lane is one client.
type Lane struct {
	Name   string `json:"name"`
	Clock  []Span `json:"clock"`            // since when it is ahead by how much
	Waits  []Span `json:"waits,omitempty"`  // it wants the lock
	Holds  []Span `json:"holds,omitempty"`  // it believes that it holds the lock
	Leases []Span `json:"leases,omitempty"` // what is true of the holds: until when the lease lasts that was granted
	Pauses []Span `json:"pauses,omitempty"`
	Crash  int64  `json:"crash,omitempty"` // 0 is never
}

// Value is what stands on the key for a stretch of time.
type Value struct {
	Span Span   `json:"span"`
	Text string `json:"text"`
	By   int    `json:"by"` // the client that wrote it; -1 is nobody of this run
}

// Break is the moment at which a second holder comes in.
type Break struct {
	AtMS   int64  `json:"at"`
	Inside Holder `json:"inside"`
	Second Holder `json:"second"`
	Cause  string `json:"cause"` // of sim.Cause
}

// Holder is one of the two.
type Holder struct {
	Name    string `json:"name"`
	ClockMS int64  `json:"clock"` // how far its clock is ahead
	LeftMS  int64  `json:"left"`  // of its lease in true time; below 0: it is over for so long
}

// Step is one moment as a sentence, and as what is on the wire.
type Step struct {
	AtMS     int64  `json:"at"`
	Sentence string `json:"says"`
	Wire     string `json:"wire,omitempty"`
	Mark     string `json:"mark,omitempty"` // overlap, hazard, fault
}

// mostSteps is how many steps a page has of a run.
const mostSteps = 40

// look runs a fleet and draws what happens.
func look(f *sim.Fleet, seed uint64) *Run {
	d := drawing{Run: new(Run), fleet: f}
	for i := range f.Clients {
		d.Lanes = append(d.Lanes, &Lane{Name: f.Clients[i].Name, Clock: []Span{{0, f.Clients[i].Offset.Round(time.Millisecond).Milliseconds()}}})
	}
	w := sim.World{Trace: d.see}
	r := w.Run(f, seed)
	d.close()
	expect := sim.Expectation{What: "overlaps", Op: "=", N: r.Overlaps}
	out := sim.Scenario{Purpose: []string{"made on the playground"}, Fleet: *f, Seed: seed, Seeds: 1, Expect: []sim.Expectation{expect}}
	d.Scenario = out.Format()
	return d.Run
}

// drawing makes a Run of a trace.
type drawing struct {
	*Run
	fleet  *sim.Fleet
	at     int64
	inside int
}

// stop ends the last stretch, unless it is over already.
func stop(spans []Span, at int64) bool {
	last := len(spans) - 1
	if last < 0 || spans[last][1] != open {
		return false
	}
	spans[last][1] = at
	return true
}

func millis(t protocol.Instant) int64 { return time.Duration(t).Milliseconds() }

func (d *drawing) see(r *sim.Record) {
	before := d.Break == nil
	d.at = millis(r.At)
	var step Step
	if before {
		step = Step{AtMS: d.at, Sentence: d.fleet.Sentence(r)}
	}
	lane := new(Lane) // the server's is not drawn
	if r.Client >= 0 {
		lane = d.Lanes[r.Client]
		if ahead := r.Error.Round(time.Millisecond).Milliseconds(); r.Kind != sim.Executes && lane.Clock[len(lane.Clock)-1][1] != ahead {
			lane.Clock = append(lane.Clock, Span{d.at, ahead})
		}
	}
	switch r.Kind {
	case sim.Wants:
		lane.Waits = append(lane.Waits, Span{d.at, open})
	case sim.Executes:
		step.Wire = r.Wire()
		d.value(r)
	case sim.Enters:
		stop(lane.Waits, d.at)
		lane.Holds = append(lane.Holds, Span{d.at, open})
		lane.Leases = append(lane.Leases, Span{d.at, millis(r.Lease)})
		if d.inside++; d.inside == 2 {
			d.Both = append(d.Both, Span{d.at, open})
		}
	case sim.Leaves:
		d.leave(lane)
	case sim.Concludes:
		stop(lane.Waits, d.at)
	case sim.Overlaps:
		step.Mark = "overlap"
		d.overlap(r)
	case sim.Endangers:
		step.Mark = "hazard"
	case sim.Strikes:
		step.Mark = "fault"
		d.fault(lane, r)
	}
	if before && step.Sentence != "" {
		d.Steps = append(d.Steps, step)
	}
}

func (d *drawing) leave(lane *Lane) {
	if !stop(lane.Holds, d.at) {
		return
	}
	if d.inside--; d.inside == 1 {
		stop(d.Both, d.at)
	}
}

func (d *drawing) fault(lane *Lane, r *sim.Record) {
	switch r.Fault.Kind {
	case sim.Pause:
		lane.Pauses = append(lane.Pauses, Span{d.at, d.at + r.Fault.By.Milliseconds()})
	case sim.Crash:
		d.leave(lane)
		stop(lane.Waits, d.at)
		lane.Crash = d.at
	}
}

// overlap says who came in beside whom, the first time.
func (d *drawing) overlap(r *sim.Record) {
	if d.Break != nil {
		return
	}
	holder := func(i int32) Holder {
		lane := d.Lanes[i]
		return Holder{lane.Name, lane.Clock[len(lane.Clock)-1][1], lane.Leases[len(lane.Leases)-1][1] - d.at}
	}
	d.Break = &Break{AtMS: d.at, Inside: holder(r.Other), Second: holder(r.Client), Cause: r.Cause.String()}
}

// value notes what stands on the key after a command.
func (d *drawing) value(r *sim.Record) {
	v := Value{Span: Span{d.at, open}, By: -1}
	if r.Key.Key != "" {
		v.Text, v.By = r.Key.Value, int(r.Key.Writer>>32)-1
	}
	if n := len(d.Key); n > 0 {
		last := &d.Key[n-1]
		if last.Text == v.Text && last.By == v.By {
			return
		}
		last.Span[1] = d.at
	}
	d.Key = append(d.Key, v)
}

// close ends everything that is still open a little after the last record.
func (d *drawing) close() {
	d.End = d.at + max(d.at/20, 5)
	for _, lane := range d.Lanes {
		stop(lane.Holds, d.End)
		stop(lane.Waits, d.End)
	}
	stop(d.Both, d.End)
	if n := len(d.Key); n > 0 {
		d.Key[n-1].Span[1] = d.End
	}
	d.Steps = slices.Clone(d.Steps[max(0, len(d.Steps)-mostSteps):])
	d.Key = slices.DeleteFunc(d.Key, func(v Value) bool { return v.Text == "" || v.Span[0] == v.Span[1] })
}
