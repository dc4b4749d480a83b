package sim

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// listeners tells how many clients listen on a channel: one whose process lives, paused or not, and
// waits for the lock.
func (w *World) listeners(channel string) int {
	n := 0
	for _, i := range w.channels[channel] {
		if m := &w.members[i]; m.session.Phase == model.Acquiring && m.Queue {
			n++
		}
	}
	return n
}

// publish sends the server's messages on their way.
func (w *World) publish(messages []model.Message, delay time.Duration) {
	for _, message := range messages {
		for _, i := range w.channels[message.Channel] {
			m := &w.members[i]
			if m.session.Phase != model.Acquiring {
				continue
			}
			_, reply, _ := protocol.ReadMessage(message.Text)
			w.message(m, reply, delay)
		}
	}
}

// message sends a client word that no command of its own asked for.
func (w *World) message(m *member, reply protocol.Reply, delay time.Duration) {
	if w.fleet.Plan == nil && w.fleet.Network.LoseMessage.Hits(&m.random) {
		return
	}
	n := w.takeOff()
	w.flights[n] = flight{client: m.number, legs: 1, reply: reply}
	w.schedule(event{at: w.now.Add(max(delay, 1)), client: m.number, kind: told, flight: n, stamp: m.process})
}

// invalidate tells those who track the key that it has changed, each once; a waiter that has looked at the key is one of them
// from then on. It returns whether flights may have moved. A key whose TTL is over changes when a command finds that out.
func (w *World) invalidate(m *member, f *flight) (moved bool) {
	room := &w.rooms[f.room]
	if last := &room.store.Last; (last.Wrote || last.Removed) && len(room.watchers) > 0 {
		back := f.back
		if back < 0 {
			back = w.fleet.Network.Timeout
		}
		for _, i := range room.watchers {
			watcher := &w.members[i]
			if watcher == m || watcher.room != f.room || watcher.session.Phase != model.Acquiring {
				continue
			}
			w.message(watcher, protocol.Reply{Kind: protocol.Woke}, back)
			moved = true
		}
		room.watchers = room.watchers[:0]
	}
	if m.Tracks && m.turn == f.turn && m.session.Watches() && !slices.Contains(room.watchers, m.number) {
		room.watchers = append(room.watchers, m.number)
	}
	return moved
}

// tell gives a client a message, now or when its machine sleeps next.
func (w *World) tell(m *member, n int32) {
	reply := w.flights[n].reply
	w.land(n)
	switch {
	case m.session.Phase != model.Acquiring:
	case m.asleep && m.session.Listens():
		w.wakeWith(m, reply)
	default:
		m.grant = reply
	}
}

func (w *World) wakeWith(m *member, reply protocol.Reply) {
	m.asleep, m.grant = false, protocol.Reply{}
	m.naps++
	w.follow(m, m.session.Next(m.clock.Read(w.now), reply))
}
