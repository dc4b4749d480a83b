package report

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Timeline is a run as a picture: a lane for each client, and one for the key.
type Timeline struct {
	End   time.Duration
	Lanes []Lane
	Key   []Value
	// Overlaps are the stretches of true time with two or more inside.
	Overlaps []Span
	Steps    []Moment
}

// Span is a stretch of true time.
type Span struct{ From, To time.Duration }

// Lane is one client.
type Lane struct {
	Name   string
	Scheme string
	Errors []ClockError // its clock's error, where it changes
	Waits  []Span       // it wants the lock
	Holds  []Span       // it believes that it holds the lock
	// Leases are what is true of the holds: until when the lease lasts that was granted.
	Leases []Span
	Pauses []Span
	Crash  time.Duration // 0 is never
}

// ClockError is a clock's error from a time on.
type ClockError struct {
	At time.Duration
	By time.Duration
}

// Value is what stands on the key from a time on.
type Value struct {
	From, To time.Duration
	Text     string
	By       int // the client that wrote it; -1 is nobody of this run
}

// Moment is one step with its sentence.
type Moment struct {
	At       time.Duration
	Client   int
	Command  string
	Reply    string
	Sentence string
	Mark     string // "", overlap, hazard, fault
}

// Draw makes a timeline of a trace.
func Draw(f *sim.Fleet, records []sim.Record) *Timeline {
	t := &Timeline{Lanes: make([]Lane, len(f.Clients))}
	d := drawing{Timeline: t, fleet: f, wanted: make([]int64, len(f.Clients)), entered: make([]int64, len(f.Clients))}
	for i := range f.Clients {
		c := &f.Clients[i]
		t.Lanes[i] = Lane{Name: c.Name, Scheme: c.Scheme.String(), Errors: []ClockError{{0, c.Offset}}}
		d.wanted[i], d.entered[i] = -1, -1
	}
	for i := range records {
		d.add(&records[i])
	}
	if n := len(records); n > 0 {
		d.close(time.Duration(records[n-1].At))
	}
	return t
}

type drawing struct {
	*Timeline
	fleet   *sim.Fleet
	wanted  []int64 // since when; -1 is not
	entered []int64
	inside  int
}

func (d *drawing) add(r *sim.Record) {
	at, c := time.Duration(r.At), int(r.Client)
	if c >= 0 {
		lane := &d.Lanes[c]
		if last := lane.Errors[len(lane.Errors)-1]; r.Kind != sim.Executes && last.By != r.Error {
			lane.Errors = append(lane.Errors, ClockError{at, r.Error})
		}
	}
	moment := Moment{At: at, Client: c, Sentence: Sentence(d.fleet, r)}
	switch r.Kind {
	case sim.Wants:
		d.wanted[c] = int64(at)
	case sim.Executes:
		moment.Command, moment.Reply = model.SayCommand(&r.Command), Reply(&r.Command, &r.Reply)
		d.value(r)
	case sim.Enters:
		d.enter(r)
	case sim.Leaves:
		d.leave(c, at)
	case sim.Concludes:
		d.stopWaiting(c, at)
	case sim.Overlaps:
		moment.Mark = "overlap"
	case sim.Endangers:
		moment.Mark = "hazard"
	case sim.Strikes:
		moment.Mark = "fault"
		d.fault(r)
	}
	if moment.Sentence != "" {
		d.Steps = append(d.Steps, moment)
	}
}

func (d *drawing) enter(r *sim.Record) {
	c, at := int(r.Client), time.Duration(r.At)
	d.stopWaiting(c, at)
	d.entered[c] = int64(at)
	d.Lanes[c].Leases = append(d.Lanes[c].Leases, Span{at, time.Duration(r.Lease)})
	if d.inside++; d.inside == 2 {
		d.Overlaps = append(d.Overlaps, Span{at, -1})
	}
}

func (d *drawing) leave(c int, at time.Duration) {
	if d.entered[c] < 0 {
		return
	}
	d.Lanes[c].Holds = append(d.Lanes[c].Holds, Span{time.Duration(d.entered[c]), at})
	d.entered[c] = -1
	if d.inside--; d.inside == 1 {
		d.Overlaps[len(d.Overlaps)-1].To = at
	}
}

func (d *drawing) stopWaiting(c int, at time.Duration) {
	if d.wanted[c] >= 0 {
		d.Lanes[c].Waits = append(d.Lanes[c].Waits, Span{time.Duration(d.wanted[c]), at})
		d.wanted[c] = -1
	}
}

func (d *drawing) fault(r *sim.Record) {
	c, at := int(r.Client), time.Duration(r.At)
	if c < 0 {
		return
	}
	switch r.Fault.Kind {
	case sim.Pause:
		d.Lanes[c].Pauses = append(d.Lanes[c].Pauses, Span{at, at + r.Fault.By})
	case sim.Crash:
		d.leave(c, at)
		d.stopWaiting(c, at)
		d.Lanes[c].Crash = at
	case sim.StepClock:
		d.Lanes[c].Errors = append(d.Lanes[c].Errors, ClockError{at, r.Error + r.Fault.By})
	}
}

// value notes what stands on the key after a command.
func (d *drawing) value(r *sim.Record) {
	at := time.Duration(r.At)
	text, by := "", -1
	if r.Exists {
		text, by = r.Key.Value, int(r.Key.Writer>>32)-1
	}
	if n := len(d.Key); n > 0 {
		last := &d.Key[n-1]
		if last.Text == text && last.By == by {
			return
		}
		last.To = at
	}
	d.Key = append(d.Key, Value{From: at, To: -1, Text: text, By: by})
}

// close ends everything that is still open a little after the last record.
func (d *drawing) close(last time.Duration) {
	d.End = last + max(last/20, 5*time.Millisecond)
	for c := range d.Lanes {
		if d.entered[c] >= 0 {
			d.Lanes[c].Holds = append(d.Lanes[c].Holds, Span{time.Duration(d.entered[c]), d.End})
		}
		d.stopWaiting(c, d.End)
	}
	for i := range d.Overlaps {
		if d.Overlaps[i].To < 0 {
			d.Overlaps[i].To = d.End
		}
	}
	for i := range d.Key {
		if d.Key[i].To < 0 {
			d.Key[i].To = d.End
		}
	}
}
