package explore

import (
	"encoding/binary"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// tables gives every local state of a client, every state of the server, every command and every
// reply a number, and remembers what leads to what.
type tables struct {
	model   *Model
	scratch []byte
	forked  actor // what moved works on

	actors   []numbered[*actor] // the local states of each client: one takes more than a kilobyte, and never moves
	facts    [][]facts
	servers  numbered[server]
	commands numbered[protocol.Command]
	replies  numbered[protocol.Reply]

	moves  map[move]uint32   // a client's own steps, and its hearing of replies
	effect map[cause]outcome // what a command does to the server
	ages   map[age]uint32    // a server whose expired keys are gone

	mailings [][]post
}

// numbered are values with numbers, by the bytes that tell them apart.
type numbered[T any] struct {
	all []T
	ids map[string]uint32
}

// number is the value's number. If it is a new one, value makes what is kept.
func (n *numbered[T]) number(state []byte, value func() T) uint32 {
	if id, known := n.ids[string(state)]; known {
		return id
	}
	if n.ids == nil {
		n.ids = map[string]uint32{}
	}
	id := uint32(len(n.all))
	n.ids[string(state)] = id
	n.all = append(n.all, value())
	return id
}

// server is the server and its replica.
type server struct {
	store   model.Store
	replica []model.Entry
	owners  uint8 // a bit for each client whose token or bridge value stands on a key
	endless bool  // a key beside the lock's has no TTL
}

// facts are what the search asks of a local state again and again.
type facts struct {
	phase   model.Phase
	command uint32 // the pending command's number
	stray   uint32
	latest  int16
	until   int16 // inside until this tick; -1 is not inside
	fence   int64
	turn    uint32
	told    bool    // of a member: it has said that it runs the correction
	entry   entryOf // of a handover's member: what its record says
	gone    int16   // ... it acts, and holds a lock, until this tick at most
}

// The keys of the maps have no gaps between their fields: Go hashes one with a gap field by field.
type move struct {
	actor, reply uint32
	client, act  uint8
	tick         uint16
}

type cause struct {
	server, command uint32
	writer          uint32
	tick, heard     uint16
}

type outcome struct {
	server, reply uint32
	mailing       uint32 // what was published, by its number; 0: the server did not even ask who listens
}

type age struct{ server, tick uint32 }

func newTables(m *Model) *tables {
	return &tables{
		model: m, actors: make([]numbered[*actor], len(m.Clients)), facts: make([][]facts, len(m.Clients)),
		moves: map[move]uint32{}, effect: map[cause]outcome{}, ages: map[age]uint32{}, mailings: [][]post{nil},
	}
}

// actor numbers a local state of the i-th client.
func (t *tables) actor(i int, a *actor) uint32 {
	t.scratch = a.append(t.scratch[:0])
	return t.actors[i].number(t.scratch, func() *actor {
		kept := *a
		t.facts[i] = append(t.facts[i], t.describe(i, a))
		return &kept
	})
}

func (t *tables) describe(i int, a *actor) facts {
	m, c := t.model, &t.model.Clients[i]
	f := facts{phase: a.session.Phase, latest: int16(m.latest(c, a)), until: -1, fence: a.session.Fence, turn: a.session.Turn}
	if c.Corrected != nil {
		f.told, f.gone = a.member.told, int16(a.member.until+int(c.Lease/m.Tick))
	}
	if a.pending {
		f.command = t.command(a.session.Sent())
	}
	if a.stray.Op != protocol.NoOp {
		f.stray = t.command(&a.stray)
	}
	if c.New != nil {
		f.entry, f.until = a.hand.entry, int16(m.insideHand(c, a))
	} else if a.session.Holds() {
		f.until = 1<<15 - 1
		if a.session.Bounded() {
			f.until = int16((int64(a.session.Deadline) + int64(m.Tick) - 1) / int64(m.Tick))
		}
	}
	return f
}

func (t *tables) command(c *protocol.Command) uint32 {
	t.scratch = appendCommand(t.scratch[:0], c)
	return t.commands.number(t.scratch, func() protocol.Command { return *c })
}

func (t *tables) reply(r protocol.Reply) uint32 {
	t.scratch = appendReply(t.scratch[:0], &r)
	return t.replies.number(t.scratch, func() protocol.Reply { return r })
}

// server numbers a server's state as of a tick. Expired keys must go first: the number may be found again at an
// earlier tick, in another run, and there they would live.
func (t *tables) server(s *server, tick Ticks) uint32 {
	now := t.model.serverClock(tick)
	if s.store.Expired(now) {
		f := s.fork()
		f.store.Expire(now)
		s = &f
	}
	t.scratch = s.store.AppendState(t.scratch[:0], now)
	if t.model.Failovers > 0 {
		t.scratch = append(t.scratch, 'r')
		for _, e := range s.replica {
			t.scratch = append(append(t.scratch, e.Key...), 0)
			t.scratch = append(append(t.scratch, e.Value...), 0)
			t.scratch = binary.AppendVarint(t.scratch, e.ExpireMS)
		}
	}
	return t.servers.number(t.scratch, func() server {
		kept := *s
		kept.owners, kept.endless = 0, kept.store.Endless(t.model.Clients[0].Key) != ""
		for _, e := range kept.store.Entries() {
			if client, ok := model.ClientOf(e.Value); ok {
				kept.owners |= 1 << client
			}
		}
		return kept
	})
}

func (s *server) fork() server {
	var f server
	s.store.Fork(&f.store)
	f.replica = s.replica
	return f
}

// aged is the server after its clock has moved to a tick.
func (t *tables) aged(id uint32, tick Ticks) uint32 {
	key := age{id, uint32(tick)}
	if next, ok := t.ages[key]; ok {
		return next
	}
	next := t.server(&t.servers.all[id], tick)
	t.ages[key] = next
	return next
}

// executed is the server after a command of a client, and the reply.
// heard has a bit for each client that listens to messages.
func (t *tables) executed(id, command uint32, client int, turn uint32, heard uint8, tick Ticks) outcome {
	key := cause{id, command, uint32(client)<<8 | turn, uint16(tick), uint16(heard)}
	if o, ok := t.effect[key]; ok {
		return o
	}
	s := t.servers.all[id].fork()
	c := t.commands.all[command]
	asked := false
	if t.model.Messages {
		s.store.Listening = func(channel string) int { asked = true; return t.model.listeners(channel, heard) }
	}
	reply := s.store.Exec(t.model.serverClock(tick), uint32(client), 0, &c)
	o := outcome{}
	if asked {
		o.mailing = uint32(len(t.mailings))
		t.mailings = append(t.mailings, t.posts(s.store.Published, heard))
	}
	s.store.Listening, s.store.Published = nil, nil
	o.server, o.reply = t.server(&s, tick), t.reply(reply)
	t.effect[key] = o
	return o
}

// moved is a client after a step of its own, or after hearing a reply.
func (t *tables) moved(client int, id uint32, what act, reply uint32, tick Ticks) uint32 {
	key := move{id, reply, uint8(client), uint8(what), uint16(tick)}
	if next, ok := t.moves[key]; ok {
		return next
	}
	t.forked = *t.actors[client].all[id] // a copy: the client forks here
	t.forked.session.Fork()
	a, c := &t.forked, &t.model.Clients[client]
	switch what {
	case runs:
		t.model.receive(c, a, t.replies.all[reply], tick)
	case strays:
		a.stray = protocol.Command{}
	case posted:
		a.post(t.replies.all[reply])
	case reports:
		if c.New != nil {
			t.model.reportsHand(c, a, uint8(reply>>2), uint8(reply&3), tick)
			break
		}
		t.model.reports(c, a, reply == 1, tick)
		t.model.normalise(a)
	default:
		t.model.take(c, a, what, tick)
	}
	next := t.actor(client, a)
	t.moves[key] = next
	return next
}
