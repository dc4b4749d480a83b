package explore

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Handover is the record of a handover from one lock to another, as package handover and the stage scripts keep it. Clients with a New are its
// members. They run the shipped machines of their two locks; what package handover decides between these, and the record beside them, is
// written here once more: which halves a stage takes, the order, the check before a lock is handed out, the bound by the member's lease,
// what a member reports (stage_join.lua), and when the stage may move (stage_move.lua).
//
// Both locks are keys of one server, whose commands may each be late or silent. As in Record, a report and its answer are one step: an answer
// that comes late, or never, allows nothing more.
type Handover struct {
	Start, First, Last uint8 // stages: where it begins, and between which it moves
	Moves              int   // at most
	Lease              Ticks // of a member, from its report

	Mirrors bool // two stages, each of which takes one lock and copies it to the other's key afterwards; they change at once (an ablation)
}

// The stages.
const (
	stageOld = iota
	stageBoth
	stageNew
)

var stageNames = [...]string{"old", "both", "new"}

// hand is a member's side of it.
type hand struct {
	other *model.Session // of the half that is not under way; forks share it, so it is never changed in place
	isNew bool           // the session is New's
	doing doing
	turn  uint8
	stage uint8 // of the attempt, or of the lock
	epoch uint8

	follows, at uint8 // the epoch and the stage that the member has heard of
	until       Ticks // the end of its lease
	entry       entryOf
}

type doing uint8

const (
	nothing doing = iota
	takes
	holdsIt
	gives
)

// entryOf is what the record says of a member.
type entryOf struct {
	epoch, stage, lo, hi uint8
	ends                 Ticks
}

const none = 255 // no epoch, no stage

// joins makes a client a member that has reported at tick 0.
func (m *Model) joins(i int, a *actor) {
	h, other := m.Handover, model.NewSession(i, m.Clients[i].New)
	a.hand = hand{other: &other, at: h.Start, until: h.Lease, entry: entryOf{0, h.Start, h.Start, h.Start, h.Lease}}
}

func (a *actor) swap() {
	was := a.session
	a.session, a.hand.other, a.hand.isNew = *a.hand.other, &was, !a.hand.isNew
}

// canHand lists what a member of a handover may do on its own, beside what its commands allow.
func (m *Model) canHand(c *Client, a *actor, tick Ticks, acts []act) []act {
	h := &a.hand
	switch {
	case a.session.Phase == model.Dead:
	case h.doing == nothing && int(h.turn) < c.Turns && tick < h.until:
		acts = append(acts, begins)
	case a.sleeps && tick >= a.wake:
		acts = append(acts, wakesUp)
	case h.doing == holdsIt:
		acts = append(acts, works)
	}
	if a.sleeps && h.doing == takes && h.epoch != h.follows {
		acts = append(acts, cancels)
	}
	if c.Crash && (h.doing == holdsIt || h.doing == takes) {
		acts = append(acts, crashes)
	}
	return acts
}

// beginHand begins an attempt in the stage that the member follows: Old first.
func (m *Model) beginHand(c *Client, a *actor, tick Ticks) {
	h := &a.hand
	h.doing, h.stage, h.epoch = takes, h.at, h.follows
	h.turn++
	if h.stage == stageNew {
		a.swap()
	}
	m.follow(c, a, a.session.Acquire(m.reading(c, a, tick)), tick)
}

// proceed goes on where a half has come to an end.
func (m *Model) proceed(c *Client, a *actor, tick Ticks) {
	h := &a.hand
	for h.doing != nothing && !a.pending && !a.heard && !a.sleeps {
		now, holds := m.reading(c, a, tick), a.session.Holds()
		switch {
		case h.doing == holdsIt:
			return
		case h.doing == takes && !holds:
			h.doing = gives
		case h.doing == takes && h.stage == stageBoth && !h.isNew:
			a.swap()
			m.follow(c, a, a.session.Acquire(now), tick)
		case h.doing == takes: // the check before it is handed out
			h.doing = holdsIt
			if m.Handover.Mirrors {
				a.stray = protocol.Command{Op: model.Copying, Key: h.other.Key, Value: a.session.Value, TTL: c.Lease}
			} else if !c.Unchecked && (h.epoch != h.follows || tick >= h.until) {
				h.doing = gives
			}
		case !h.isNew && h.other.Holds(): // New is given back first
			a.swap()
		case holds:
			m.follow(c, a, a.session.Release(now), tick)
		case h.other.Holds():
			a.swap()
		default:
			h.doing, h.stage, h.epoch = nothing, 0, 0
			if h.isNew {
				a.swap()
			}
			if int(h.turn) == c.Turns { // it has nothing more to do and leaves: that is in the way of no move, as staying might be
				h.follows, h.at, h.until, h.entry = 0, 0, 0, entryOf{ends: Unbounded}
			}
		}
	}
}

