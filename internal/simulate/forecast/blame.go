package forecast

import (
	"cmp"
	"math"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Cause is how a second holder came in.
type Cause int

// The causes.
const (
	Skew        Cause = iota // a live lease looked expired to a clock that is ahead, or came from one that is behind
	Overrun                  // the first holder's lease was over
	Clobber                  // a loser had overwritten the holder's expiry with an earlier one
	StaleDelete              // a holder whose lock had been taken over deleted its successor's
	Crash                    // two took the lock of a crashed holder over
	causes
)

var causeNames = [causes]string{"skew", "overrun", "clobber", "stale delete", "crash"}

func (c Cause) String() string { return causeNames[c] }

// blame counts double holds by what caused them and by whose doing they are.
type blame struct {
	count   int
	causes  [causes]float64
	clients []float64 // by number in the group
}

// judge watches a run and says of each double hold who is to blame.
type judge struct {
	offsets []float64
	middle  float64 // the clock that most are near
	found   blame
	inside  []holder // by number
	dead    int      // who crashed last while it was inside, and nobody has come in since; -1 is none
}

// holder is a client as the judge knows it.
type holder struct {
	inside bool
	lease  protocol.Instant // when its lease is over
	lost   bool             // its value is not on the key any more
	cause  Cause            // why, with lost
	by     int
	weaker int // who overwrote its value with an earlier expiry; -1 is none
}

func newJudge(d *drawn) *judge {
	n := len(d.members)
	j := &judge{found: blame{clients: make([]float64, n)}, inside: make([]holder, n), dead: -1}
	for i := range d.members {
		j.offsets = append(j.offsets, d.members[i].offset)
	}
	sorted := slices.Sorted(slices.Values(j.offsets))
	j.middle = (sorted[(n-1)/2] + sorted[n/2]) / 2
	return j
}

// sees takes in a record of the run.
func (j *judge) sees(r *sim.Record) {
	who, other := int(r.Client), int(r.Other)
	switch r.Kind {
	case sim.Enters:
		j.inside[who] = holder{inside: true, lease: r.Lease, weaker: -1}
	case sim.Leaves:
		j.inside[who].inside = false
	case sim.Strikes:
		if r.Fault.Kind == sim.Crash && j.inside[who].inside {
			j.inside[who].inside, j.dead = false, who
		}
	case sim.Overlaps:
		j.overlap(r.At, who, other)
	case sim.Endangers:
		switch r.Hazard {
		case sim.EarlyTakeover, sim.UnitMismatch:
			j.loses(other, Skew, j.odd(who, other))
		case sim.DoubleWin:
			cause, by := Clobber, who
			if j.dead >= 0 {
				cause, by = Crash, j.dead
			}
			j.loses(other, cause, by)
		case sim.StaleDelete:
			j.loses(other, StaleDelete, who)
		case sim.ClobberShorter:
			if other >= 0 {
				j.inside[other].weaker = who
			}
		}
	}
}

// loses notes why the value of who is inside is not on the key any more. The first reason counts.
func (j *judge) loses(who int, cause Cause, by int) {
	if h := &j.inside[who]; h.inside && !h.lost {
		h.lost, h.cause, h.by = true, cause, by
	}
}

// overlap blames one double hold: it is why the one who was inside had lost its lock.
func (j *judge) overlap(at protocol.Instant, who, other int) {
	h := &j.inside[other]
	switch {
	case h.lost:
	case at > h.lease:
		h.cause, h.by = Overrun, other
	case h.weaker >= 0:
		h.cause, h.by = Clobber, h.weaker
	default:
		h.cause, h.by = Skew, j.odd(who, other)
	}
	h.lost = true
	j.found.count++
	j.found.causes[h.cause]++
	j.found.clients[h.by]++
}

// odd is the one of two whose clock is farther from the others'.
func (j *judge) odd(a, b int) int {
	if cmp.Compare(math.Abs(j.offsets[a]-j.middle), math.Abs(j.offsets[b]-j.middle)) >= 0 {
		return a
	}
	return b
}

// play runs a fleet once.
func (d *drawn) play(w *sim.World, f *sim.Fleet, seed uint64) (found blame, result sim.Result) {
	j := newJudge(d)
	w.Trace = j.sees
	result = w.Run(f, seed)
	return j.found, result
}
