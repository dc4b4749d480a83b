// Package proxy stands between clients and a Redis server. It passes requests on byte for byte, but for those that a Rewriter
// replaces, and copies replies. It counts these, and reads in them only that a script is missing.
//
// A client has one connection to the server, so the order of replies, transactions, subscriptions, blocking commands,
// authentication and the protocol version are the server's business.
//
// While the server cannot be reached the proxy does not listen: a client is refused as it would be without a proxy. When
// the server ends a connection, its client's ends.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

const (
	handshakeWithin = 10 * time.Second // TLS with a client
	lookAgainAfter  = 50 * time.Millisecond
	lookAgainAtMost = time.Second
	lastCallFor     = 50 * time.Millisecond // for connections that the system has taken in for a listener that ends
	kept            = 64                    // descriptors for all but clients: without them the process can neither report nor listen
)

// Options of a Server.
type Options struct {
	Listeners []Listener
	// Dial connects to the server, without a command: what a client sends first is for the client to say.
	Dial func(ctx context.Context) (net.Conn, error)
	// Drain is how long connections may go on after Run's context has ended. Each ends between two commands, most of them at once.
	Drain time.Duration
	// Beside, if set, tells whether another process has the same listeners and is to be replaced. Then this one listens beside it, and
	// new clients come here. Otherwise an address that is in use is an error.
	Beside func(ctx context.Context) bool
	// Leaving, if set, is called when no client is let in any more because Run's context has ended.
	Leaving func()
	// Follow, if set, tells what becomes of a request that the server has refused with this text and has not run: again says that it goes there
	// again, elsewhere that Dial leads to another server now, where the connection goes on. See Client.Said.
	Follow func(refusal string) (again, elsewhere bool)
	// Waits tells that a Rewriter waits for servers: no loop asks it then. Where Follow is set it is so too.
	Waits bool
	Log   *slog.Logger
}

// Server accepts clients and connects each to the server. Its methods are safe for concurrent use.
type Server struct {
	opts  Options
	doors []*door
	loops loops
	most  int // clients at once, two descriptors each

	mu        sync.Mutex
	conns     map[*conn]bool
	open      bool   // clients can connect
	over      string // why no listener will be opened any more
	problem   error  // the last failure to connect; nil while the server can be reached
	running   sync.WaitGroup
	accepting sync.WaitGroup
	look      chan struct{} // asks to look at the server now
	leaving   atomic.Bool   // connections end between two commands

	ids       atomic.Int64
	rewritten [6]atomic.Int64 // by verdict
	failed    atomic.Int64    // clients that were accepted while the server could not be reached
	turned    atomic.Int64    // clients for whom no descriptors were left
	broken    atomic.Int64    // protocol errors
	tooLong   atomic.Int64
}

// New returns a Server that does not listen yet.
func New(opts Options) *Server {
	opts.Waits = opts.Waits || opts.Follow != nil
	s := &Server{opts: opts, conns: map[*conn]bool{}, look: make(chan struct{}, 1), most: (descriptorsAtMost() - kept) / 2}
	for _, l := range opts.Listeners {
		s.doors = append(s.doors, &door{Listener: l, actual: l.Address, commands: withTalking(l.Rewriter.Commands())})
	}
	return s
}

// Run serves until ctx ends, and then Drain longer at most. Its error says why it could not begin to listen.
func (s *Server) Run(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	began := make(chan error, 1)
	var background sync.WaitGroup
	s.loops = newLoops(s)
	var loops sync.WaitGroup
	loops.Go(s.loops.run)
	defer loops.Wait()
	defer s.loops.close()
	background.Go(func() { s.watch(watching, began) })
	err := <-began
	if err == nil {
		<-ctx.Done()
	}
	stop()
	background.Wait()
	s.shut("it is being ended")
	if err == nil && s.opts.Leaving != nil {
		s.opts.Leaving()
	}
	s.retire()
	served := make(chan struct{})
	go func() {
		s.running.Wait()
		close(served)
	}()
	select {
	case <-served:
	case <-time.After(s.opts.Drain):
		s.CutAll("the time to drain is over")
		<-served
	}
	return err
}

// retire tells the connections to end between two commands.
func (s *Server) retire() {
	s.leaving.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.mu.Lock()
		if c.up != nil { // else it looks before its first read
			_ = c.down.SetReadDeadline(time.Unix(1, 0))
		}
		c.unpark()
		c.mu.Unlock()
	}
}

// watch opens the doors while the server can be reached, and closes them while it cannot. It tells began when they have
// been opened once, or cannot be.
func (s *Server) watch(ctx context.Context, began chan<- error) {
	tell := func(err error) {
		select {
		case began <- err:
		default: // it has been told before
		}
	}
	defer tell(nil)
	pause := lookAgainAfter
	for ctx.Err() == nil {
		up, err := s.opts.Dial(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			s.away(err)
			tell(nil)
			topology.Sleep(ctx, pause)
			pause = min(2*pause, lookAgainAtMost)
			continue
		}
		if err := s.welcome(ctx); err != nil {
			_ = up.Close()
			tell(err)
			s.opts.Log.Error("cannot listen", "error", err)
			topology.Sleep(ctx, lookAgainAtMost)
			continue
		}
		tell(nil)
		at := time.Now()
		s.waitFor(ctx, up)
		_ = up.Close()
		if pause = lookAgainAfter; time.Since(at) < lookAgainAtMost { // a server that takes nobody in hangs up at once
			topology.Sleep(ctx, lookAgainAfter)
		}
	}
}

