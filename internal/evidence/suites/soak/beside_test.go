package soak

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

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
