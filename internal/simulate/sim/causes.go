package sim

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Cause is how a second holder came in: what the referee says of each overlap, beside whose doing it was.
type Cause uint8

// The causes.
const (
	Skew       Cause = iota // a live lease looked expired to a clock that is ahead, or came from one that is behind
	Overran                 // the first holder's lease was over
	Clobbered               // a loser had overwritten the holder's expiry with an earlier one
	Deleted                 // a holder whose lock had been taken over deleted its successor's
	Crashed                 // two took the lock of a crashed holder over
	FailedOver              // the replica that took over did not have the lock; stale deletes that follow from it count here
	Causes
)

var causeNames = [Causes]string{"skew", "overrun", "clobber", "stale delete", "crash", "failover"}

func (c Cause) String() string { return causeNames[c] }

// nobody stands in place of a client's number; so does the server's, whose failovers are no client's doing.
const nobody, server = -1, -1

// loss is how a holder came to hold its lock, and why its value is not on the key any more.
type loss struct {
	granted protocol.Instant // the end of the lease that it began with
	lost    bool
	cause   Cause // with lost
	by      int32
	weaker  int32 // who overwrote its value with an earlier expiry
	after   int32 // whose lock it took over: of one that had crashed inside
	doubles int64 // times that another came in since it lost its lock
}

// loses notes why the value of a client that is inside is not on the key any more. The first reason counts.
func (m *member) loses(cause Cause, by int32) {
	if m.view.inside && !m.loss.lost {
		m.loss.lost, m.loss.cause, m.loss.by = true, cause, by
	}
}

// robs sees a client take over a lease that is live.
func (r *referee) robs(w *World, h Hazard, m, from *member) {
	r.hazard(w, h, int(m.number), int(from.number))
	from.loses(Skew, w.odd(m, from))
}

// blames finds the cause of an overlap: why the one who was inside had lost its lock.
func (r *referee) blames(w *World, came, inside *member) Cause {
	l := &inside.loss
	switch {
	case l.lost:
	case w.now > l.granted:
		l.cause, l.by = Overran, inside.number
	case l.weaker != nobody:
		l.cause, l.by = Clobbered, l.weaker
	default:
		l.cause, l.by = Skew, w.odd(came, inside)
	}
	l.lost = true
	l.doubles++
	r.tally.Causes[l.cause]++
	if l.by != server {
		w.Blamed[l.by]++
	}
	return l.cause
}

// odd is the one of two whose clock is farther from the others'.
func (w *World) odd(a, b *member) int32 {
	off := func(m *member) time.Duration {
		return (m.Offset + time.Duration(m.Client.DriftPPM*(int64(w.now)/1e6)) - w.middle).Abs()
	}
	if off(a) >= off(b) {
		return a.number
	}
	return b.number
}

// begin forgets the last run.
func (r *referee) begin(w *World) {
	r.tally = Tally{}
	w.Blamed, w.offsets = w.Blamed[:0], w.offsets[:0]
	for i := range w.members {
		w.Blamed, w.offsets = append(w.Blamed, 0), append(w.offsets, w.members[i].Offset)
	}
	if n := len(w.offsets); n > 0 {
		slices.Sort(w.offsets)
		w.middle = (w.offsets[(n-1)/2] + w.offsets[n/2]) / 2
	}
}
