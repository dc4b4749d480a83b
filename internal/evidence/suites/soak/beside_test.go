package soak

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// cleanUp removes the program after the tests.
type cleanUp struct{ m *testing.M }

// Run implements redistest.Main's runner.
func (c cleanUp) Run() int {
	dir, err := os.MkdirTemp("", "soak")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	built = dir
	return redistest.Leakless{M: c.m}.Run()
}

var built string

// program is the command, built once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built, "lockmigrate")
	out, err := exec.Command("go", "build", "-o", path, "github.com/lockmigrate/lockmigrate/cmd/lockmigrate").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// beside is the sidecar of one service: the command, in a process of its own.
type beside struct {
	r     *soaking
	name  string
	addr  string
	args  []string
	words strings.Builder // on its stderr; whole when it has ended

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has ended

	killed bool // and not started since
}

// url is where clients find the servers that know the topology.
func (s *site) known() string {
	switch s.topology {
	case onSentinel:
		return "redis+sentinel://" + strings.Join(s.group.Addrs(), ",") + "/" + masterName
	case onCluster:
		return "redis+cluster://" + strings.Join(s.cluster.Addrs(), ",")
	default:
		return s.server.URL()
	}
}

// sidecar starts one for a service and a dialect.
func (r *soaking) sidecar(name, dialect string) *beside {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	b := &beside{r: r, name: name, addr: l.Addr().String()}
	_ = l.Close()
	path, err := program()
	require.NoError(r.t, err)
	b.args = []string{path, "sidecar", "--redis", r.site.known(), "--namespace", r.namespace(), "--name", name, "--listen", dialect + "=" + b.addr, "--drain", "0s"}
	b.start()
	r.working.Go(b.supervise)
	r.sidecars = append(r.sidecars, b)
	r.closers = append(r.closers, b.kill)
	return b
}

func (b *beside) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.startLocked()
}

func (b *beside) startLocked() {
	b.killed = false
	b.cmd = exec.Command(b.args[0], b.args[1:]...)
	b.cmd.Stderr = &b.words
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(b.r.t, b.cmd.Start())
	cmd, ended := b.cmd, make(chan struct{})
	b.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
}

// supervise starts it again when it has ended by itself, as a service manager does.
func (b *beside) supervise() {
	for b.r.ctx.Err() == nil {
		b.mu.Lock()
		ended := b.ended
		b.mu.Unlock()
		select {
		case <-b.r.ctx.Done():
			return
		case <-ended:
		}
		time.Sleep(100 * time.Millisecond)
		b.mu.Lock()
		if ended == b.ended && !b.killed {
			b.startLocked()
		}
		b.mu.Unlock()
	}
}

// ready waits until services can connect. While no master is reached, they cannot.
func (b *beside) ready() {
	redistest.Await(b.r.t, "sidecar "+b.name, patience, func() bool {
		conn, err := net.Dial("tcp", b.addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func (b *beside) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killed = true
	_ = b.cmd.Process.Kill()
	<-b.ended
	b.r.note("sidecar %s said:\n%s", b.name, b.words.String())
	b.words.Reset()
}

// stop holds the process up for a while.
func (b *beside) stop(d time.Duration) {
	_ = b.cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(d) // the subject
	_ = b.cmd.Process.Signal(syscall.SIGCONT)
}

// behind starts a service that nobody has changed, and its sidecar.
func (r *soaking) behind(name, dialect string, kind holders.Kind, i int, options ...holders.Option) {
	b := r.sidecar(name, dialect)
	b.ready()
	r.foreignAt("redis://"+b.addr+"/0", name, kind, sidecarred, r.set, i, options...)
}

// besides are the faults of sidecars. One may stop for longer than its lease as a member is.
func (r *soaking) besides() (all []fault) {
	for _, b := range r.sidecars {
		d := r.upTo(3000)
		all = append(all,
			fault{"sidecar " + b.name + " killed", "", func() { b.kill(); b.start() }},
			fault{fmt.Sprintf("sidecar %s stopped for %v", b.name, d), "", func() { b.stop(d) }})
	}
	return all
}
