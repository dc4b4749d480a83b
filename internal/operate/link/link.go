// Package link is a network path in this process that fails in the ways that networks do. Conformance and the tests put one before a server.
package link

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Link forwards bytes and knows nothing of Redis, but for one of commands: that sees every command before the server does.
type Link struct {
	Addr string

	commands bool // they are forwarded one at a time
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool
	state   linkState
	changed chan struct{} // closed when the state changes
	before  func(words []string)
	rewrite func(words []string) []string
}

type linkState struct {
	there, back bool          // what is held up: towards the server, back from it
	delay       time.Duration // of every piece, each way
	rate        int           // bytes a second each way; 0 for no limit
}

// Start starts a link to HOST:PORT, or to a socket's path. With commands it forwards whole commands, one at a time, and tells Before of each.
func Start(target string, commands bool) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a link: %w", err)
	}
	l := &Link{Addr: listener.Addr().String(), target: target, commands: commands, listener: listener, conns: map[net.Conn]bool{}, changed: make(chan struct{})}
	l.running.Go(l.accept)
	return l, nil
}

// Close ends it, and all that goes through it.
func (l *Link) Close() {
	_ = l.listener.Close()
	l.Retarget("") // a client that is being let in goes nowhere
	l.Heal()
	l.Cut()
	l.running.Wait()
}

// URL names the link as lockmigrate's --redis does.
func (l *Link) URL() string { return "redis://" + l.Addr + "/0" }

// Before sets a function that is called with each command, its name in capitals, before the server gets it. The client waits
// meanwhile. It is for a link of commands.
func (l *Link) Before(f func(words []string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = f
}

// Rewrite sets a function that puts other words in the place of a command's, or the same. It is for a link of commands.
func (l *Link) Rewrite(f func(words []string) []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rewrite = f
}

// Retarget sends new connections elsewhere, as a name that now stands for another server does.
func (l *Link) Retarget(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = addr
}

// Partition swallows everything both ways, and no connection learns of it.
func (l *Link) Partition() { l.set(func(s *linkState) { s.there, s.back = true, true }) }

// HalfOpen lets commands through and holds the replies.
func (l *Link) HalfOpen() { l.set(func(s *linkState) { s.there, s.back = false, true }) }

// Slow delays every piece and limits the bytes a second (0 for no limit).
func (l *Link) Slow(delay time.Duration, rate int) {
	l.set(func(s *linkState) { s.delay, s.rate = delay, rate })
}

// Heal makes the path good again; what was held up arrives late, as after a repaired route.
func (l *Link) Heal() { l.set(func(s *linkState) { *s = linkState{} }) }

// Cut resets all connections.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

func (l *Link) set(change func(*linkState)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.state)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		target := l.target
		l.mu.Unlock()
		network := "tcp"
		if strings.Contains(target, "/") {
			network = "unix"
		}
		server, err := net.Dial(network, target)
		if err != nil {
			_ = client.Close()
			continue
		}
		l.mu.Lock()
		current := l.target == target
		if current {
			l.conns[client], l.conns[server] = true, true
		}
		l.mu.Unlock()
		if !current { // retargeted meanwhile: a Cut that followed must not have missed this one
			_ = client.Close()
			_ = server.Close()
			continue
		}
		if l.commands {
			l.running.Go(func() { l.requests(client, server) })
		} else {
			l.running.Go(func() { l.forward(client, server, true) })
		}
		l.running.Go(func() { l.forward(server, client, false) })
	}
}

func (l *Link) forward(from, to net.Conn, there bool) {
	defer l.drop(from, to)
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			l.pass(n, there)
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			// A death that nobody can be told of: a partition hides the end of a connection too.
			l.pass(0, there)
			return
		}
	}
}

// pass returns when n bytes may go on.
func (l *Link) pass(n int, there bool) {
	for slowed := false; ; {
		l.mu.Lock()
		s, changed := l.state, l.changed
		l.mu.Unlock()
		held := s.back
		if there {
			held = s.there
		}
		pause := s.delay
		if s.rate > 0 {
			pause += time.Duration(n) * time.Second / time.Duration(s.rate)
		}
		switch {
		case held:
			<-changed
		case pause > 0 && !slowed:
			slowed = true
			select {
			case <-time.After(pause):
			case <-changed:
			}
		default:
			return
		}
	}
}

func (l *Link) drop(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(l.conns, c)
	}
}

// requests forwards whole commands, one at a time.
func (l *Link) requests(client, server net.Conn) {
	defer l.drop(client, server)
	in := redis.NewConn(client, 0, 0)
	for {
		words, err := redis.Strings(in.Receive()) // to redigo a request is an array like another
		if err != nil || len(words) == 0 {
			return
		}
		words[0] = strings.ToUpper(words[0])
		l.mu.Lock()
		before, rewrite := l.before, l.rewrite
		l.mu.Unlock()
		if before != nil {
			before(words)
		}
		if rewrite != nil {
			words = rewrite(words)
		}
		raw := wire.Append(nil, words...)
		l.pass(len(raw), true)
		if _, err := server.Write(raw); err != nil {
			return
		}
	}
}
