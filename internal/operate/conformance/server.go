package conformance

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// server is a redis-server of one case.
type server struct {
	socket string // its path: a port could be another's
	cmd    *exec.Cmd
	said   tail
	ended  chan struct{}
}

// start starts a server with nothing in it, and waits until it answers.
func (p *play) start(ctx context.Context, args ...string) (*server, error) {
	s := &server{socket: filepath.Join(p.dir, fmt.Sprint(number.Add(1))), ended: make(chan struct{})}
	s.cmd = exec.Command(p.Server, append([]string{"--port", "0", "--unixsocket", s.socket, "--save", "", "--appendonly", "no",
		"--repl-diskless-sync-delay", "0", "--dbfilename", filepath.Base(s.socket) + ".rdb", "--dir", p.dir}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	ownGroup(s.cmd)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: start %s: %w", errNotTried, p.Server, err)
	}
	go func() { _ = s.cmd.Wait(); close(s.ended) }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // of another process there is nothing to be notified by
		_, err := s.do(ctx, "PING")
		if err == nil {
			return s, nil
		}
		if time.Now().After(end) || ctx.Err() != nil || s.gone() {
			s.kill()
			return nil, fmt.Errorf("%w: redis-server: %w: %s", errNotTried, err, s.said.String())
		}
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

func (s *server) dial(ctx context.Context) (redis.Conn, error) {
	return redis.DialContext(ctx, "unix", s.socket)
}

// do runs a command on a connection of its own.
func (s *server) do(ctx context.Context, command string, args ...any) (any, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return redis.DoContext(conn, ctx, command, args...)
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
			if s := scripts.Of(words[1]); s != nil {
				return append([]string{"EVAL", before + s.Source}, words[2:]...)
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
