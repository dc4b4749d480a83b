package sim

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Hazard is one of the dangers of shared locks, by the names that the documentation uses.
type Hazard uint8

const (
	EarlyTakeover  Hazard = iota // a clock ahead makes a live lease look expired
	LateTakeover                 // a clock behind keeps a dead lock alive
	UnitMismatch                 // a takeover across units
	Clobber                      // a losing GETSET overwrites the winner's value
	ClobberShorter               // ... and the lease with it becomes shorter
	StaleDelete                  // a holder past its lease deletes its successor's key
	Overrun                      // work outlasts the lease
	DoubleWin                    // the win rule lets two in
	ForeignValue                 // a value the reader cannot parse
	Ghost                        // a lock that nobody holds blocks
	LostUpdate                   // the server forgot a lock that is held
	UnknownOutcome               // a reply never came
	StepHazard                   // a clock was stepped, or a process paused, while it held a lock
	FenceDisorder                // a later holder got a smaller fencing number
	Hazards
)

// hazards has the name of each, and what a client does in a story.
var hazards = [Hazards]struct{ name, says string }{
	EarlyTakeover:  {"early-takeover", "takes over a lease that is still live, because of the clocks"},
	LateTakeover:   {"late-takeover", "still takes a lease for live that is over"},
	UnitMismatch:   {"unit-mismatch", "takes over a live lease that is written in another unit"},
	Clobber:        {"clobber", "loses, but its value now stands on the key instead of the holder's"},
	ClobberShorter: {"clobber-shorter", "has made the holder's lease shorter by that"},
	StaleDelete:    {"stale-delete", "deletes a key that another client relies on"},
	Overrun:        {"overrun", "has worked past the end of its lease without noticing"},
	DoubleWin:      {"double-win", "wins a takeover that another client has won before"},
	ForeignValue:   {"foreign-value", "meets a value that it cannot read"},
	Ghost:          {"ghost", "is kept out by a value that nobody stands behind"},
	LostUpdate:     {"lost-update", "holds a lock that the server has forgotten"},
	UnknownOutcome: {"unknown-outcome", "does not learn what became of its command"},
	StepHazard:     {"step", "has its time changed under it while it holds the lock"},
	FenceDisorder:  {"fence-disorder", "got a fencing number that is not above its predecessor's"},
}

func (h Hazard) String() string { return hazards[h].name }

// Tally is what the referee counted.
type Tally struct {
	Turns        int64 // times that a client wanted the lock
	Acquisitions int64
	Entered      [model.Schemes]int64 // the acquisitions of each scheme
	Overlaps     int64
	// Pairs counts the overlaps by the schemes of the earlier and the later holder.
	Pairs       [model.Schemes][model.Schemes]int64
	Overlapped  time.Duration // true time with two or more inside
	Hazards     [Hazards]int64
	Causes      [Causes]int64 // of Overlaps: each has one
	Told        [Causes]int64 // ... those whose first holder heard of its loss before it was through
	Failovers   int64         // of single masters
	Displaced   int64         // holders that learned of their loss
	Waited      time.Duration
	LongestWait time.Duration
	Blocked     time.Duration // true time for which a client waited for a lock that nobody held
}

// Add sums two tallies.
func (t *Tally) Add(u *Tally) {
	t.Turns += u.Turns
	t.Acquisitions += u.Acquisitions
	for i := range t.Entered {
		t.Entered[i] += u.Entered[i]
	}
	t.Overlaps += u.Overlaps
	for i := range t.Pairs {
		for j := range t.Pairs[i] {
			t.Pairs[i][j] += u.Pairs[i][j]
		}
	}
	t.Overlapped += u.Overlapped
	for i := range t.Hazards {
		t.Hazards[i] += u.Hazards[i]
	}
	for i := range t.Causes {
		t.Causes[i] += u.Causes[i]
		t.Told[i] += u.Told[i]
	}
	t.Displaced += u.Displaced
	t.Failovers += u.Failovers
	t.Waited += u.Waited
	t.LongestWait = max(t.LongestWait, u.LongestWait)
	t.Blocked += u.Blocked
}

