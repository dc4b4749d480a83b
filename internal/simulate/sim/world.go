package sim

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// World is one run. It can be used for many runs, one after another, and then allocates next to
// nothing.
type World struct {
	// Trace, if set, receives every record of the run in order. The record is its own until it returns.
	Trace func(*Record)
	// Blamed counts, for each client of the last run, the overlaps that are its doing. A failover is no client's.
	Blamed []int
	// Record, if set, receives every random decision.
	Recorded *Plan
	// RecordedFaults receives the faults of the run, those of Chaos included.
	RecordedFaults []Fault
	// Overlap, if set, is called when a client comes in while another is inside.
	Overlap func(came, inside int)

	fleet   *Fleet
	now     protocol.Instant
	end     protocol.Instant
	order   uint64
	queue   queue
	flights []flight
	free    []int32 // flights that can be used again
	faults  []Fault
	members []member
	clock   Clock            // the server's
	down    protocol.Instant // until then the server answers nothing
	setnx   int64            // how often the server has run SETNX
	keyspace
	sessions []*model.Session // that no client needs at present
	idle     model.Session    // of every client between two turns
	replicas [][]model.Entry  // what a replica of each room held, for the failovers of the run
	referee  referee
	hash     uint64
	ops      int64
	stopped  bool
	record   Record // the last one
	offsets  []time.Duration
	middle   time.Duration // what most clocks are near at the start
	// listening is w.listeners, bound once.
	listening func(string) int
}

// member is one client at run time.
type member struct {
	*Client
	session  *model.Session // the world's idle one between two turns
	clock    Clock
	random   Generator
	number   int32
	room     int32  // of the key of this turn, or of the last one
	turn     uint32 // the number of this turn, or of the last one
	dead     bool
	habit    habit
	process  uint32 // counts restarts: events of an earlier process are void
	held     uint32 // counts holds and renewals' deadlines: timers of an earlier one are void
	naps     uint32 // counts sleeps: a wake-up from an earlier one is void
	asleep   bool
	grant    protocol.Reply // a message that came while the client was not asleep
	flight   int32          // the command whose reply is awaited; -1 is none
	commands int            // sent so far
	turns    int            // begun so far
	hold     time.Duration
	workEnds protocol.Instant
	workOver bool // the work ended while a renewal was under way
	paused   protocol.Instant
	planned  []Turn // what is left of the plan
	view     view   // the referee's
	loss     loss   // of the present hold, or of the last one
}

// Result is what a run came to.
type Result struct {
	Seed      uint64
	Hash      uint64
	Ops       int64 // server operations executed
	Simulated time.Duration
	Tally
}

// Run plays a fleet's run of one seed, on its only master, or on the first of several: RunAll plays all of them.
func (w *World) Run(fleet *Fleet, seed uint64) Result { return w.runMaster(fleet, seed, 0) }

// Sum is what several runs came to together.
type Sum struct {
	Result
	Runs      int
	Broken    int    // those with an overlap
	FirstSeed uint64 // of the first of these
}

// Add takes in one more run. Only Hash depends on the order.
func (s *Sum) Add(r *Result) {
	s.Runs++
	s.Hash = folded(s.Hash, r.Hash)
	s.Ops += r.Ops
	s.Simulated += r.Simulated
	s.Tally.Add(&r.Tally)
	if r.Overlaps > 0 {
		if s.Broken == 0 || r.Seed < s.FirstSeed {
			s.FirstSeed = r.Seed
		}
		s.Broken++
	}
}

// folded is the hash of runs and of one more.
func folded(hash, next uint64) uint64 { return hash*0x9e3779b97f4a7c15 ^ next }

func (w *World) runMaster(fleet *Fleet, seed uint64, master int) Result {
	w.reset(fleet, seed, master)
	for len(w.queue) > 0 && !w.stopped {
		e := w.queue.pop()
		if e.at > w.end {
			break
		}
		w.now = e.at
		w.dispatch(e)
	}
	if !w.stopped {
		w.now = max(w.now, w.end)
	}
	w.referee.finish(w)
	return Result{Seed: seed, Hash: w.hash, Ops: w.ops, Simulated: time.Duration(w.now), Tally: w.referee.tally}
}

