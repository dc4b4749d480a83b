package lifecycle

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// plan is one sequence: what its clients do, and what happens to them. The seed makes all of it.
type plan struct {
	kind    kind
	variant variant
	seed    uint64
	rough   bool // anything may happen; else only what leaves nothing undecided, and then more is asked of the locks
	memory  bool // strict, and the server runs out of memory now and then
	terms   terms
	key     string
	clients [][]step
}

// step is one thing that a client does, or that happens to it.
type step struct {
	do    action
	d     time.Duration // how long, or how long at most
	early bool          // with a context that ends before
	n     int           // next: to which of the commands that follow
	what  world.Fault   // next
	rules string        // rights: what is taken away
}

type action uint8

const (
	acquire action = iota
	try
	do
	inner // do while the lock is held, by an owner
	hold
	renew
	release
	reopen
	next
	partition
	halfOpen
	stall
	refuse
	hang
	cut
	freeze
	heal
	rights
	memoryOut
	stranger // another has New for d, and halfway Old's key goes, whoever holds it
)

var actions = [...]string{"acquire", "try", "do", "inner do", "hold", "renew", "release", "reopen", "next", "partition", "half-open", "stall",
	"refuse connections", "hang connections", "cut", "freeze", "heal", "rights", "out of memory", "stranger"}

func (s step) String() string {
	text := actions[s.do]
	if s.d > 0 {
		text += " " + s.d.String()
	}
	if s.early {
		text += " cancelled"
	}
	if s.do == next {
		text += fmt.Sprintf(" %d: %+v", s.n, s.what)
	}
	return text + s.rules
}

