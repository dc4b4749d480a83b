package sim

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/session"
)

// World is one run. It can be used for many runs, one after another, and then allocates next to
// nothing.
type World struct {
	// Trace, if set, receives every record of the run in order.
	Trace func(*Record)
	// Record, if set, receives every random decision.
	Recorded *Plan
	// RecordedFaults receives the faults of the run, those of Chaos included.
	RecordedFaults []Fault

	fleet   *Fleet
	now     protocol.Instant
	end     protocol.Instant
	order   uint32
	queue   queue
	flights []flight
	free    []int32 // flights that can be used again
	faults  []Fault
	members []member
	chance  Generator // of the network
	store   model.Store
	clock   Clock // the server's
	history history
	referee referee
	hash    uint64
	ops     int64
	stopped bool
	// listening is w.listeners, bound once.
	listening func(string) int
}

// member is one client at run time.
type member struct {
	*Client
	session  session.Session
	clock    Clock
	chance   Generator
	number   uint8
	room     int    // of its key
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
}

// Result is what a run came to.
type Result struct {
	Seed      uint64
	Hash      uint64
	Ops       int64 // server operations executed
	Simulated time.Duration
	Tally
}

// Run plays a fleet's run of one seed.
func (w *World) Run(fleet *Fleet, seed uint64) Result {
	w.reset(fleet, seed)
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

func (w *World) reset(fleet *Fleet, seed uint64) {
	w.fleet, w.now, w.end = fleet, 0, protocol.Instant(fleet.Until)
	w.order, w.hash, w.ops, w.stopped = 0, seed, 0, false
	w.queue, w.flights, w.free = w.queue[:0], w.flights[:0], w.free[:0]
	w.chance = NewGenerator(seed, 0)
	w.store.Reset()
	if w.listening == nil {
		w.listening = w.listeners
	}
	w.clock = Clock{OffsetAtStart: fleet.Server.Offset, DriftPPM: fleet.Server.DriftPPM}
	w.clock.reset()
	w.history.reset(fleet)
	w.store.Listening = w.listening
	if cap(w.members) < len(fleet.Clients) {
		w.members = make([]member, len(fleet.Clients))
	}
	w.members = w.members[:len(fleet.Clients)]
	for _, e := range fleet.Opening {
		w.store.Put(e)
	}

	w.faults = append(w.faults[:0], fleet.Faults...)
	for i := range fleet.Clients {
		w.enlist(i, seed)
	}
	w.referee.reset(w)
	for i := range w.faults {
		w.schedule(event{at: w.faults[i].At, kind: faultDue, flight: int32(i)})
	}
	if w.Recorded != nil {
		*w.Recorded = Plan{}
		w.RecordedFaults = append(w.RecordedFaults[:0], w.faults...)
	}
}

// enlist sets up one client and its first turn.
func (w *World) enlist(i int, seed uint64) {
	m, c := &w.members[i], &w.fleet.Clients[i]
	*m = member{
		Client: c, number: uint8(i), session: session.New(i, &c.Member), chance: NewGenerator(seed, uint64(i)+1),
		clock: Clock{OffsetAtStart: c.Offset, DriftPPM: c.DriftPPM}, flight: -1, planned: m.planned[:0],
	}
	m.clock.reset()
	if w.fleet.Plan == nil {
		w.befall(m)
		w.wantAgain(m, c.First.Draw(&m.chance))
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
	if e.kind == arrives {
		w.execute(e)
		return
	}
	if e.kind == faultDue {
		w.strike(&w.faults[e.flight])
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
		if m.session.Phase == session.Holding {
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
