package explore

import (
	"context"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// MaxClients bounds a model.
const MaxClients = 4

// node is one state of the whole model, by its parts' numbers.
type node struct {
	server uint32
	actors [MaxClients]uint32
	tick   uint8
	over   uint8  // the age of an overlap, where it is tolerated for a while; of a handover, the number of its moves and its stage in two bits
	spent  uint8  // silences and failovers so far
	idle   uint8  // for how many ticks nobody has been inside although somebody waits
	fence  uint32 // the greatest fencing number that got in, counted from the Epoch in microseconds
}

// origin says how a node was reached first.
type origin struct {
	parent uint32
	act    act
	client uint8
	heard  uint8 // the clients that listened, a bit each
}

// Outcome is what a search found.
type Outcome struct {
	Verdict Verdict  `json:"verdict"`
	States  int      `json:"states"`
	Depth   int      `json:"depth"`    // of the deepest state, in steps
	Trace   []string `json:"trace"`    // a shortest run to the violation, a step a line
	Ran     int      `json:"commands"` // how many commands of it the server runs
}

// DefaultStates keeps a search within a few hundred megabytes.
const DefaultStates = 20_000_000

// Search explores a model until it finds a violation, has seen everything, or meets more than that many states.
func Search(ctx context.Context, m *Model, states int) Outcome {
	s := newSearch(m, states)
	return s.run(ctx)
}

type search struct {
	model    *Model
	tables   *tables
	audience uint8 // the clients that may listen to messages, a bit each
	limit    int
	nodes    []node
	origins  []origin
	seen     set
	acts     []act
	culprit  int // the node that violates; -1 is none
}

func newSearch(m *Model, limit int) search {
	return search{model: m, tables: newTables(m), audience: m.audience(), limit: limit, culprit: -1}
}

func (s *search) run(ctx context.Context) Outcome {
	s.begin()
	depth, levelEnd := 0, len(s.nodes)
	for at := 0; at < len(s.nodes) && s.culprit < 0; at++ {
		if at == levelEnd {
			depth++
			levelEnd = len(s.nodes)
		}
		if at&0xfff == 0 && ctx.Err() != nil || len(s.nodes) > s.limit {
			return Outcome{Verdict: Incomplete, States: len(s.nodes), Depth: depth, Trace: []string{}}
		}
		s.expand(at)
	}
	o := Outcome{Verdict: Exclusive, States: len(s.nodes), Depth: depth, Trace: []string{}}
	if s.culprit >= 0 {
		o.Verdict = Violated
		o.Trace, o.Ran = s.trace(s.culprit)
	}
	return o
}

// begin enters the one initial state.
func (s *search) begin() {
	t, m := s.tables, s.model
	first := server{}
	first.store.Overrides, first.store.NoStats = m.Overrides, !m.counts()
	for _, e := range m.Opening {
		first.store.Put(e)
	}
	n := node{server: t.server(&first, 0)}
	for i := range m.Clients {
		a := actor{session: model.NewSession(i, &m.Clients[i].Member)}
		if m.Record != nil && m.Clients[i].Corrected != nil {
			m.reports(&m.Clients[i], &a, false, 0)
		}
		if m.Handover != nil && m.Clients[i].New != nil {
			m.joins(i, &a)
			n.over = m.Handover.Start
		}
		n.actors[i] = t.actor(i, &a)
	}
	s.visit(n, origin{})
}

// expand visits all successors of a node.
func (s *search) expand(at int) {
	n := s.nodes[at]
	m, t := s.model, s.tables
	tick := Ticks(n.tick)
	mayPass := tick < m.Horizon
	for i := range m.Clients {
		f := &t.facts[i][n.actors[i]]
		if f.latest >= 0 && int(f.latest) <= tick {
			mayPass = false
		}
		s.acts = m.can(&m.Clients[i], t.actors[i].all[n.actors[i]], tick, s.acts[:0])
		for _, what := range s.acts {
			if c := &m.Clients[i]; what == begins && (c.After && !s.inEffect(&n) || c.Before && n.corrected()) {
				continue
			}
			s.step(at, n, i, what)
		}
		if n.spent&0xf < uint8(m.Silences) && (f.command != 0 || t.actors[i].all[n.actors[i]].pending) {
			next := n
			next.spent++
			next.actors[i] = t.moved(i, n.actors[i], givesUp, 0, tick)
			s.enter(n, next, origin{parent: uint32(at), act: givesUp, client: uint8(i)})
		}
	}
	if m.Failovers > 0 {
		s.failover(at, n, tick)
	}
	if m.Record != nil {
		s.correct(at, n, tick)
	}
	if m.Handover != nil {
		s.hands(at, n, tick)
	}
	if mayPass {
		s.pass(at, n)
	}
}

// step visits the state after one step of one client.
func (s *search) step(at int, n node, i int, what act) {
	t, tick := s.tables, Ticks(n.tick)
	f := &t.facts[i][n.actors[i]]
	from := origin{parent: uint32(at), act: what, client: uint8(i)}
	switch what {
	case runs:
		s.execute(n, from, f.command)
	case strays:
		s.execute(n, from, f.stray)
	default:
		next := n
		next.actors[i] = t.moved(i, n.actors[i], what, 0, tick)
		s.enter(n, next, from)
	}
}

// execute visits the states after a client's command has run: one, or where the server asks who
// listens, one for every answer.
func (s *search) execute(n node, from origin, command uint32) {
	t, tick, i := s.tables, Ticks(n.tick), int(from.client)
	turn := t.facts[i][n.actors[i]].turn
	for heard := s.audience; ; heard = (heard - 1) & s.audience {
		o := t.executed(n.server, command, i, turn, heard, tick)
		next := n
		next.server = o.server
		next.actors[i] = t.moved(i, n.actors[i], from.act, o.reply, tick)
		for _, p := range t.mailings[o.mailing] {
			next.actors[p.to] = t.moved(p.to, next.actors[p.to], posted, p.letter, tick)
		}
		from.heard = heard
		s.enter(n, next, from)
		if heard == 0 || o.mailing == 0 {
			return
		}
	}
}

// enter visits a successor, after judging it.
func (s *search) enter(before, next node, from origin) {
	i := int(from.client)
	if s.fenceFalls(&before, &next, i) || s.model.Property.Tolerate == 0 && s.violates(&next) || s.remains(&next) || s.tables.servers.all[next.server].endless {
		s.blame()
	}
	if s.model.Property.Tolerate > 0 {
		next.over = s.intrusion(&before, &next, i)
	}
	if next.idle > 0 && s.inside(&next, i) {
		next.idle = 0
	}
	s.visit(next, from)
}

// intrusion is the age of the overlap that is being watched, from 1; 0 is none.
func (s *search) intrusion(before, next *node, i int) uint8 {
	switch {
	case !s.violates(next):
		return 0
	case next.over > 0:
		return next.over
	case s.inside(next, i) && !s.inside(before, i) && s.model.Clients[i].Scheme == s.model.Property.Intruder:
		return 1
	default:
		return 0
	}
}

// pass lets a tick go by.
func (s *search) pass(at int, n node) {
	next := n
	next.tick++
	next.server = s.tables.aged(n.server, Ticks(next.tick))
	if s.remains(&next) {
		s.blame()
	}
	if limit := s.model.Property.Tolerate; limit > 0 {
		if !s.violates(&next) {
			next.over = 0
		} else if next.over > 0 {
			if next.over++; int(next.over) > limit+1 {
				s.blame()
			}
		}
	}
	if limit := s.model.Property.Idle; limit > 0 {
		if next.idle++; !s.idles(&n) {
			next.idle = 0
		}
		if int(next.idle) > limit {
			s.blame()
		}
	}
	s.visit(next, origin{parent: uint32(at), act: tickPasses})
}

// blame makes the node that is visited next the violation that was found, unless there is one.
func (s *search) blame() {
	if s.culprit < 0 {
		s.culprit = len(s.nodes)
	}
}

// remains tells whether something of a client stands on the server longer than its last command may leave it there.
func (s *search) remains(n *node) bool {
	if !s.model.Property.Gone {
		return false
	}
	for i := range s.model.Clients {
		c := &s.model.Clients[i]
		last := c.NotAfter.Add(c.Lease)
		if c.NotAfter != 0 && s.model.serverClock(Ticks(n.tick)) > last && s.tables.servers.all[n.server].owners>>i&1 == 1 {
			return true
		}
	}
	return false
}

// idles tells whether somebody waits and nobody is inside.
func (s *search) idles(n *node) bool {
	waits := false
	for i := range s.model.Clients {
		if s.inside(n, i) {
			return false
		}
		waits = waits || s.tables.facts[i][n.actors[i]].phase == model.Acquiring
	}
	return waits
}

// failover lets the replica catch up, or take over.
func (s *search) failover(at int, n node, tick Ticks) {
	f := s.tables.servers.all[n.server].fork()
	f.replica = slices.Clone(f.store.Entries())
	next := n
	next.server = s.tables.server(&f, tick)
	s.visit(next, origin{parent: uint32(at), act: syncs})
	if int(n.spent>>4&7) >= s.model.Failovers {
		return
	}
	f = s.tables.servers.all[n.server].fork()
	f.store.Restore(f.replica)
	next = n
	next.server = s.tables.server(&f, tick)
	next.spent += 1 << 4
	s.visit(next, origin{parent: uint32(at), act: failsOver})
}

// violates tells whether two clients are inside that must exclude each other.
func (s *search) violates(n *node) bool {
	m := s.model
	for i := range m.Clients {
		if !s.inside(n, i) {
			continue
		}
		for j := i + 1; j < len(m.Clients); j++ {
			if s.inside(n, j) && m.Property.covers(m.Clients[i].Scheme, m.Clients[j].Scheme) {
				return true
			}
		}
	}
	return false
}

func (s *search) inside(n *node, i int) bool {
	return int16(n.tick) < s.tables.facts[i][n.actors[i]].until
}

// fenceFalls tells whether a client got in with a fencing number that is not above all before.
func (s *search) fenceFalls(before, next *node, i int) bool {
	if !s.model.Property.Fencing || s.model.Clients[i].Fence == "" {
		return false
	}
	if !s.inside(next, i) || s.inside(before, i) {
		return false
	}
	f := &s.tables.facts[i][next.actors[i]]
	n := f.fence - int64(Epoch)/1000 + 1
	if n <= int64(before.fence) {
		return true
	}
	next.fence = uint32(n)
	return false
}

// visit adds a node unless it is known.
func (s *search) visit(n node, from origin) {
	if s.seen.add(s.nodes, &n) {
		s.nodes = append(s.nodes, n)
		s.origins = append(s.origins, from)
	}
}

// set is a hash set of nodes: a table of their hashes and their indices. The nodes themselves lie in one slice, in the
// order of their discovery, which is the queue of the search as well: far away for the processor, so one is looked at only where the hash is its own.
type set struct {
	slots []slot
	count int
}

// slot is a hash and an index + 1; 0 is free.
type slot struct{ hash, node uint32 }

func (s *set) add(nodes []node, n *node) bool {
	if 4*s.count >= 3*len(s.slots) {
		s.grow()
	}
	mask, hash := uint32(len(s.slots)-1), n.hash()
	for at := hash & mask; ; at = (at + 1) & mask {
		switch slot := &s.slots[at]; {
		case slot.node == 0:
			s.count++
			slot.hash, slot.node = hash, uint32(s.count)
			return true
		case slot.hash == hash && nodes[slot.node-1] == *n:
			return false
		}
	}
}

func (s *set) grow() {
	before := s.slots
	s.slots = make([]slot, max(1<<10, 2*len(before)))
	mask := uint32(len(s.slots) - 1)
	for _, old := range before {
		if old.node == 0 {
			continue
		}
		at := old.hash & mask
		for s.slots[at].node != 0 {
			at = (at + 1) & mask
		}
		s.slots[at] = old
	}
}

func (n *node) hash() uint32 {
	const prime = 0x9e3779b97f4a7c15
	h := uint64(n.server)<<32 | uint64(n.tick)<<24 | uint64(n.over)<<16 | uint64(n.spent)<<8
	h ^= uint64(n.fence)<<40 ^ uint64(n.idle)<<56
	h = (h ^ h>>31) * prime
	h ^= uint64(n.actors[0])<<32 | uint64(n.actors[1])
	h = (h ^ h>>29) * prime
	h ^= uint64(n.actors[2])<<32 | uint64(n.actors[3])
	h = (h ^ h>>32) * prime
	return uint32(h ^ h>>29)
}
