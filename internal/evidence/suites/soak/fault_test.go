package soak

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// fault is one thing that may happen.
type fault struct {
	name string
	sim  string // in the simulator's language; empty where it has none
	do   func()
}

// faults are those that this fleet is to survive on this site.
func (r *soaking) faults() []fault {
	s := r.site
	all := []fault{
		{"client kill", "", func() { s.breaking(func() { s.each("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }) }},
		{"listeners killed", "", func() { s.each("CLIENT", "KILL", "TYPE", "pubsub") }},
		{"script flush", "", func() { s.each("SCRIPT", "FLUSH") }},
		{"stage change", "", r.move},
		{"stage change", "", r.move},
	}
	all = append(all, r.besides()...)
	for _, m := range r.processes {
		d := r.upTo(250) // within the delay that is allowed for
		// Past its TTL where only tokens are used; an old lock's commands must not come that late, whoever sends them.
		if m.ours() && (strings.HasPrefix(m.name, "token") || strings.Contains(m.name, "redisson") || r.onlyTokens()) {
			d = ttl + r.upTo(1500)
		}
		all = append(all, fault{m.name + " stopped for " + d.String(), fmt.Sprintf("%s pauses %v", m.name, d), func() { m.stop(d) }})
		all = append(all, fault{m.name + " killed", m.name + " crashes 300ms", m.kill})
	}
	switch s.topology {
	case onSingle:
		all = append(all,
			fault{"link cut", "", s.far.Cut},
			fault{"partition", "go-far pauses 500ms", func() { s.far.Partition(); time.Sleep(r.upTo(1500)); s.far.Heal() }},
			fault{"half-open", "", func() { s.far.HalfOpen(); time.Sleep(r.upTo(800)); s.far.Heal() }},
			fault{"slow link", "", func() { s.far.Slow(r.upTo(60), 0); time.Sleep(r.upTo(800)); s.far.Slow(0, 0) }},
			fault{"server stopped", "", func() { thaw := s.server.Freeze(); time.Sleep(r.upTo(250)); thaw() }},
		)
		if !r.hasOld() {
			// What acknowledges comes back with it; old clients' libraries do not all survive it.
			all = append(all, fault{"server killed", "", func() { s.server.Kill(); s.server.Start() }})
		}
	case onSentinel:
		n := r.rand.IntN(10)
		all = append(all,
			r.failover("master killed", n, true, 0), r.failover("master killed, unheard", n, true, r.upTo(400)), r.failover("failover ordered", n, false, 0),
			fault{"sentinel killed", "", func() { x := s.group.Sentinels[n%3]; x.Kill(); time.Sleep(r.upTo(500)); x.Start() }},
			fault{"replica killed", "", func() {
				for _, x := range s.group.Servers {
					if x != s.group.Master() {
						x.Kill()
						time.Sleep(r.upTo(500)) // without it
						s.group.Rejoin(x)
						s.settle()
						return
					}
				}
			}},
		)
	case onCluster:
		n := r.rand.IntN(len(s.cluster.Masters))
		key := r.set.keys[n%len(r.set.keys)]
		all = append(all,
			r.failover("master killed", n, true, 0), r.failover("master killed, unheard", n, true, r.upTo(400)), r.orderly(n), r.orderly(n),
			fault{"resharding", "", func() { s.breaking(func() { s.reshard(key) }) }},
			fault{"resharding", "", func() { s.breaking(func() { s.reshard(key) }) }},
			fault{"replica killed", "", func() {
				s.cluster.Pairs()
				x := s.cluster.Replicas[n][0]
				x.Kill()
				time.Sleep(r.upTo(500)) // without it
				x.Start()
				s.settle()
			}},
		)
	}
	return all
}

// failover loses what the replica has not seen.
func (r *soaking) failover(name string, i int, kill bool, unheard time.Duration) fault {
	sim := fmt.Sprintf("server fails-over %v", max(unheard, time.Millisecond))
	return fault{name, sim, func() {
		during(&r.site.lossy, func() { r.site.failover(i, kill, unheard); r.site.settle() })
		r.site.expect()
	}}
}

// orderly loses nothing: the master waits until its replica has everything.
func (r *soaking) orderly(i int) fault {
	return fault{"orderly failover", "", func() { r.site.breaking(func() { r.site.orderly(i) }) }}
}

func (r *soaking) upTo(most int) time.Duration {
	return time.Duration(50+r.rand.IntN(most)) * time.Millisecond
}

// inject draws one fault, or one stage change, and lets it happen.
func (r *soaking) inject() {
	if r.site.unasked() {
		r.note("fault: a failover that nobody asked for")
	}
	all := r.faults()
	r.let(all[r.rand.IntN(len(all))])
}

func (r *soaking) let(f fault) {
	at := time.Since(r.began)
	r.note("fault: %s", f.name)
	f.do()
	r.mu.Lock()
	r.injected = append(r.injected, injection{at, f.name, f.sim})
	r.mu.Unlock()
}

// onlyTokens tells that nobody in the fleet uses an old lock or can come to until the stage is changed.
func (r *soaking) onlyTokens() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	view, err := r.store.Show(ctx)
	if err != nil || view.Record.Stage == stages.Legacy {
		return false
	}
	for _, m := range view.Members {
		if m.Lowest == stages.Legacy {
			return false
		}
	}
	return true
}

// move changes the stage to a neighbour, where it may be changed. While old clients live, Modern would be
// a stage that nobody should run, and so would Legacy beside tokens.
func (r *soaking) move() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	view, err := r.store.Show(ctx)
	if err != nil {
		r.note("stage: %v", err)
		return
	}
	to := stages.Legacy
	switch now := view.Record.Stage; {
	case now != stages.Bridge:
		to = stages.Bridge
	case r.fleet == fleetTokens, r.fleet == fleetBehind, r.fleet == fleetGo && r.rand.IntN(2) == 0:
		to = stages.Modern
	}
	blockers, err := r.store.Move(ctx, view.Record.Epoch, to, true)
	r.note("stage %v -> %v: %v %v", view.Record.Stage, to, blockers, err)
	if err != nil && !errors.Is(err, stages.ErrConflict) && ctx.Err() == nil && errors.Is(err, lockmigrate.ErrStage) {
		r.violate("stage %v -> %v: %v", view.Record.Stage, to, err)
	}
}

// beside is the sidecar of one service: the command, in a process of its own, which is started again when it has ended.
type beside struct {
	*holders.Sidecar
	name  string
	words strings.Builder // on its stderr; whole when it has ended
	mu    sync.Mutex      // held where it is killed, or started again
}

// known is where clients find the servers that know the topology.
func (s *site) known() string {
	switch s.topology {
	case onSentinel:
		return s.group.URL()
	case onCluster:
		return s.cluster.URL()
	default:
		return s.server.URL()
	}
}

// sidecar starts one for a service and a dialect.
func (r *soaking) sidecar(name, dialect string) *beside {
	r.t.Helper()
	b, program := &beside{name: name}, redistest.Built(r.t, redistest.Operators)
	b.Sidecar = holders.StartSidecar(r.t, func(addr string) *exec.Cmd {
		cmd := exec.Command(program, "sidecar", "--redis", r.site.known(), "--namespace", r.namespace(), "--name", name, "--listen", dialect+"="+addr, "--drain", "0s")
		cmd.Stderr = &b.words
		return cmd
	})
	r.working.Go(func() { r.supervise(b) })
	r.sidecars = append(r.sidecars, b)
	r.closers = append(r.closers, func() { r.kill(b) })
	return b
}

// supervise starts a sidecar again when it has ended by itself, as a service manager does.
func (r *soaking) supervise(b *beside) {
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-b.Ended():
		}
		time.Sleep(100 * time.Millisecond)
		b.mu.Lock()
		select {
		case <-b.Ended(): // and nobody else has started it
			b.Launch()
		default:
		}
		b.mu.Unlock()
	}
}

// kill kills a sidecar, and notes what it has said.
func (r *soaking) kill(b *beside) {
	b.Kill()
	r.note("sidecar %s said:\n%s", b.name, b.words.String())
	b.words.Reset()
}

// behind starts a service that nobody has changed, and its sidecar.
func (r *soaking) behind(name, dialect string, kind holders.Kind, i int, options ...holders.Option) {
	r.foreignAt(r.sidecar(name, dialect).URL(), name, kind, sidecarred, r.set, i, options...)
}

// besides are the faults of sidecars. One may stop for longer than its lease as a member is.
func (r *soaking) besides() (all []fault) {
	for _, b := range r.sidecars {
		d := r.upTo(3000)
		all = append(all,
			fault{"sidecar " + b.name + " killed", "", func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				r.kill(b)
				b.Launch()
			}},
			fault{fmt.Sprintf("sidecar %s stopped for %v", b.name, d), "", func() { b.Hold(d)() }})
	}
	return all
}
