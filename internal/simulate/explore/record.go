package explore

import "github.com/lockmigrate/lockmigrate/internal/simulate/model"

// Record is the record of the clients' namespace. An operator corrects it once, at any moment, while its members work. Clients
// that have a Corrected configuration are its members: they joined at tick 0.
//
// A member reports whenever it likes, or never again. Its report and the answer are one step. An answer that comes
// late, or never, allows nothing more: until then the member goes on as one that has not reported yet, and the server waits longer
// for it.
type Record struct {
	Lease Ticks // of a member, from its report
	Alone bool  // it is refused while a member counts: for what members of two minds may not see
}

// membership is a client's side of the record.
type membership struct {
	follows bool  // it has heard of the correction
	told    bool  // ... and has said so: no attempt of it is under way that began before
	until   Ticks // the end of its lease
	started bool  // the attempt under way began under the correction
	bound   Ticks // ... and must act by then
}

// reports refreshes a member's lease, and takes the correction over if there is one.
func (m *Model) reports(c *Client, a *actor, corrected bool, tick Ticks) {
	late := a.session.Phase == model.Acquiring && !a.member.started && !c.Hasty
	a.member.told, a.member.follows, a.member.until = a.member.follows && !late, corrected, tick+m.Record.Lease
	if !c.AsTaken || a.session.Phase == model.Idle {
		m.obey(c, a, tick)
	}
}

// obey makes the member what it has heard.
func (m *Model) obey(c *Client, a *actor, tick Ticks) {
	as := &c.Member
	if a.member.follows {
		as = c.Corrected
	}
	a.session.Obey(as, m.serverClock(a.member.until))
	if every := int(as.Renew / m.Tick); every > 0 {
		a.renewAt = min(a.renewAt, tick+every)
	}
}

// correction is the bit of node.spent that says that the record is corrected.
const correction = 1 << 7

func (n *node) corrected() bool { return n.spent&correction != 0 }

// mayCorrect tells whether the operator may change the record now.
func (s *search) mayCorrect(n *node) bool {
	r := s.model.Record
	if r == nil || n.corrected() || r.Alone && !s.model.AtOnce && s.counts(n, false) {
		return false
	}
	for i := range s.model.Clients {
		f := &s.tables.facts[i][n.actors[i]]
		if c := &s.model.Clients[i]; c.Before && !s.model.AtOnce && f.phase != model.Dead && (f.phase != model.Idle || int(f.turn) < c.Turns) {
			return false
		}
	}
	return true
}

// inEffect tells what the operator is told: nobody acts on the record as it was before the correction.
func (s *search) inEffect(n *node) bool {
	return n.corrected() && (s.model.AtOnce || !s.counts(n, true))
}

// counts tells whether a member may still act, or hold a lock; without those that run the correction, if asked.
func (s *search) counts(n *node, others bool) bool {
	for i := range s.model.Clients {
		f := &s.tables.facts[i][n.actors[i]]
		if s.model.Clients[i].Corrected != nil && Ticks(n.tick) <= Ticks(f.gone) && !(others && f.told) {
			return true
		}
	}
	return false
}

// correct lets the operator change the record, and members report.
func (s *search) correct(at int, n node, tick Ticks) {
	if s.mayCorrect(&n) {
		next := n
		next.spent |= correction
		s.visit(next, origin{parent: uint32(at), act: corrects})
	}
	if s.model.Record == nil || s.model.Record.Alone && n.corrected() {
		return // a member of another mind is refused
	}
	heard := uint32(0)
	if n.corrected() {
		heard = 1
	}
	s.report(at, n, tick, heard)
}

// report lets each member report that is not dead and has not left, and hear what the record says.
func (s *search) report(at int, n node, tick Ticks, record uint32) {
	for i := range s.model.Clients {
		c, f := &s.model.Clients[i], &s.tables.facts[i][n.actors[i]]
		if (c.Corrected == nil && c.New == nil) || f.phase == model.Dead || f.entry.ends == Unbounded {
			continue
		}
		next := n
		next.actors[i] = s.tables.moved(i, n.actors[i], reports, record, tick)
		s.visit(next, origin{parent: uint32(at), act: reports, client: uint8(i)})
	}
}
