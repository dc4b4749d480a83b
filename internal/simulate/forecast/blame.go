package forecast

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Cause is how a second holder came in: what a Judge says of each double hold of a simulated run, beside whose doing it was.
type Cause int

// The causes.
const (
	Skew        Cause = iota // a live lease looked expired to a clock that is ahead, or came from one that is behind
	Overrun                  // the first holder's lease was over
	Clobber                  // a loser had overwritten the holder's expiry with an earlier one
	StaleDelete              // a holder whose lock had been taken over deleted its successor's
	Crash                    // two took the lock of a crashed holder over
	Failover                 // the replica that took over did not have the lock; stale deletes that follow from it count here
	Causes
)

var names = [Causes]string{"skew", "overrun", "clobber", "stale delete", "crash", "failover"}

func (c Cause) String() string { return names[c] }

// Server stands in place of a client's number: a failover is no client's doing.
const Server = -1

// Count counts double holds.
type Count struct {
	N      int
	Causes [Causes]int
	// Told are those of Causes whose first holder heard of its loss before it was through. The old code never hears of it.
	Told    [Causes]int
	Clients []int // by number of the client to blame
}

// Judge watches the run of one master. Its See is the run's Trace.
type Judge struct {
	Count
	fleet   *sim.Fleet
	middle  time.Duration // what most clocks are near at the start
	holders []holder      // by number
	dead    map[string]int
}

// holder is a client as the judge knows it.
type holder struct {
	key     string
	inside  bool
	lease   protocol.Instant // when its lease is over
	lost    bool             // its value is not on the key any more
	cause   Cause            // why, with lost
	by      int
	weaker  int // who overwrote its value with an earlier expiry; -1 is none
	after   int // whose lock it took over: of one that had crashed inside; -1 is none
	doubles int // times that another came in since it lost its lock
}

// NewJudge makes the judge of one run of a fleet.
func NewJudge(f *sim.Fleet) *Judge {
	n := len(f.Clients)
	j := &Judge{Count: Count{Clients: make([]int, n)}, fleet: f, holders: make([]holder, n), dead: map[string]int{}}
	clocks := make([]time.Duration, n)
	for i := range f.Clients {
		clocks[i] = f.Clients[i].Offset
	}
	if slices.Sort(clocks); n > 0 {
		j.middle = (clocks[(n-1)/2] + clocks[n/2]) / 2
	}
	return j
}

// See takes in a record of the run.
func (j *Judge) See(r *sim.Record) {
	who, other := int(r.Client), int(r.Other)
	switch r.Kind {
	case sim.Enters:
		h := holder{key: r.Key.Key, inside: true, lease: r.Lease, weaker: -1, after: -1}
		if dead, ok := j.dead[h.key]; ok {
			h.after = dead
			delete(j.dead, h.key)
		}
		j.holders[who] = h
	case sim.Leaves:
		h := &j.holders[who]
		h.inside = false
		if r.Told && h.lost {
			j.Told[h.cause] += h.doubles
		}
	case sim.Strikes:
		if who >= 0 && r.Fault.Kind == sim.Crash && j.holders[who].inside {
			j.holders[who].inside = false
			j.dead[j.holders[who].key] = who
		}
	case sim.Overlaps:
		j.overlap(r.At, who, other)
	case sim.Endangers:
		j.endangers(r, who, other)
	}
}

func (j *Judge) endangers(r *sim.Record, who, other int) {
	switch r.Hazard {
	case sim.EarlyTakeover, sim.UnitMismatch:
		j.loses(other, Skew, j.odd(r.At, who, other))
	case sim.DoubleWin:
		if after := j.holders[other].after; after >= 0 {
			j.loses(other, Crash, after)
		} else {
			j.loses(other, Clobber, who)
		}
	case sim.StaleDelete:
		if h := &j.holders[who]; h.lost && h.cause == Failover {
			j.loses(other, Failover, Server)
		} else {
			j.loses(other, StaleDelete, who)
		}
	case sim.LostUpdate:
		j.loses(who, Failover, Server)
	case sim.ClobberShorter:
		if other >= 0 {
			j.holders[other].weaker = who
		}
	}
}

// loses notes why the value of a client that is inside is not on the key any more. The first reason counts.
func (j *Judge) loses(who int, cause Cause, by int) {
	if h := &j.holders[who]; h.inside && !h.lost {
		h.lost, h.cause, h.by = true, cause, by
	}
}

// overlap blames one double hold: it is why the one who was inside had lost its lock.
func (j *Judge) overlap(at protocol.Instant, who, other int) {
	h := &j.holders[other]
	switch {
	case h.lost:
	case at > h.lease:
		h.cause, h.by = Overrun, other
	case h.weaker >= 0:
		h.cause, h.by = Clobber, h.weaker
	default:
		h.cause, h.by = Skew, j.odd(at, who, other)
	}
	h.lost = true
	h.doubles++
	j.N++
	j.Causes[h.cause]++
	if h.by != Server {
		j.Clients[h.by]++
	}
}

// odd is the one of two whose clock is farther from the others'.
func (j *Judge) odd(at protocol.Instant, a, b int) int {
	off := func(i int) time.Duration {
		c := &j.fleet.Clients[i]
		return (c.Offset + time.Duration(c.DriftPPM*(int64(at)/1e6)) - j.middle).Abs()
	}
	if off(a) >= off(b) {
		return a
	}
	return b
}
