package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Route is one client's way to a server, within this process. It knows Redis: what happens to a command, and to
// its reply, is decided command by command. There is no listener and no second hop, so thousands of them cost little;
// Link is for what happens to bytes, Proxy for clients in other processes.
type Route struct {
	// Decide, if set, is asked about each command, its name in capitals, before the server gets it.
	Decide func(words []string) Happening

	addr    string
	mu      sync.Mutex
	conns   map[*routed]bool
	state   routeState
	changed chan struct{} // closed when the state changes
}

type routeState struct {
	there, back  bool // what is held up: towards the server, back from it
	refused, mum bool // a new connection: is refused; gets no answer
}

// Happening is what happens to one command. The zero value is nothing: it arrives, and so does its reply.
type Happening struct {
	Refused     string        // the server's answer, in its place; the command does not reach it
	LoseCommand bool          // nothing of this connection arrives any more
	LoseReply   bool          // the command runs, and no reply arrives any more
	LateCommand time.Duration // it arrives later, and what follows on this connection with it
	LateReply   time.Duration // the reply does
	Cut         bool          // the connection is reset before it is sent
}

// NewRoute returns a route to an address. It needs no end of its own: it ends with its connections.
func NewRoute(addr string) *Route {
	return &Route{addr: addr, conns: map[*routed]bool{}, changed: make(chan struct{})}
}

// Open tells how many connections there are that the client has not closed.
func (r *Route) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

// Partition holds everything up, both ways, and no connection learns of it. New ones get no answer.
func (r *Route) Partition() { r.set(func(s *routeState) { s.there, s.back, s.mum = true, true, true }) }

// HalfOpen lets commands through and holds the replies.
func (r *Route) HalfOpen() { r.set(func(s *routeState) { s.back = true }) }

// Refuse makes new connections fail, at once or, mum, when their time is over.
func (r *Route) Refuse(mum bool) { r.set(func(s *routeState) { s.refused, s.mum = !mum, mum }) }

// Heal makes the route good again; what was held up arrives late.
func (r *Route) Heal() { r.set(func(s *routeState) { *s = routeState{} }) }

// Cut resets all connections.
func (r *Route) Cut() {
	for _, c := range r.all() {
		c.fail(errReset)
	}
}

var errReset = errors.New("connection reset by the test")

func (r *Route) all() []*routed {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*routed, 0, len(r.conns))
	for c := range r.conns {
		all = append(all, c)
	}
	return all
}

func (r *Route) set(change func(*routeState)) {
	r.mu.Lock()
	change(&r.state)
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
}

func (r *Route) now() (routeState, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.changed
}

// Dial makes a connection, as net.Dialer's DialContext does. The address that it is given does not matter.
func (r *Route) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	for {
		state, changed := r.now()
		if state.refused {
			return nil, errors.New("connection refused by the test")
		}
		if !state.mum {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.addr)
	if err != nil {
		return nil, err
	}
	c := &routed{Conn: conn, route: r, arrived: make(chan struct{}), over: make(chan struct{}), sent: make(chan struct{}, 1)}
	r.mu.Lock()
	r.conns[c] = true
	r.mu.Unlock()
	go c.receive()
	go c.transmit()
	return c, nil
}

// routed is one connection over a route.
type routed struct {
	net.Conn
	route *Route
	over  chan struct{} // closed when the connection is
	sent  chan struct{} // has an element when out has something new

	mu       sync.Mutex
	partial  []byte      // of a command that was not written to its end
	out      []departure // what is on its way to the server
	pending  []Happening // of the commands that have no reply yet
	pushes   bool        // it has subscribed: its replies are no answers
	lostCmd  bool
	lostBack bool
	in       bytes.Buffer  // what has arrived and was not read
	arrived  chan struct{} // closed when something arrives, or the deadline changes
	err      error         // what reading ends with
	deadline time.Time
	closed   bool
}

type departure struct {
	raw []byte
	at  time.Time
}

// Write takes whole commands out of what is written and decides what happens to them.
func (c *routed) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.partial = append(c.partial, b...)
	for {
		in := bufio.NewReader(bytes.NewReader(c.partial))
		raw, words, err := readCommand(in)
		if err != nil || len(raw) == 0 {
			break
		}
		c.partial = c.partial[len(raw):]
		c.command(raw, words)
		if c.err != nil {
			return 0, c.err
		}
	}
	return len(b), nil
}

// command sends one command. The caller holds mu.
func (c *routed) command(raw []byte, words []string) {
	h := Happening{}
	if decide := c.route.Decide; decide != nil && len(words) > 0 {
		words[0] = strings.ToUpper(words[0])
		h = decide(words)
	}
	if h.Cut {
		c.end(errReset)
		return
	}
	if len(words) > 0 && strings.HasSuffix(strings.ToUpper(words[0]), "SUBSCRIBE") {
		c.pushes = true
	}
	c.lostCmd = c.lostCmd || h.LoseCommand
	if c.lostCmd {
		return
	}
	if c.pushes {
		h.Refused = ""
	} else {
		c.pending = append(c.pending, h)
	}
	if h.Refused != "" {
		c.answer()
		return
	}
	c.out = append(c.out, departure{raw, time.Now().Add(h.LateCommand)})
	select {
	case c.sent <- struct{}{}:
	default:
	}
}