// waitFor returns when the server ends an idle connection, or somebody asks to look.
func (s *Server) waitFor(ctx context.Context, up net.Conn) {
	over := make(chan struct{})
	var interrupting sync.WaitGroup
	interrupting.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.look:
		case <-over:
		}
		_ = up.SetReadDeadline(time.Unix(1, 0))
	})
	var b [512]byte
	for {
		if _, err := up.Read(b[:]); err != nil {
			break
		}
	}
	close(over)
	interrupting.Wait()
}

// away closes the doors because the server cannot be reached.
func (s *Server) away(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem == nil {
		s.opts.Log.Error("the server cannot be reached; not listening", "error", why)
	}
	s.problem, s.open = why, false
	for _, d := range s.doors {
		d.close()
	}
}

// shut closes the doors for good, and serves who has come to them before.
func (s *Server) shut(why string) {
	s.mu.Lock()
	s.over, s.open = why, false
	for _, d := range s.doors {
		if d.listener != nil {
			lastCall(d.listener)
		}
	}
	s.mu.Unlock()
	s.accepting.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.doors {
		d.close()
	}
}

// Ready returns nil while clients can connect and be served.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over != "":
		return errors.New(s.over)
	case s.problem != nil:
		return fmt.Errorf("the server cannot be reached: %w", s.problem)
	case !s.open:
		return errors.New("it does not listen yet")
	}
	return nil
}

// Addresses returns where clients can connect, in the order of Options.Listeners: the real port where 0 was asked for.
func (s *Server) Addresses() (addrs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.doors {
		addrs = append(addrs, d.actual)
	}
	return addrs
}

// CutAll ends all connections, as when the server has become another one.
func (s *Server) CutAll(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) > 0 {
		s.opts.Log.Warn("ending connections", "connections", len(s.conns), "reason", why)
	}
	for c := range s.conns {
		c.endBy(notTheClient)
		c.mu.Lock()
		c.cut = true
		for _, p := range []*peer{c.down, c.up} {
			if p != nil {
				go func() { _ = p.socket().Close() }() // closing waits for what uses the socket
			}
		}
		c.unpark()
		c.mu.Unlock()
	}
}

func (s *Server) accept(d *door, listener net.Listener) {
	for last := false; ; {
		down, err := listener.Accept()
		switch {
		case err == nil:
			if c := s.admit(d, down); c != nil {
				s.running.Add(1)
				go s.attend(d, c)
			}
		case errors.Is(err, os.ErrDeadlineExceeded) && !last: // it did not look whether somebody waits
			last = true
			lastCall(listener)
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return
		default: // no descriptor is left
			s.opts.Log.Error("cannot accept a client", "error", err)
			time.Sleep(lookAgainAfter)
		}
	}
}

// admit takes a client in. Where no descriptors are left for it, it is told what a server says that is full.
func (s *Server) admit(d *door, down net.Conn) *conn {
	c := &conn{server: s, news: make(chan struct{}, 1), rewriter: d.Rewriter, down: newPeer(down), client: Client{ID: s.ids.Add(1), Addr: down.RemoteAddr().String()}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) < s.most {
		s.conns[c] = true
		return c
	}
	s.turned.Add(1)
	s.opts.Log.Error("no descriptors are left for a client: raise the limit of open files", "client", c.client.Addr, "clients", s.most)
	if d.TLS == nil {
		_, _ = io.WriteString(down, "-ERR max number of clients reached\r\n")
	}
	_ = down.Close()
	return nil
}

// attend serves one client.
func (s *Server) attend(d *door, c *conn) {
	if s.connect(d, c) {
		c.rewriter.Open(&c.client)
		if !s.park(c) {
			s.live(c)
		}
		return
	}
	s.end(c)
}

// live serves a client to its end.
func (s *Server) live(c *conn) {
	if err := c.unloop(); err != nil {
		s.opts.Log.Error("connection cut", "client", c.client.Addr, "error", err)
		c.client.Cut = true
	} else {
		c.serve()
	}
	c.rewriter.Close(&c.client)
	s.end(c)
}

// end closes a client's connections.
func (s *Server) end(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	for _, p := range []*peer{c.down, c.up} {
		if p != nil {
			_ = p.Close()
		}
	}
	s.running.Done()
}

// connect finds the server for a client.
func (s *Server) connect(d *door, c *conn) bool {
	if d.TLS != nil {
		secure := tls.Server(c.down.Conn, d.TLS)
		ctx, cancel := context.WithTimeout(context.Background(), handshakeWithin)
		err := secure.HandshakeContext(ctx)
		cancel()
		if err != nil {
			s.opts.Log.Warn("no TLS with a client", "client", c.client.Addr, "error", err)
			return false
		}
		c.mu.Lock()
		c.down = newPeer(secure)
		c.mu.Unlock()
	}
	up, err := s.opts.Dial(context.Background())
	if err != nil {
		s.failed.Add(1)
		s.opts.Log.Warn("the server cannot be reached for a client", "client", c.client.Addr, "error", err)
		select {
		case s.look <- struct{}{}:
		default:
		}
		c.down.reset() // an end looks like a reply of no bytes to some clients
		return false
	}
	c.setUp(up)
	c.framer.commands, c.framer.covers = d.commands, d.Rewriter.Covers
	c.began = time.Now()
	return true
}

func (c *conn) setUp(up net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = newPeer(up)
	if c.cut {
		_ = c.up.socket().Close()
	}
}
