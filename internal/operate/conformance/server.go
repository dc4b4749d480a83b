package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/link"
)

// server is a redis-server of one case.
type server struct {
	addr string
	cmd  *exec.Cmd
	said tail
}

// start starts a server with nothing in it, and waits until it answers.
func (p *play) start(ctx context.Context, args ...string) (*server, error) {
	var err error
	for range 5 { // the port may be taken between the look and the start
		s := &server{}
		if s.addr, err = freeAddr(); err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(s.addr)
		s.cmd = exec.Command(p.Server, append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--dir", p.dir}, args...)...)
		s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = append(os.Environ(), p.environ...), &s.said, &s.said
		ownGroup(s.cmd)
		if err = s.cmd.Start(); err != nil {
			return nil, fmt.Errorf("%w: start %s: %w", errNotTried, p.Server, err)
		}
		if err = s.answers(ctx); err == nil {
			return s, nil
		}
		s.kill()
		err = fmt.Errorf("%w: redis-server: %w: %s", errNotTried, err, s.said.String())
	}
	return nil, err
}

func (s *server) answers(ctx context.Context) error {
	for end := time.Now().Add(10 * time.Second); ; {
		_, err := s.do(ctx, "PING")
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond) // of another process there is nothing to be notified by
	}
}

func (s *server) kill() {
	_ = signal(s.cmd, sigKill)
	_ = s.cmd.Wait()
}

// do runs a command on a connection of its own.
func (s *server) do(ctx context.Context, command string, args ...any) (any, error) {
	conn, err := redis.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return redis.DoContext(conn, ctx, command, args...)
}

// freeAddr is an address below those that the system gives to outgoing connections.
func freeAddr() (string, error) {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("%w: no free port", errNotTried)
}

// preload makes the library of link.ClockSource, and the file of its offset.
func (p *play) preload() error {
	if p.cc == "" {
		return fmt.Errorf("%w: it needs a C compiler (cc), which stands before the server's clock", errNotTried)
	}
	source, library := filepath.Join(p.dir, "clock.c"), filepath.Join(p.dir, "clock.so")
	if err := os.WriteFile(source, []byte(link.ClockSource), 0o600); err != nil {
		return err
	}
	if out, err := exec.Command(p.cc, "-O1", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: compile the clock: %w: %s", errNotTried, err, strings.TrimSpace(string(out)))
	}
	p.environ = []string{"LD_PRELOAD=" + library, "LOCKMIGRATE_CLOCK=" + filepath.Join(p.dir, "offset")}
	return p.setClock(0)
}

// setClock moves the server's wall clock to so far from ours.
func (p *play) setClock(offset time.Duration) error {
	p.offset = offset
	f, err := os.OpenFile(filepath.Join(p.dir, "offset"), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(offset)), 0)
	return err
}
