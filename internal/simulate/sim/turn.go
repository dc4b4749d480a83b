package sim

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// wantAgain schedules the client's next turn, if it has one.
func (w *World) wantAgain(m *member, in time.Duration) {
	if w.fleet.Plan != nil {
		if len(m.planned) == 0 {
			return
		}
		in = max(m.planned[0].At.Sub(w.now), 0)
	} else if m.Turns > 0 && m.turns >= m.Turns {
		return
	}
	w.after(m, in, turnBegins)
}

// rise gives a client a session for its turn.
func (w *World) rise(m *member) {
	if n := len(w.sessions); n > 0 {
		m.session, w.sessions = w.sessions[n-1], w.sessions[:n-1]
	} else {
		m.session = new(model.Session)
	}
	*m.session = model.NewSession(int(m.number), &m.Member)
	m.session.Turn = m.turn
	m.turn++
	room := &w.rooms[m.room]
	m.session.On(room.key, room.fence)
}

// rest takes the session of a client whose turn is over.
func (w *World) rest(m *member) {
	if m.session != &w.idle {
		w.sessions = append(w.sessions, m.session)
		m.session = &w.idle
	}
}

func (w *World) beginTurn(m *member) {
	m.turns++
	if w.fleet.Plan != nil {
		m.hold = m.planned[0].Hold
		if key := m.planned[0].Key; key != "" {
			m.room = w.byName[key]
		}
		m.planned = m.planned[1:]
	} else {
		m.room = m.habit.pick(&m.random)
		hold := m.Hold
		if m.turns == 1 && len(m.FirstHold) > 0 {
			hold = m.FirstHold
		}
		m.hold = hold.Draw(&m.random)
		if m.Overrun.Hits(&m.random) {
			m.hold += m.OverBy.Draw(&m.random)
		}
	}
	if w.Recorded != nil {
		turn := Turn{Client: int(m.number), At: w.now, Hold: m.hold}
		if len(m.Keys) > 0 {
			turn.Key = w.rooms[m.room].key
		}
		w.Recorded.Turns = append(w.Recorded.Turns, turn)
	}
	w.rise(m)
	m.grant = protocol.Reply{}
	w.referee.wants(w, m)
	w.follow(m, m.session.Acquire(m.clock.Read(w.now)))
}

// follow carries out what the session wants next.
func (w *World) follow(m *member, step protocol.Step) {
	switch step.Kind {
	case protocol.Send:
		w.send(m, &step.Command)
	case protocol.Sleep:
		w.referee.waits(w, m)
		m.asleep = true
		m.naps++
		if m.grant.Kind != protocol.Begin && m.session.Listens() {
			w.wakeWith(m, m.grant)
			return
		}
		w.after(m, m.clock.Lasting(step.Sleep), wakes)
	case protocol.Done:
		w.conclude(m, step.Verdict)
	}
}

// conclude acts on a verdict.
func (w *World) conclude(m *member, verdict protocol.Verdict) {
	w.referee.concludes(w, m, verdict)
	switch {
	case verdict == protocol.Acquired:
		w.startWork(m)
		return
	case m.session.Holds():
		w.renewed(m, verdict)
		return
	case m.session.Ended == model.Renewing:
		m.held++
	}
	if step, ok := m.session.Undo(m.clock.Read(w.now)); ok {
		w.follow(m, step)
		return
	}
	w.rest(m)
	w.wantAgain(m, m.habit.spread(m.Think.Draw(&m.random), m.hold))
}

func (w *World) startWork(m *member) {
	m.held++
	m.workOver = false
	m.workEnds = w.now.Add(m.hold)
	w.after(m, m.hold, workEnds)
	if m.Dies.Hits(&m.random) && m.hold > 0 {
		w.faults = append(w.faults, Fault{At: w.now.Add(time.Duration(m.random.Below(uint64(m.hold)))), Kind: Crash, Client: int(m.number), By: m.Chaos.Restart.Draw(&m.random)})
		w.schedule(event{at: w.faults[len(w.faults)-1].At, kind: faultDue, flight: int32(len(w.faults) - 1)})
		if w.Recorded != nil {
			w.RecordedFaults = append(w.RecordedFaults, w.faults[len(w.faults)-1])
		}
	}
	w.armDeadline(m)
	w.expectRenewal(m, m.Renew)
}

// armDeadline arms the holder's own deadline.
func (w *World) armDeadline(m *member) {
	if m.session.Bounded() {
		left := m.session.Deadline.Sub(m.clock.Read(w.now).Mono)
		w.after(m, max(m.clock.Lasting(left), 0), beliefEnds)
	}
}

func (w *World) expectRenewal(m *member, in time.Duration) {
	if m.Renew > 0 {
		w.after(m, m.clock.Lasting(in), renewalDue)
	}
}

// renewed goes on with the work after a renewal.
func (w *World) renewed(m *member, verdict protocol.Verdict) {
	if m.workOver {
		w.release(m)
		return
	}
	if verdict == protocol.Renewed || verdict == protocol.Repaired {
		w.armDeadline(m)
		w.expectRenewal(m, m.Renew)
		return
	}
	w.expectRenewal(m, m.Renew/4) // no answer: ask again soon
}

// finishWork leaves the section. A renewal that is under way ends first.
func (w *World) finishWork(m *member) {
	if w.now < m.workEnds { // a pause has made the work longer
		w.after(m, m.workEnds.Sub(w.now), workEnds)
		return
	}
	w.leave(m, false)
}

// leave ends the work, because it is done or because the holder's time is up.
func (w *World) leave(m *member, told bool) {
	w.referee.leaves(w, m, told)
	if m.session.Phase == model.Renewing {
		m.workOver = true
		return
	}
	w.release(m)
}

// doubt makes a holder stop whose own deadline has come.
func (w *World) doubt(m *member) {
	left := m.session.Deadline.Sub(m.clock.Read(w.now).Mono)
	switch {
	case !m.session.Holds() || m.workOver:
	case left > 0:
		if left < m.Lease { // the deadline has moved a little: a renewal arms its own event
			w.after(m, max(m.clock.Lasting(left), 1), beliefEnds)
		}
	default:
		w.leave(m, true)
	}
}

func (w *World) release(m *member) {
	m.held++
	w.follow(m, m.session.Release(m.clock.Read(w.now)))
}