// referee sees true time and everybody's mind. A client is inside from the moment in which it learns
// that it acquired the lock, to the moment in which it begins to release it, learns of its loss, or
// dies: that is when it may touch what the lock protects.
type referee struct {
	tally Tally
}

// view is what the referee remembers of one client.
type view struct {
	inside   bool
	wanted   protocol.Instant
	leaseEnd protocol.Instant // true time at which the present hold's lease is over
	read     uint64           // who wrote the value that GET returned
	taken    uint64           // who wrote the value that the takeover replaced
	robbed   bool             // ... and was still inside under an unexpired lease
	present  bool             // ... and was still inside
	took     bool             // the last command was a takeover that replaced a value
	shorter  bool             // ... by an earlier expiry
	foreign  bool             // ... of another unit
	overran  bool             // it was inside past the end of its lease
	silent   bool             // the last reply did not come
	blocked  bool             // this turn has met a ghost
	late     bool             // this turn has met a lease that is over but looks alive
	stands   string           // what was on the key, if it was its own, when a fault of the server came
	ghostAt  protocol.Instant
}

func (r *referee) wants(w *World, m *member) {
	r.tally.Turns++
	m.view = view{wanted: w.now}
	w.note(Record{Kind: Wants, Client: m.number})
}

func (r *referee) sends(w *World, m *member) {
	r.judgeTakeover(w, m, false) // it goes on: it did not win with what it replaced
}

func (r *referee) waits(w *World, m *member) {
	r.judgeTakeover(w, m, false)
	inside := w.rooms[m.room].inside
	if v := &m.view; len(inside) == 0 && v.ghostAt == 0 {
		v.ghostAt = w.now
	} else if len(inside) > 0 {
		v.ghostAt = 0
	}
}

func (r *referee) hears(w *World, m *member, reply *protocol.Reply) {
	if m.view.silent = reply.Kind == protocol.Silence; m.view.silent {
		r.hazard(w, UnknownOutcome, int(m.number), -1)
	}
}

// concludes sees a client's verdict.
func (r *referee) concludes(w *World, m *member, verdict protocol.Verdict) {
	w.note(Record{Kind: Concludes, Client: m.number, Verdict: verdict})
	switch m.session.Ended {
	case model.Acquiring:
		r.judgeTakeover(w, m, verdict == protocol.Acquired)
		switch verdict {
		case protocol.Acquired:
			// A reply may come so late that the lock is over when it is won: nobody enters then.
			if !m.session.Bounded() || m.clock.Read(w.now).Mono < m.session.Deadline {
				r.enters(w, m)
			}
		case protocol.Foreign, protocol.Threw:
			if !m.view.silent {
				r.hazard(w, ForeignValue, int(m.number), -1)
			}
		}
	case model.Renewing:
		switch {
		case !m.session.Holds():
			r.tally.Displaced++
			r.leaves(w, m, true)
		case verdict == protocol.Renewed, verdict == protocol.Repaired:
			m.view.leaseEnd = w.leaseEnd(m)
		}
	}
}

func (r *referee) enters(w *World, m *member) {
	v := &m.view
	v.inside, v.leaseEnd, v.overran = true, w.leaseEnd(m), false
	r.tally.Acquisitions++
	r.tally.Entered[m.Scheme]++
	wait := w.now.Sub(v.wanted)
	r.tally.Waited += wait
	r.tally.LongestWait = max(r.tally.LongestWait, wait)
	if v.ghostAt != 0 {
		r.tally.Blocked += w.now.Sub(v.ghostAt)
	}
	room := &w.rooms[m.room]
	m.loss = loss{granted: v.leaseEnd, weaker: nobody, after: room.died}
	room.died = nobody
	w.note(Record{Kind: Enters, Client: m.number, Lease: v.leaseEnd, Key: model.Entry{Key: room.key}})
	if f := m.session.Fence; f != 0 {
		if f <= room.lastFence {
			r.hazard(w, FenceDisorder, int(m.number), -1)
		}
		room.lastFence = max(room.lastFence, f)
	}
	for _, other := range room.inside {
		o := &w.members[other]
		r.tally.Overlaps++
		if w.Overlap != nil {
			w.Overlap(int(m.number), int(other))
		}
		r.tally.Pairs[o.Scheme][m.Scheme]++
		r.overran(w, o)
		w.note(Record{Kind: Overlaps, Client: m.number, Other: other, Cause: r.blames(w, m, o)})
		w.stopped = w.fleet.Stop
	}
	if len(room.inside) == 1 {
		room.since = w.now
	}
	room.inside = append(room.inside, m.number)
}