func (w *World) reset(fleet *Fleet, seed uint64, master int) {
	w.fleet, w.now, w.end = fleet, 0, protocol.Instant(fleet.Until)
	w.order, w.hash, w.ops, w.stopped = 0, seed, 0, false
	w.queue, w.flights, w.free = w.queue[:0], w.flights[:0], w.free[:0]
	w.idle, w.setnx, w.replicas = model.Session{}, 0, w.replicas[:0]
	if w.listening == nil {
		w.listening = w.listeners
	}
	w.down = 0
	w.clock = Clock{OffsetAtStart: fleet.Server.Offset, DriftPPM: fleet.Server.DriftPPM}
	w.clock.reset()
	if cap(w.members) < len(fleet.Clients) {
		w.members = make([]member, len(fleet.Clients))
	}
	w.members = w.members[:len(fleet.Clients)]
	w.layOut(fleet, master)
	for _, e := range fleet.Opening {
		if r, ok := w.byName[e.Key]; ok {
			w.rooms[r].store.Put(e)
		}
	}
	w.faults = append(w.faults[:0], fleet.Faults...)
	for i := range fleet.Clients {
		w.enlist(i, seed, master)
	}
	if fleet.Plan == nil {
		w.overthrow(seed, master)
	}
	w.referee.begin(w)
	for i := range w.faults {
		f := &w.faults[i]
		if f.Kind == Failover {
			w.schedule(event{at: max(f.At.Add(-f.By), 0), kind: replicaSees, flight: int32(i)})
		}
		w.schedule(event{at: f.At, kind: faultDue, flight: int32(i)})
	}
	if w.Recorded != nil {
		*w.Recorded = Plan{}
		w.RecordedFaults = append(w.RecordedFaults[:0], w.faults...)
	}
}

// enlist sets up one client and its first turn.
func (w *World) enlist(i int, seed uint64, master int) {
	m, c := &w.members[i], &w.fleet.Clients[i]
	*m = member{
		Client: c, number: int32(i), session: &w.idle, random: NewGenerator(seed, uint64(i)+1),
		clock: Clock{OffsetAtStart: c.Offset, DriftPPM: c.DriftPPM}, flight: -1, planned: m.planned[:0], habit: w.habits[i],
	}
	if m.habit.mine == 0 { // it has no key on this master
		return
	}
	m.room = m.habit.picks[0].rooms[0]
	m.clock.reset()
	if w.fleet.Plan == nil {
		w.befall(m)
		if master > 0 { // what befalls a process is the same everywhere, its turns are not
			m.random = NewGenerator(seed^uint64(master)<<32, uint64(i)+1)
		}
		w.wantAgain(m, m.habit.spread(c.First.Draw(&m.random), 0))
		return
	}
	for _, t := range w.fleet.Plan.Turns {
		if t.Client == i {
			m.planned = append(m.planned, t)
		}
	}
	w.wantAgain(m, 0)
}

func (w *World) dispatch(e event) {
	switch e.kind {
	case arrives:
		w.execute(e)
		return
	case faultDue:
		w.strike(&w.faults[e.flight])
		return
	case replicaSees:
		w.remember(&w.faults[e.flight])
		return
	}
	m := &w.members[e.client]
	if e.kind == answers && m.flight != e.flight {
		w.land(e.flight) // a second reply, or one that is no longer awaited
		return
	}
	if e.stamp != m.stamp(e.kind) {
		return
	}
	if m.paused > w.now { // the process does not run: it will see this when it resumes
		e.at = m.paused
		w.schedule(e)
		return
	}
	switch e.kind {
	case answers:
		w.hear(m, e.flight)
	case turnBegins:
		w.beginTurn(m)
	case wakes:
		m.asleep = false
		w.follow(m, m.session.Next(m.clock.Read(w.now), protocol.Reply{Kind: protocol.Woke}))
	case told:
		w.tell(m, e.flight)
	case workEnds:
		w.finishWork(m)
	case renewalDue:
		if m.session.Phase == model.Holding {
			w.follow(m, m.session.Renew(m.clock.Read(w.now)))
		}
	case beliefEnds:
		w.doubt(m)
	}
}

func (w *World) schedule(e event) {
	w.order++
	e.order = w.order
	w.queue.push(e)
}

func (w *World) after(m *member, d time.Duration, kind eventKind) {
	w.schedule(event{at: w.now.Add(d), client: m.number, kind: kind, stamp: m.stamp(kind)})
}

// stamp is what an event must carry to be valid still.
func (m *member) stamp(kind eventKind) uint32 {
	switch kind {
	case wakes:
		return m.naps
	case workEnds, renewalDue, beliefEnds:
		return m.held
	default:
		return m.process
	}
}
