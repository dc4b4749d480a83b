package conformance

import (
	"context"
	"crypto/sha1" // EVALSHA's own digest, not a protection
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// server is a redis-server of one case.
type server struct {
	addr  string
	name  string // of its file, by which it is told from one that has taken the port
	cmd   *exec.Cmd
	said  tail
	ended chan struct{}
}

// start starts a server with nothing in it, and waits until it answers.
func (p *play) start(ctx context.Context, args ...string) (*server, error) {
	var err error
	for range 5 { // the port may be taken between the look and the start
		s := &server{ended: make(chan struct{}), name: fmt.Sprintf("conformance-%d-%d.rdb", os.Getpid(), number.Add(1))}
		if s.addr, err = freeAddr(); err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(s.addr)
		s.cmd = exec.Command(p.Server, append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--dbfilename", s.name, "--dir", p.dir}, args...)...)
		s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
		ownGroup(s.cmd)
		if err = s.cmd.Start(); err != nil {
			return nil, fmt.Errorf("%w: start %s: %w", errNotTried, p.Server, err)
		}
		go func() { _ = s.cmd.Wait(); close(s.ended) }()
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
		names, err := redis.Strings(s.do(ctx, "CONFIG", "GET", "dbfilename"))
		if err == nil && (len(names) < 2 || names[1] != s.name) {
			return fmt.Errorf("another server has the port of %s", s.addr)
		}
		if err == nil || time.Now().After(end) || ctx.Err() != nil || s.gone() {
			return err
		}
		time.Sleep(5 * time.Millisecond) // of another process there is nothing to be notified by
	}
}

func (s *server) gone() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

func (s *server) kill() {
	if !s.gone() {
		_ = signal(s.cmd, sigKill)
	}
	<-s.ended
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

// setClock moves the server's wall clock, as TIME and scripts read it, to so far from ours. What an actor sends is changed on its way: TIME becomes a
// script, and each script begins with a TIME of its own. No program's clock is touched, so it works with each server.
func (p *play) setClock(offset time.Duration) {
	p.offset = offset
	before := fmt.Sprintf(`local redis = setmetatable({call = function(...)
		local reply = redis.call(...)
		if ... == 'TIME' then reply[1] = string.format('%%.0f', reply[1] + %.0f) end
		return reply
	end}, {__index = redis}) `, offset.Seconds())
	rewrite := func(words []string) []string {
		switch {
		case words[0] == "TIME":
			return []string{"EVAL", before + "return redis.call('TIME')", "0"}
		case words[0] == "EVAL" && len(words) > 1, words[0] == "SCRIPT" && len(words) == 3:
			words, last := slices.Clone(words), 1
			if words[0] == "SCRIPT" { // LOAD
				last = 2
			}
			words[last] = before + words[last]
			return words
		case words[0] == "EVALSHA" && len(words) > 1:
			for _, s := range scripts.All() {
				for _, text := range []string{s.Source, s.Bare()} {
					if digest(text) == words[1] {
						words = slices.Clone(words)
						words[1] = digest(before + text)
						return words
					}
				}
			}
		}
		return words
	}
	p.operator.Rewrite(rewrite)
	for _, a := range p.actors {
		a.link.Rewrite(rewrite)
	}
	p.rewrite = rewrite
}

func digest(text string) string { sum := sha1.Sum([]byte(text)); return hex.EncodeToString(sum[:]) }
