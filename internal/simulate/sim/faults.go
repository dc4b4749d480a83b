package sim

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// befall draws the faults that a client's Chaos holds for this run.
func (w *World) befall(m *member) {
	c := &m.Chaos
	draw := func(every, by Distribution, kind FaultKind) {
		if every.Max() <= 0 {
			return
		}
		for at := protocol.Instant(every.Draw(&m.random)); at < w.end; at = at.Add(max(every.Draw(&m.random), 1)) {
			w.faults = append(w.faults, Fault{At: at, Kind: kind, Client: int(m.number), By: by.Draw(&m.random)})
		}
	}
	draw(c.PauseEvery, c.Pause, Pause)
	draw(c.CrashEvery, c.Restart, Crash)
	draw(c.StepEvery, c.Step, StepClock)
}

// overthrow draws the failovers of this master. The seed's first stream is no client's.
func (w *World) overthrow(seed uint64, master int) {
	s := &w.fleet.Server
	if s.FailoverEvery.Max() <= 0 {
		return
	}
	random := NewGenerator(seed^uint64(master)<<32, 0)
	for at := protocol.Instant(s.FailoverEvery.Draw(&random)); at < w.end; at = at.Add(max(s.FailoverEvery.Draw(&random), 1)) {
		out, behind := s.Outage.Draw(&random), s.Behind.Draw(&random)
		w.faults = append(w.faults, Fault{At: at, Kind: Outage, Client: -1, By: out},
			Fault{At: at.Add(out), Kind: Failover, Client: -1, By: out + behind})
	}
}

// strike carries out a fault.
func (w *World) strike(f *Fault) {
	w.referee.strikes(w, f)
	clock := &w.clock
	if f.Client >= 0 {
		clock = &w.members[f.Client].clock
	} else {
		w.referee.looks(w)
	}
	switch f.Kind {
	case StepClock:
		clock.Step(w.now, f.By)
	case SlewClock:
		clock.Slew(w.now, f.By)
	case DriftClock:
		clock.rebase(w.now)
		clock.DriftPPM = int64(f.By)
	case Pause:
		w.pause(&w.members[f.Client], f.By)
	case Crash:
		w.crash(&w.members[f.Client], f.By)
	case Outage:
		w.down = max(w.down, w.now.Add(f.By))
	case RestartEmpty:
		w.setnx = 0
		for i := range w.rooms {
			w.rooms[i].store.Reset()
		}
		w.connectAnew()
	case Failover:
		w.referee.tally.Failovers++
		for i := range w.rooms {
			w.rooms[i].store.Restore(w.replicas[f.replica+i])
		}
		w.connectAnew()
	}
	if f.Client < 0 {
		w.referee.lost(w)
	}
}

// connectAnew has those who track keys lose their connections: they look when they have new ones.
func (w *World) connectAnew() {
	for i := range w.members {
		if m := &w.members[i]; m.Tracks && m.session.Phase == model.Acquiring {
			w.message(m, protocol.Reply{Kind: protocol.Woke}, w.fleet.Network.Reply.Mean())
		}
	}
}

// pause stops the process; the work that it does takes that much longer.
func (w *World) pause(m *member, d time.Duration) {
	m.paused = max(m.paused, w.now.Add(d))
	m.workEnds = m.workEnds.Add(d)
}

// crash ends the process. What it has sent still arrives.
func (w *World) crash(m *member, restart time.Duration) {
	if m.dead {
		return
	}
	w.referee.crashes(w, m)
	m.process++
	m.held++
	m.naps++
	m.asleep, m.grant = false, protocol.Reply{}
	m.flight = -1
	m.paused = 0
	m.dead = restart <= 0
	w.rest(m)
	if !m.dead {
		w.wantAgain(m, restart)
	}
}

// remember keeps what the keys hold now, as a replica does that will see no more before the failover.
func (w *World) remember(f *Fault) {
	f.replica = len(w.replicas)
	for i := range w.rooms {
		w.replicas = append(w.replicas, slices.Clone(w.rooms[i].store.Entries()))
	}
}
