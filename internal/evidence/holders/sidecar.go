package holders

import (
	"net"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Sidecar is the process of a sidecar. It listens at the same address however often it is killed and started.
type Sidecar struct {
	Addr string

	t       testing.TB
	command func(addr string) *exec.Cmd
	mu      sync.Mutex
	now     *incarnation
}

// incarnation is a sidecar from its start to its end.
type incarnation struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed with err
	err   error
}

// StartSidecar starts what command returns for an address of the loopback, waits until it listens, and kills it with the test.
func StartSidecar(t testing.TB, command func(addr string) *exec.Cmd) *Sidecar {
	t.Helper()
	s := &Sidecar{Addr: redistest.FreeAddr(t), t: t, command: command}
	s.Start()
	t.Cleanup(s.Kill)
	return s
}

// URL is where services connect.
func (s *Sidecar) URL() string { return "redis://" + s.Addr + "/0" }

// Start starts the process, also beside one that runs, and waits until services can connect: while no master is reached, they cannot.
func (s *Sidecar) Start() {
	s.t.Helper()
	s.Launch()
	redistest.Await(s.t, "a sidecar at "+s.Addr, func() bool {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// Launch is Start without the wait.
func (s *Sidecar) Launch() {
	i := &incarnation{cmd: s.command(s.Addr), ended: make(chan struct{})}
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := i.cmd.Start(); err != nil {
		s.t.Fatalf("start a sidecar: %v", err)
	}
	go func() {
		i.err = i.cmd.Wait()
		close(i.ended)
	}()
	s.mu.Lock()
	s.now = i
	s.mu.Unlock()
}

func (s *Sidecar) present() *incarnation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Kill ends the process at once, as kill -9 does, and waits until it is gone.
func (s *Sidecar) Kill() {
	i := s.present()
	_ = i.cmd.Process.Kill()
	<-i.ended
}

// End ends the process in an orderly way, and returns how it has ended.
func (s *Sidecar) End() error { return s.present().end() }

func (i *incarnation) end() error {
	_ = i.cmd.Process.Signal(syscall.SIGTERM)
	<-i.ended
	return i.err
}

// Replace starts a second process beside the first one, which then drains and ends, and returns how.
func (s *Sidecar) Replace() error {
	before := s.present()
	s.Start()
	return before.end()
}

// Hold stops the process (SIGSTOP), and returns what lets it go on after d.
func (s *Sidecar) Hold(d time.Duration) (release func()) {
	process := s.present().cmd.Process
	_ = process.Signal(syscall.SIGSTOP)
	return func() {
		time.Sleep(d) // the subject
		_ = process.Signal(syscall.SIGCONT)
	}
}

// Ended is closed when the present process has ended.
func (s *Sidecar) Ended() <-chan struct{} { return s.present().ended }