func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kind %s, seed %d (%s), rough %v, ", p.kind.name, p.seed, p.variant.options, p.rough)
	fmt.Fprintf(&b, "key %s, TTL %v, reply timeout %v\n", p.key, p.terms.ttl, p.terms.reply)
	for i, steps := range p.clients {
		fmt.Fprintf(&b, "  client %d:", i)
		for _, s := range steps {
			fmt.Fprintf(&b, " %v;", s)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// needless are rights without which every lock can be given back.
var needless = []string{"-time", "-time", "-time", "-time", "-info", "-pubsub", "-publish", "resetchannels", "-zadd", "-zrange", "-@dangerous", "-exists", "-mget", "-hincrby"}

var refusals = []string{
	"OOM command not allowed when used memory > 'maxmemory'.",
	"NOPERM this user has no permissions to run this command",
	"READONLY You can't write against a read only replica.",
	"LOADING Redis is loading the dataset in memory",
}

// shortestTTL is that of any lock of a sequence.
const shortestTTL = 120 * time.Millisecond

// planOf makes the sequence of a seed.
func planOf(k kind, seed uint64) *plan {
	h := fnv.New64()
	_, _ = h.Write([]byte(k.name))
	g := rand.New(rand.NewPCG(seed, h.Sum64()))
	ms := func(lo, hi int) time.Duration { return time.Duration(lo+g.IntN(hi-lo)) * time.Millisecond }
	p := &plan{kind: k, variant: k.draw(rand.New(rand.NewPCG(h.Sum64(), seed))), seed: seed, key: fmt.Sprintf("%s:%d", k.name, seed), rough: g.IntN(10) < 6}
	p.terms = terms{ttl: ms(int(shortestTTL.Milliseconds()), 300), reply: 60 * time.Millisecond, name: fmt.Sprintf("%s-%d", k.name, seed)}
	clients := 2 + g.IntN(2)
	if !p.rough {
		p.terms.ttl, clients = 4*time.Second, 1
		p.memory = p.variant.servers == 0 && !p.variant.namespace && g.IntN(3) == 0 // a member of a namespace cannot even report then
	}
	crowded := p.rough && clients == 3 && g.IntN(2) == 0 // somebody holds the lock for long while the others come and go
	for i := range clients {
		var steps []step
		if crowded && i == 0 {
			steps = append(steps, step{do: acquire, d: ms(100, 300)}, step{do: hold, d: ms(100, 300)}, step{do: release})
		} else if crowded {
			steps = append(steps, step{do: hold, d: ms(2, 20)}, step{do: try, d: ms(1, 60)})
			if g.IntN(2) == 0 {
				steps = append(steps, left(ms)...)
			}
		}
		for range 2 + g.IntN(2) {
			steps = p.round(g, steps, ms)
		}
		p.clients = append(p.clients, steps)
	}
	return p
}

// round is one lock: taken in some way, held, and given back.
func (p *plan) round(g *rand.Rand, steps []step, ms func(lo, hi int) time.Duration) []step {
	fault := func() {
		if g.IntN(3) > 0 {
			return
		}
		if p.rough {
			steps = append(steps, p.roughFault(g, ms))
		} else {
			steps = append(steps, p.strictFault(g, ms))
		}
	}
	long := func(n int) { // of n times it lasts for longer than the lock, once
		if p.rough && g.IntN(n) == 0 {
			steps[len(steps)-1].d = p.terms.ttl * 3 / 2
		}
	}
	if p.rough && g.IntN(8) == 0 {
		steps = append(steps, left(ms)...)
	}
	if p.rough && p.variant.stage == stages.Both && g.IntN(3) == 0 { // Old is lost while New is waited for
		steps = append(steps, step{do: stranger, d: ms(100, 900)})
	}
	fault()
	early := g.IntN(5) == 0
	switch g.IntN(6) {
	case 0:
		steps = append(steps, step{do: try, early: early && g.IntN(2) == 0, d: ms(1, 60)})
	case 1, 2:
		steps = append(steps, step{do: do, d: ms(0, 20), early: early})
		long(3)
		if p.rough && g.IntN(2) == 0 { // something that happens while it is inside
			steps = append(steps[:len(steps)-1], step{do: next, n: 1 + g.IntN(4), what: p.happening(g, ms)}, steps[len(steps)-1])
		}
		return steps
	default:
		steps = append(steps, step{do: acquire, early: early, d: ms(1, 300)})
	}
	fault()
	if p.variant.owners && g.IntN(2) == 0 {
		steps = append(steps, step{do: inner, d: ms(0, 20)})
		long(2)
	}
	if g.IntN(2) == 0 {
		steps = append(steps, step{do: hold, d: ms(0, 30)})
		long(4)
	}
	if g.IntN(2) == 0 {
		fault()
		steps = append(steps, step{do: renew, early: g.IntN(6) == 0, d: ms(1, 60)})
	}
	fault()
	steps = append(steps, step{do: release, early: g.IntN(5) == 0, d: ms(0, 60)})
	if g.IntN(2) == 0 {
		steps = append(steps, step{do: heal})
	}
	if g.IntN(8) == 0 {
		steps = append(steps, step{do: reopen})
	}
	return steps
}

// left is a wait that has ended before anybody could listen for it.
func left(ms func(lo, hi int) time.Duration) []step {
	return []step{{do: hang}, {do: acquire, d: ms(5, 50)}, {do: hold, d: ms(60, 100)}, {do: heal}}
}

func (p *plan) roughFault(g *rand.Rand, ms func(lo, hi int) time.Duration) step {
	switch n := g.IntN(10); n {
	case 9:
		return step{do: freeze, d: ms(20, 400)}
	case 0, 1, 2, 3, 4:
		return step{do: []action{partition, halfOpen, refuse, hang, cut}[n]}
	default:
		return step{do: next, n: 1 + g.IntN(6), what: p.happening(g, ms)}
	}
}

func (p *plan) happening(g *rand.Rand, ms func(lo, hi int) time.Duration) world.Fault {
	switch g.IntN(6) {
	case 0:
		return world.Fault{LoseCommand: true}
	case 1:
		return world.Fault{LoseReply: true}
	case 2:
		return world.Fault{LateCommand: ms(1, 200)}
	case 3:
		return world.Fault{LateReply: ms(1, 200)}
	case 4:
		return world.Fault{Cut: true}
	default:
		return world.Fault{Refused: refusals[g.IntN(len(refusals))]}
	}
}

// strictFault is one after which everything is decided: what was sent has run or was refused when it is over.
func (p *plan) strictFault(g *rand.Rand, ms func(lo, hi int) time.Duration) step {
	if p.memory {
		return step{do: memoryOut}
	}
	switch g.IntN(6) {
	case 5:
		return step{do: stall, d: ms(60, 400)}
	case 0:
		return step{do: next, n: 1 + g.IntN(6), what: world.Fault{LateReply: p.terms.reply * time.Duration(1+g.IntN(4))}}
	case 1:
		return step{do: next, n: 1 + g.IntN(6), what: world.Fault{LoseReply: true}}
	case 2:
		return step{do: next, n: 1 + g.IntN(6), what: world.Fault{Refused: refusals[g.IntN(len(refusals))]}}
	case 3:
		return step{do: rights, rules: " ~" + strings.Join(p.variant.keys(p.key), " ~") + " " + needless[g.IntN(len(needless))]} // and nothing to the keys beside the lock
	default:
		return step{do: rights, rules: " ~* " + needless[g.IntN(len(needless))]}
	}
}
