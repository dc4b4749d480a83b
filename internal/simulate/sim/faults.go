package sim

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/session"
)

// befall draws the faults that a client's Chaos holds for this run.
func (w *World) befall(m *member) {
	c := &m.Chaos
	draw := func(every, by Distribution, kind FaultKind) {
		if every.Max() <= 0 {
			return
		}
		for at := protocol.Instant(every.Draw(&m.chance)); at < w.end; at = at.Add(max(every.Draw(&m.chance), 1)) {
			w.faults = append(w.faults, Fault{At: at, Kind: kind, Client: int(m.number), By: by.Draw(&m.chance)})
		}
	}
	draw(c.PauseEvery, c.Pause, Pause)
	draw(c.CrashEvery, c.Restart, Crash)
	draw(c.StepEvery, c.Step, StepClock)
}

// strike carries out a fault.
func (w *World) strike(f *Fault) {
	w.referee.strikes(w, f)
	if f.Client < 0 {
		w.strikeServer(f)
		return
	}
	m := &w.members[f.Client]
	switch f.Kind {
	case StepClock:
		m.clock.Step(w.now, f.By)
	case SlewClock:
		m.clock.Slew(w.now, f.By)
	case DriftClock:
		m.clock.rebase(w.now)
		m.clock.DriftPPM = int64(f.By)
	case Pause:
		w.pause(m, f.By)
	case Crash:
		w.crash(m, f.By)
	}
}

// pause stops the process; the work that it does takes that much longer.
func (w *World) pause(m *member, d time.Duration) {
	m.paused = max(m.paused, w.now.Add(d))
	m.workEnds = m.workEnds.Add(d)
}

// crash ends the process. What it has sent arrives all the same.
func (w *World) crash(m *member, restart time.Duration) {
	if m.session.Phase == session.Dead {
		return
	}
	w.referee.crashes(w, m)
	m.process++
	m.held++
	m.naps++
	m.asleep, m.grant = false, protocol.Reply{}
	m.flight = -1
	m.paused = 0
	m.session.Crash()
	if restart > 0 {
		m.session.Restart()
		w.wantAgain(m, restart)
	}
}

func (w *World) strikeServer(f *Fault) {
	switch f.Kind {
	case StepClock:
		w.clock.Step(w.now, f.By)
	case SlewClock:
		w.clock.Slew(w.now, f.By)
	case RestartEmpty:
		w.store.Reset()
	case Failover:
		w.store.Restore(w.history.asOf(w.now.Add(-f.By)))
	}
	w.referee.lost(w)
}

// history remembers how the keys were, as far back as a failover in the run may need.
type history struct {
	on   bool
	past []moment
}

type moment struct {
	at      protocol.Instant
	entries []model.Entry
}

func (h *history) reset(fleet *Fleet) {
	h.past = h.past[:0]
	h.on = slices.ContainsFunc(fleet.Faults, func(f Fault) bool { return f.Kind == Failover })
}

// note remembers the keys after a command that changed them.
func (h *history) note(w *World) {
	if h.on && (w.store.Last.Wrote || w.store.Last.Removed) {
		h.past = append(h.past, moment{w.now, slices.Clone(w.store.Entries())})
	}
}

// asOf returns the keys as they were at t.
func (h *history) asOf(t protocol.Instant) []model.Entry {
	for i := len(h.past) - 1; i >= 0; i-- {
		if h.past[i].at <= t {
			return h.past[i].entries
		}
	}
	return nil
}
