// Package world is where tests of locks run in virtual time: servers, a network and processes of their own, in a testing/synctest
// bubble. Nothing in it looks at the real clock, so a busy machine changes no verdict, and an hour costs what happens in it.
//
//	world.Run(t, 17, func(w *world.World) {
//		server := w.Server()
//		a := w.Process("a").Route(server)      // the way from a process to a server; server.Pool() where faults are no matter
//		locker, _ := modern.New(a.Pool(), modern.Options{TTL: time.Second})
//		w.Cleanup(func() { locker.Close() })   // whatever the test starts has to end: the bubble insists on it
//		a.Next(2, world.Fault{LoseReply: true}) // the second command from now runs, and its reply is lost
//		...
//		time.Sleep(time.Minute)                // takes no time
//	})
//
// # The server
//
// The data and its commands are miniredis. Scripts, publish and subscribe, INFO commandstats, rights and the limit of memory are the
// world's own, because miniredis has none of these, or runs them slowly. It is no evidence about Redis: TestAsARealServer compares the
// two. It has no tracking of clients, no replication, no MULTI around scripts and no MONITOR. What needs these stays on a real server.
//
// # The network
//
// Each command and each reply is on its way for Route.Delay, and a random part of it on top. Messages of one connection stay in order.
// No two messages arrive at the same instant, so what happens first does not depend on the scheduler. A Fault happens to one
// command; Partition, HalfOpen, Refuse and Cut happen to a Route, until Heal.
//
// # Processes
//
// A frozen process sends and hears nothing, and its steps wait in Process.Sleep; what it has sent arrives when it is thawed. Timers within
// the packages under test run on.
//
// # The seed
//
// Delays come from the seed and from the names of process and server, so they do not depend on what other processes do. Drawing from
// World.Rand is the test's. Tokens and pauses that a package draws by itself differ from run to run; no verdict may depend on them.
package world

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// World is one bubble. Its T is the bubble's own.
type World struct {
	*testing.T
	Rand *rand.Rand // of the test, from the seed

	seed    uint64
	mu      sync.Mutex
	servers []*Server
	routes  []*Route
}

// begins is when each world begins. The bubble's own beginning, in the year 2000, is before any lock's expiry.
var begins = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Run runs f in a world of its own. When f returns, the servers close all connections; what still runs then fails the test.
func Run(t *testing.T, seed uint64, f func(w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(begins))
		w := &World{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), seed: seed}
		t.Cleanup(w.end) // the last of all
		f(w)
	})
}

// each calls do with every route to a server.
func (w *World) each(s *Server, do func(r *Route)) {
	w.mu.Lock()
	routes := slices.Clone(w.routes)
	w.mu.Unlock()
	for _, r := range routes {
		if r.server == s {
			do(r)
		}
	}
}

// end closes all connections, and gives the servers back.
func (w *World) end() {
	w.mu.Lock()
	routes, servers := w.routes, w.servers
	w.mu.Unlock()
	for _, r := range routes {
		r.Cut()
	}
	for _, s := range servers {
		s.end()
	}
}

// random returns a generator that depends on the seed and a name.
func (w *World) random(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// Process is one client machine.
type Process struct {
	w      *World
	name   string
	mu     sync.Mutex
	routes []*Route
	frozen chan struct{} // closed by Thaw; nil while it runs
}

// Process returns a new process.
func (w *World) Process(name string) *Process { return &Process{w: w, name: name} }

// Freeze stops what the process sends and hears, and its steps, until Thaw.
func (p *Process) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
	for _, r := range p.routes {
		r.set(func(s *state) { s.frozen = true })
	}
}

// Thaw lets the process go on.
func (p *Process) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
	for _, r := range p.routes {
		r.set(func(s *state) { s.frozen = false })
	}
}

// Sleep is time.Sleep for a step of the process: a frozen one does not wake before it is thawed.
func (p *Process) Sleep(d time.Duration) {
	time.Sleep(d)
	for {
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen == nil {
			return
		}
		<-frozen
	}
}

// Route returns a new way from the process to a server.
func (p *Process) Route(s *Server) *Route {
	r := &Route{Delay: 100 * time.Microsecond, process: p, server: s, random: p.w.random(fmt.Sprint(p.name, " ", s.number, " ", len(p.routes)))}
	r.conns, r.changed = make(map[*conn]bool), make(chan struct{})
	p.mu.Lock()
	p.routes = append(p.routes, r)
	r.state.frozen, r.state.stopped = p.frozen != nil, s.isStopped()
	p.mu.Unlock()
	p.w.mu.Lock()
	p.w.routes = append(p.w.routes, r)
	p.w.mu.Unlock()
	return r
}