// leaseEnd is the true time at which a holder's lease is over.
func (w *World) leaseEnd(m *member) protocol.Instant {
	now := m.clock.Read(w.now)
	if m.Scheme.Old() {
		return w.now.Add(m.session.LeaseEnd().Sub(now.Wall))
	}
	return w.now.Add(m.session.LeaseEnd().Sub(now.Mono))
}

// leaves sees a client go, because its work is done, or because it was told of its loss.
func (r *referee) leaves(w *World, m *member, told bool) {
	if !m.view.inside {
		return
	}
	m.view.inside = false
	if told && m.loss.lost {
		r.tally.Told[m.loss.cause] += m.loss.doubles
	}
	w.note(Record{Kind: Leaves, Client: m.number})
	r.overran(w, m)
	r.out(w, m)
}

// overran names a hold that has outlasted its lease, once.
func (r *referee) overran(w *World, m *member) {
	if v := &m.view; w.now > v.leaseEnd && m.Scheme.Old() && !v.overran {
		v.overran = true
		r.hazard(w, Overrun, int(m.number), -1)
	}
}

// out strikes a client off the list of those inside.
func (r *referee) out(w *World, m *member) {
	room := &w.rooms[m.room]
	if i := slices.Index(room.inside, m.number); i >= 0 {
		room.inside = slices.Delete(room.inside, i, i+1)
	}
	if len(room.inside) == 1 {
		r.overlapped(w, room)
	}
}

func (r *referee) overlapped(w *World, room *room) {
	r.tally.Overlapped += w.now.Sub(room.since)
}

func (r *referee) crashes(w *World, m *member) {
	if m.view.inside {
		m.view.inside = false
		w.rooms[m.room].died = m.number
		r.out(w, m)
	}
}

func (r *referee) strikes(w *World, f *Fault) {
	w.note(Record{Kind: Strikes, Client: int32(f.Client), Fault: f})
	if f.Client >= 0 && w.members[f.Client].view.inside && (f.Kind == StepClock || f.Kind == Pause) {
		r.hazard(w, StepHazard, f.Client, -1)
	}
}

// looks notes whose value is on the key, before a fault of the server. A sidecar writes another value than its client asks for, and a
// lock that was handed over was written by another client.
func (r *referee) looks(w *World) {
	r.holders(w, func(m *member, e *model.Entry) {
		m.view.stands = ""
		if e.Value == m.session.Value || w.author(e.Writer) == m {
			m.view.stands = e.Value
		}
	})
}

// lost counts the holders whose value a fault of the server took away.
func (r *referee) lost(w *World) {
	r.holders(w, func(m *member, e *model.Entry) {
		if m.view.stands != "" && m.view.stands != e.Value {
			r.hazard(w, LostUpdate, int(m.number), -1)
			m.loses(FailedOver, server)
		}
	})
}

// holders shows for each client inside what is on its key; an empty entry is nothing.
func (r *referee) holders(w *World, show func(m *member, e *model.Entry)) {
	now := w.clock.Read(w.now).Wall
	for i := range w.rooms {
		for _, n := range w.rooms[i].inside {
			e, _ := w.rooms[i].store.Look(now, w.rooms[i].key)
			show(&w.members[n], &e)
		}
	}
}

func (r *referee) finish(w *World) {
	for i := range w.rooms {
		room := &w.rooms[i]
		if len(room.inside) > 1 {
			r.overlapped(w, room)
		}
	}
}

func (r *referee) hazard(w *World, h Hazard, client, other int) {
	r.tally.Hazards[h]++
	w.note(Record{Kind: Endangers, Hazard: h, Client: int32(client), Other: int32(other)})
}
