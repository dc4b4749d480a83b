package sim

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// This file is the part of the referee that looks over the server's shoulder: who wrote what is on
// the key, who still needs it, and what a command does to that.

// executes sees a command run at the server.
func (r *referee) executes(w *World, m *member, f *flight, reply *protocol.Reply) {
	effect := &w.rooms[f.room].store.Last
	own := writer(f.client, f.turn)
	w.hashCommand(f, reply)
	if w.Trace != nil {
		w.noteCommand(m, f, reply)
	}
	current := f.turn == m.turn && f.process == m.process
	switch f.command.Op {
	case protocol.SetNX:
		if effect.Had {
			r.meets(w, m, effect.Before.Writer, current)
		}
	case protocol.Get:
		if current && effect.Had {
			m.view.read = effect.Before.Writer
			r.looksLate(w, m, effect.Before.Writer, effect.Before.Value)
		}
	case protocol.GetSet, protocol.Commit:
		if effect.Wrote && effect.Had && effect.Before.Writer != own {
			r.takes(w, m, f, effect.Before.Writer, effect.Before.Value)
		}
	case protocol.BridgeTake:
		if a := w.author(effect.Before.Writer); reply.Int == protocol.TakeOver && a != nil && a.view.inside && w.now <= a.view.leaseEnd {
			r.robs(w, EarlyTakeover, m, a)
		}
	case protocol.Del, protocol.CompareDel:
		if effect.Removed {
			r.deletes(w, m, effect.Before.Writer, own)
		}
	}
}

// author returns the client that wrote a value, if it still is in that turn.
func (w *World) author(tag uint64) *member {
	n := int(tag>>32) - 1
	if n < 0 || n >= len(w.members) {
		return nil
	}
	if m := &w.members[n]; m.turn == uint32(tag) {
		return m
	}
	return nil
}

// meets sees an attempt find the key taken: by a holder, by one that is about to be, or by a ghost.
func (r *referee) meets(w *World, m *member, by uint64, current bool) {
	if m.view.blocked || !current || len(w.rooms[m.room].inside) > 0 {
		return
	}
	if a := w.author(by); a != nil && (a.view.inside || a.flight >= 0) {
		return // being acquired or released just now
	}
	m.view.blocked = true
	r.hazard(w, Ghost, int(m.number), int(by>>32)-1)
}

// looksLate sees a client read a value whose lease is over in truth, but not by its own clock. By
// design a dead lease lasts up to two units longer: the extra one, and the strict comparison.
func (r *referee) looksLate(w *World, m *member, by uint64, value string) {
	a := w.author(by)
	if m.view.late || a == nil || !m.Scheme.Old() || !a.Scheme.Old() || a.view.leaseEnd == 0 ||
		w.now <= a.view.leaseEnd.Add(2*a.Dialect.Unit.Resolution()) {
		return
	}
	if m.Dialect.Judge(value, m.clock.Read(w.now).Wall, m.Owner) == protocol.Live {
		m.view.late = true
		r.hazard(w, LateTakeover, int(m.number), int(a.number))
	}
}

// takes sees a GETSET replace another's value. Whether that was a takeover or a clobber is known when
// its sender has made up its mind.
func (r *referee) takes(w *World, m *member, f *flight, from uint64, old string) {
	v := &m.view
	v.took, v.taken = true, from
	a := w.author(from)
	v.present = a != nil && a.view.inside
	v.robbed = v.present && w.now <= a.view.leaseEnd
	v.foreign = a != nil && a.Scheme.Old() && m.Scheme.Old() && a.Dialect.Unit != m.Dialect.Unit
	was, okOld := m.Dialect.ExpiresAt(old)
	is, okNew := m.Dialect.ExpiresAt(f.command.Value)
	v.shorter = okOld && okNew && is < was
	if f.turn != m.turn || f.process != m.process || m.session.Phase != model.Acquiring { // nobody will hear the reply
		r.judgeTakeover(w, m, false)
	}
}

// judgeTakeover names what a takeover was, now that its sender knows whether it won.
func (r *referee) judgeTakeover(w *World, m *member, won bool) {
	v := &m.view
	if !v.took {
		return
	}
	v.took = false
	other := int(v.taken>>32) - 1
	switch {
	case won && v.present && v.taken != v.read:
		r.hazard(w, DoubleWin, int(m.number), other)
		if o := &w.members[other]; o.loss.after != nobody {
			o.loses(Crashed, o.loss.after)
		} else {
			o.loses(Clobbered, m.number)
		}
	case won && v.robbed && v.foreign:
		r.robs(w, UnitMismatch, m, &w.members[other])
	case won && v.robbed:
		r.robs(w, EarlyTakeover, m, &w.members[other])
	case !won && v.shorter:
		r.hazard(w, Clobber, int(m.number), other)
		r.hazard(w, ClobberShorter, int(m.number), other)
		if other >= 0 {
			w.members[other].loss.weaker = m.number
		}
	case !won:
		r.hazard(w, Clobber, int(m.number), other)
	}
}

// deletes sees a key vanish that another client inside relies on.
func (r *referee) deletes(w *World, m *member, removed, own uint64) {
	if removed == own {
		return
	}
	victim := int32(-1)
	a := w.author(removed)
	for _, n := range w.rooms[m.room].inside {
		if n != m.number && (victim < 0 || a != nil && n == a.number) {
			victim = n
		}
	}
	if victim < 0 {
		return
	}
	r.hazard(w, StaleDelete, int(m.number), int(victim))
	if o := &w.members[victim]; m.loss.lost && m.loss.cause == FailedOver {
		o.loses(FailedOver, server)
	} else {
		o.loses(Deleted, m.number)
	}
}