// insideHand is the tick until which the holder goes on: the end of a half, or of the member's lease.
func (m *Model) insideHand(c *Client, a *actor) Ticks {
	h := &a.hand
	if h.doing != holdsIt {
		return -1
	}
	until := h.until
	if c.Outlives {
		until = 1<<15 - 1
	}
	for _, s := range []*model.Session{&a.session, h.other} {
		if s.Holds() && !(c.Ignores && h.stage == stageBoth && s.Key == c.Key) {
			until = min(until, int((int64(s.Deadline)+int64(m.Tick)-1)/int64(m.Tick)))
		}
	}
	return until
}

// reportsHand is a report and its answer: stage_join.lua.
func (m *Model) reportsHand(c *Client, a *actor, epoch, told uint8, tick Ticks) {
	h, lo, hi := &a.hand, uint8(none), uint8(0)
	uses := func(stage uint8) { lo, hi = min(lo, stage), max(hi, stage) }
	said := entryOf{epoch: none, stage: none, ends: max(tick+m.Handover.Lease, h.entry.ends)}
	if tick < h.until {
		uses(h.at)
		if said.epoch, said.stage = h.follows, h.at; h.doing == takes {
			said.epoch = h.epoch // what was begun under an earlier order may act
		}
	}
	if h.doing != nothing && !(c.Omits && h.doing == takes) {
		uses(h.stage)
	}
	apart := lo != none && max(hi, told)-min(lo, told) > 1
	if said.lo, said.hi = lo, hi; !apart || lo == none {
		uses(told)
		said.lo, said.hi = lo, hi
	}
	h.entry = said
	if apart && !m.Handover.Mirrors && !m.AtOnce {
		h.until = min(h.until, tick)
		return
	}
	h.follows, h.at, h.until = epoch, told, tick+m.Handover.Lease
}

// mayMove is stage_move.lua: whether the stage may move now.
func (s *search) mayMove(n *node, epoch, stage, to uint8) bool {
	if s.model.AtOnce || s.model.Handover.Mirrors {
		return true
	}
	lo, hi := to, to
	for i := range s.model.Clients {
		if e := &s.tables.facts[i][n.actors[i]].entry; s.model.Clients[i].New != nil && Ticks(n.tick) <= e.ends {
			lo, hi = min(lo, e.lo), max(hi, e.hi)
			if to > stage && (e.epoch != epoch || e.stage != stage) {
				return false
			}
		}
	}
	return hi-lo <= 1
}

// hands lets the operator move the stage, and members report.
func (s *search) hands(at int, n node, tick Ticks) {
	h := s.model.Handover
	epoch, stage := n.over>>2, n.over&3
	for to := h.First; to <= h.Last && int(epoch) < h.Moves; to++ {
		neighbour := to+1 == stage || to == stage+1 || h.Mirrors && to != stage && to != stageBoth
		if neighbour && s.mayMove(&n, epoch, stage, to) {
			next := n
			next.over = (epoch+1)<<2 | to
			s.visit(next, origin{parent: uint32(at), act: corrects})
		}
	}
	s.report(at, n, tick, uint32(n.over))
}

func (h *hand) append(b []byte) []byte {
	b = append(b, flag(h.isNew, 0)|byte(h.doing)<<1, h.turn, h.stage, h.epoch, h.follows, h.at, byte(h.until))
	b = append(b, h.entry.epoch, h.entry.stage, h.entry.lo, h.entry.hi, byte(h.entry.ends))
	return h.other.AppendState(b)
}

// die leaves of a member what the record says of it.
func (h *hand) die() {
	if h.other != nil {
		dead := *h.other
		dead.Crash()
		*h = hand{other: &dead, turn: h.turn, entry: h.entry}
	}
}
