package redistest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a network path that can fail in the ways that networks do. It forwards bytes and knows
// nothing of Redis; Proxy is for what happens between two commands.
type Link struct {
	Addr string

	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool
	state   linkState
	changed chan struct{} // closed when the state changes
}

type linkState struct {
	there, back bool          // what is held up: towards the server, back from it
	delay       time.Duration // of every piece, each way
	rate        int           // bytes a second each way; 0 for no limit
}

// NewLink starts a link to an address and ends it with the test.
func NewLink(t testing.TB, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start a link: %v", err)
	}
	l := &Link{Addr: listener.Addr().String(), target: target, listener: listener, conns: map[net.Conn]bool{}, changed: make(chan struct{})}
	l.running.Go(l.accept)
	t.Cleanup(func() {
		_ = l.listener.Close()
		l.Heal()
		l.Cut()
		l.running.Wait()
	})
	return l
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
		server, err := net.Dial("tcp", target)
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
		l.running.Go(func() { l.forward(client, server, true) })
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
