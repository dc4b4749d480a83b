package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Proxy stands between clients and a server and sees every command before the server does. It lets a
// test put something between two commands of a client that nobody can change.
type Proxy struct {
	Addr string

	target   string
	listener net.Listener
	mu       sync.Mutex
	before   func(words []string)
	conns    map[net.Conn]bool
	running  sync.WaitGroup
}

// NewProxy starts a proxy in front of s and ends it with the test.
func NewProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: s.Addr, listener: l, conns: map[net.Conn]bool{}}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Cut()
		p.running.Wait()
	})
	return p
}

// URL names the proxy as lockmigrate's --redis does.
func (p *Proxy) URL() string { return fmt.Sprintf("redis://%s/0", p.Addr) }

// Before sets a function that is called with each command, its name in capitals, before the server
// gets it. The client waits meanwhile.
func (p *Proxy) Before(f func(words []string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = f
}

// Cut breaks all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.running.Go(func() { p.requests(client, server) })
		p.running.Go(func() { p.replies(server, client) })
	}
}

func (p *Proxy) replies(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	p.drop(from, to)
}

func (p *Proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// requests forwards whole commands, one at a time.
func (p *Proxy) requests(client, server net.Conn) {
	defer p.drop(client, server)
	in := bufio.NewReader(client)
	for {
		raw, words, err := readCommand(in)
		if err != nil {
			return
		}
		p.mu.Lock()
		before := p.before
		p.mu.Unlock()
		if before != nil && len(words) > 0 {
			words[0] = strings.ToUpper(words[0])
			before(words)
		}
		if _, err := server.Write(raw); err != nil {
			return
		}
	}
}

// readCommand reads one RESP array of bulk strings, and keeps its bytes.
func readCommand(in *bufio.Reader) (raw []byte, words []string, err error) {
	number := func(prefix byte) (int, error) {
		line, err := in.ReadBytes('\n')
		raw = append(raw, line...)
		if err != nil {
			return 0, err
		}
		if line[0] != prefix {
			return 0, fmt.Errorf("not a RESP command: %q", line)
		}
		return strconv.Atoi(strings.TrimSpace(string(line[1:])))
	}
	n, err := number('*')
	for range n {
		if err != nil {
			break
		}
		var length int
		if length, err = number('$'); err != nil {
			break
		}
		word := make([]byte, length+2)
		if _, err = io.ReadFull(in, word); err != nil {
			break
		}
		raw = append(raw, word...)
		words = append(words, string(word[:length]))
	}
	return raw, words, err
}
