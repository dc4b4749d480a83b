package sim

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// flight is a command on its way, or its reply.
type flight struct {
	command protocol.Command
	reply   protocol.Reply
	back    time.Duration // how long the reply takes
	client  int32
	legs    uint8 // events in the queue that still need the flight
	fate    Fate
	process uint32
	turn    uint32
	room    int32
}

// send puts a command on its way. What becomes of it is decided here, so that each event needs to be
// scheduled only if it will happen.
func (w *World) send(m *member, command *protocol.Command) {
	d := w.decide(m)
	n := w.takeOff()
	f := &w.flights[n]
	*f = flight{
		command: *command, back: d.Reply, client: m.number, fate: d.Fate,
		process: m.process, turn: m.turn, room: m.room,
	}
	m.flight = n
	w.referee.sends(w, m)

	if d.Fate != RequestLost {
		f.legs++
		w.schedule(event{at: w.now.Add(d.Request), client: m.number, kind: arrives, flight: n})
	}
	if timeout := w.fleet.Network.Timeout; d.Fate == RequestLost || d.Fate == ReplyLost || timeout > 0 && d.Request+d.Reply > timeout {
		f.back = -1
		w.answer(n, protocol.Reply{Kind: protocol.Silence}, timeout)
	}
}

// answer has a flight's client hear a reply after some time.
func (w *World) answer(n int32, reply protocol.Reply, after time.Duration) {
	f := &w.flights[n]
	f.legs++
	f.reply = reply
	w.schedule(event{at: w.now.Add(after), client: f.client, kind: answers, flight: n, stamp: f.process})
}

// decide draws a command's fate, or looks it up in the plan.
func (w *World) decide(m *member) Delay {
	m.commands++
	if p := w.fleet.Plan; p != nil {
		for i := range p.Delays {
			if d := &p.Delays[i]; d.Nth == m.commands && d.Client == int(m.number) {
				return *d
			}
		}
		return Delay{Request: p.Latency, Reply: p.Latency}
	}
	n, g := &w.fleet.Network, &m.random
	d := Delay{Client: int(m.number), Nth: m.commands, Request: n.Request.Draw(g), Reply: n.Reply.Draw(g)}
	for fate, chance := range [...]PPM{RequestLost: n.LoseRequest, ReplyLost: n.LoseReply, Repeated: n.Repeat, ReplyRepeated: n.RepeatReply} {
		if chance.Hits(g) {
			d.Fate = Fate(fate)
			break
		}
	}
	if w.Recorded != nil {
		w.Recorded.Delays = append(w.Recorded.Delays, d)
	}
	return d
}

// execute runs a command at the server and sends its reply on the way.
func (w *World) execute(e event) {
	f := &w.flights[e.flight]
	again := f.fate == Repeated && e.stamp == repeats
	if w.now < w.down { // nobody is there; the client waits for as long as it waits for a reply that is lost
		if f.back >= 0 && !again {
			w.answer(e.flight, protocol.Reply{Kind: protocol.Silence}, w.fleet.Network.Timeout)
		}
		w.land(e.flight)
		return
	}
	m := &w.members[f.client]
	store := &w.rooms[f.room].store
	store.SetNX = w.setnx
	reply := store.Exec(w.clock.Read(w.now).Wall, uint32(f.client), writer(f.client, f.turn), &f.command)
	w.setnx = store.SetNX
	w.ops++
	if len(store.Published) > 0 {
		w.publish(store.Published, f.back)
		f = &w.flights[e.flight] // publishing may have moved them
	}
	if w.invalidate(m, f) {
		f = &w.flights[e.flight]
	}
	w.referee.executes(w, m, f, &reply)

	if f.fate == Repeated && !again {
		f.legs++
		w.schedule(event{at: w.now.Add(f.back + 1), client: f.client, kind: arrives, flight: e.flight, stamp: repeats})
	}
	if f.back >= 0 && !again {
		w.answer(e.flight, reply, f.back)
		if f.fate == ReplyRepeated {
			w.answer(e.flight, reply, 2*f.back+1)
		}
	}
	w.land(e.flight)
}

const repeats = 1 // the stamp of a command's second arrival

// hear gives a reply to the client that waits for it.
func (w *World) hear(m *member, n int32) {
	reply := w.flights[n].reply
	m.flight = -1
	w.land(n)
	w.referee.hears(w, m, &reply)
	w.follow(m, m.session.Next(m.clock.Read(w.now), reply))
}

// writer names a client's turn: what the store remembers of each value.
func writer(client int32, turn uint32) uint64 { return uint64(client+1)<<32 | uint64(turn) }

func (w *World) takeOff() int32 {
	if n := len(w.free); n > 0 {
		i := w.free[n-1]
		w.free = w.free[:n-1]
		return i
	}
	w.flights = append(w.flights, flight{})
	return int32(len(w.flights) - 1)
}

// land ends one leg of a flight; after the last one its place can be used again.
func (w *World) land(n int32) {
	f := &w.flights[n]
	if f.legs--; f.legs == 0 {
		w.free = append(w.free, n)
	}
}
