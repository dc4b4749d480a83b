package explore

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// The server's messages: how a waiter in the queue hears that it has been handed the lock, or that it is first.
//
// Nothing is known of how they travel, so the model knows nothing either. What was published to a client stays on its
// way for as long as it waits with the token that it was published for: it may be read at any moment of
// a sleep, before what was published earlier, twice, or not at all. That a message is lost, late, repeated
// or overtaken is then one and the same rule, and needs neither a count nor a bound.
//
// A message for another token is no client's: the process looks the token up among its waiters.

// post is a message on its way to a client.
type post struct {
	to     int
	letter uint32 // the reply that the machine takes, by its number; its text is the token
}

// audience has a bit for each client that may listen to messages.
func (m *Model) audience() uint8 {
	all := uint8(0)
	for i := range m.Clients {
		if m.Messages && m.Clients[i].Queue {
			all |= 1 << i
		}
	}
	return all
}

// listeners is what PUBLISH returns.
func (m *Model) listeners(channel string, heard uint8) int {
	n := 0
	for i := range m.Clients {
		if heard>>i&1 == 1 && m.channel(i) == channel {
			n++
		}
	}
	return n
}

// channel is where a client listens.
func (m *Model) channel(i int) string {
	s := model.NewSession(i, &m.Clients[i].Member)
	return s.Channel()
}

// posts puts messages on their way.
func (t *tables) posts(messages []model.Message, heard uint8) []post {
	var all []post
	for _, message := range messages {
		token, letter, _ := protocol.ReadMessage(message.Text)
		letter.Text = token
		for i := range t.model.Clients {
			if (heard>>i&1 == 1 || t.model.Overheard) && t.model.channel(i) == message.Channel {
				all = append(all, post{i, t.reply(letter)})
			}
		}
	}
	return all
}

// post adds a message to those that may come to the client. A second one like it adds nothing.
func (a *actor) post(letter protocol.Reply) {
	s := &a.session
	if !s.Hears() || letter.Text != s.Value {
		return
	}
	at, known := slices.BinarySearchFunc(a.mail, letter, func(l, k protocol.Reply) int {
		return cmp.Or(cmp.Compare(l.Kind, k.Kind), cmp.Compare(l.Int2, k.Int2), cmp.Compare(l.Int, k.Int))
	})
	if !known {
		a.mail = slices.Insert(slices.Clone(a.mail), at, letter)
	}
}

// read gives a client one of its messages. It stays among them.
func (m *Model) read(c *Client, a *actor, n int, tick Ticks) {
	letter := a.mail[n]
	letter.Text = ""
	a.sleeps = false
	m.follow(c, a, a.session.Next(m.reading(c, a, tick), letter), tick)
	m.normalise(a)
}

func sayLetter(letter *protocol.Reply) string {
	if letter.Kind == protocol.Granted {
		return fmt.Sprintf("was handed the lock (ticket +%d)", letter.Int2-int64(Epoch)/1000)
	}
	return "is first"
}
