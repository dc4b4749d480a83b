package sim

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/session"
)

// listeners tells how many clients listen on a channel: one whose process lives, paused or not, and
// waits for the lock.
func (w *World) listeners(channel string) int {
	n := 0
	for _, i := range w.channels[channel] {
		if m := &w.members[i]; m.session.Phase == session.Acquiring && m.Queue {
			n++
		}
	}
	return n
}

// publish sends the server's messages on their way.
func (w *World) publish(messages []model.Message, delay time.Duration) {
	for _, message := range messages {
		w.referee.tally.Messages++
		for _, i := range w.channels[message.Channel] {
			m := &w.members[i]
			if m.session.Phase != session.Acquiring {
				continue
			}
			n := w.takeOff()
			_, reply := session.ReadMessage(message.Text)
			w.flights[n] = flight{client: m.number, legs: 1, reply: reply}
			w.schedule(event{at: w.now.Add(max(delay, 1)), client: m.number, kind: told, flight: n, stamp: m.process})
		}
	}
}

// tell gives a client a message, now or when its machine sleeps next.
func (w *World) tell(m *member, n int32) {
	reply := w.flights[n].reply
	w.land(n)
	switch {
	case m.session.Phase != session.Acquiring:
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