// answer delivers the refusals whose turn it is. The caller holds mu.
func (c *routed) answer() {
	for len(c.pending) > 0 && c.pending[0].Refused != "" {
		if !c.lostBack {
			c.arrive([]byte("-" + c.pending[0].Refused + "\r\n"))
		}
		c.pending = c.pending[1:]
	}
}

// arrive makes bytes readable. The caller holds mu.
func (c *routed) arrive(raw []byte) {
	c.in.Write(raw)
	c.wake()
}

func (c *routed) wake() {
	close(c.arrived)
	c.arrived = make(chan struct{})
}

// transmit sends what is due, in order.
func (c *routed) transmit() {
	defer func() { _ = c.Conn.Close() }()
	for {
		state, changed := c.route.now()
		c.mu.Lock()
		var due []byte
		pause := time.Duration(-1)
		for len(c.out) > 0 && !state.there {
			if pause = time.Until(c.out[0].at); pause > 0 {
				break
			}
			due = append(due, c.out[0].raw...)
			c.out = c.out[1:]
		}
		finished := c.closed && len(c.out) == 0
		c.mu.Unlock()
		if len(due) > 0 {
			if _, err := c.Conn.Write(due); err != nil {
				c.fail(err)
				return
			}
			continue
		}
		if finished {
			return
		}
		var timer <-chan time.Time
		if pause > 0 {
			timer = time.After(pause)
		}
		select {
		case <-c.sent:
		case <-changed:
		case <-timer:
		}
	}
}

// receive reads the server's replies and delivers them.
func (c *routed) receive() {
	in := bufio.NewReaderSize(c.Conn, 1024)
	for {
		raw, err := readReply(in)
		c.mu.Lock()
		h := Happening{}
		answers := err == nil && !c.pushes && len(c.pending) > 0
		if answers {
			h = c.pending[0] // it stays there until the reply has arrived: a refusal must not overtake it
		}
		c.mu.Unlock()
		if h.LateReply > 0 {
			select {
			case <-time.After(h.LateReply):
			case <-c.over:
			}
		}
		for {
			state, changed := c.route.now()
			if !state.back {
				break
			}
			select {
			case <-changed:
				continue
			case <-c.over:
			}
			break
		}
		if err != nil {
			c.fail(err)
			return
		}
		c.mu.Lock()
		if answers {
			c.pending = c.pending[1:]
		}
		c.lostBack = c.lostBack || h.LoseReply
		if !c.lostBack {
			c.arrive(raw)
			c.answer()
		}
		c.mu.Unlock()
	}
}

func (c *routed) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(err)
}

// end ends the connection as the client sees it. The caller holds mu.
func (c *routed) end(err error) {
	if c.err == nil {
		c.err = err
		c.wake()
	}
	if errors.Is(err, errReset) { // nothing of it arrives any more
		c.out = nil
		_ = c.Conn.Close()
	}
}

func (c *routed) Read(b []byte) (int, error) {
	for {
		c.mu.Lock()
		if c.in.Len() > 0 {
			n, _ := c.in.Read(b)
			c.mu.Unlock()
			return n, nil
		}
		err, arrived, deadline := c.err, c.arrived, c.deadline
		c.mu.Unlock()
		if err != nil {
			return 0, err
		}
		var timer *time.Timer
		var expired <-chan time.Time
		if !deadline.IsZero() {
			left := time.Until(deadline)
			if left <= 0 {
				return 0, os.ErrDeadlineExceeded
			}
			timer = time.NewTimer(left)
			expired = timer.C
		}
		select {
		case <-arrived:
		case <-expired:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// Close ends the connection for the client. What it has sent, and the route has not, still arrives.
func (c *routed) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	c.end(net.ErrClosed)
	close(c.over)
	select {
	case c.sent <- struct{}{}:
	default:
	}
	c.mu.Unlock()
	c.route.mu.Lock()
	delete(c.route.conns, c)
	c.route.mu.Unlock()
	return nil
}

func (c *routed) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *routed) SetWriteDeadline(time.Time) error { return nil }

func (c *routed) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	c.wake()
	return nil
}

// readReply reads one RESP2 value and keeps its bytes.
func readReply(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	raw := line
	n, _ := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch line[0] {
	case '$':
		if n >= 0 {
			rest := make([]byte, n+2)
			if _, err := io.ReadFull(in, rest); err != nil {
				return nil, err
			}
			raw = append(raw, rest...)
		}
	case '*':
		for range n {
			element, err := readReply(in)
			if err != nil {
				return nil, err
			}
			raw = append(raw, element...)
		}
	}
	return raw, nil
}
