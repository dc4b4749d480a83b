package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Fault is what happens to one command. The zero value is nothing: it arrives, and so does its reply.
type Fault struct {
	Refused     string        // the server's answer, in its place; the command does not run
	LoseCommand bool          // nothing of this connection arrives any more
	LoseReply   bool          // the command runs, and no reply arrives any more
	LateCommand time.Duration // it arrives later, and what follows on this connection with it
	LateReply   time.Duration // the reply does
	Cut         bool          // the connection is reset before it is sent
}

// Route is one process's way to a server. It knows Redis: what happens to a command, and to its reply, is decided command by
// command. It is safe for concurrent use, but for its fields, which are set before it is used.
type Route struct {
	Delay time.Duration // of each message; up to as much again on top. Not zero.
	// Decide, if set, is asked about each command that Next says nothing about, its name in capitals.
	Decide func(words []string) Fault

	process *Process
	server  *Server

	mu      sync.Mutex
	random  *rand.Rand
	made    int            // connections so far
	conns   map[*conn]bool // that the server knows; true: the client has not closed it
	state   state
	changed chan struct{} // closed when the state changes
	sent    int           // commands so far
	next    map[int]Fault
	names   []string
}

// state is what holds a route up.
type state struct {
	there, back  bool // towards the server, back from it
	refused, mum bool // a new connection: is refused; gets no answer
	frozen       bool // the process is
	stopped      bool // the server is
}

// Next says what happens to the n-th command from now, 1 being the next one.
func (r *Route) Next(n int, f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = make(map[int]Fault)
	}
	r.next[r.sent+n] = f
}

// Commands returns the names of the commands that were sent so far, in order.
func (r *Route) Commands() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.names, " ")
}

// Open tells how many connections there are that the client has not closed.
func (r *Route) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, open := range r.conns {
		if open {
			n++
		}
	}
	return n
}

// forget drops a connection that is over for both.
func (r *Route) forget(c *conn) {
	c.client.gone.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// Partition holds everything up, both ways, and no connection learns of it. New ones get no answer.
func (r *Route) Partition() { r.set(func(s *state) { s.there, s.back, s.mum = true, true, true }) }

// HalfOpen lets commands through and holds the replies.
func (r *Route) HalfOpen() { r.set(func(s *state) { s.back = true }) }

// Refuse makes new connections fail, at once or, mum, when their time is over.
func (r *Route) Refuse(mum bool) { r.set(func(s *state) { s.refused, s.mum = !mum, mum }) }

// Heal makes the route good again; what was held up arrives late. What Next has said and has not happened is forgotten.
func (r *Route) Heal() {
	r.set(func(s *state) { *s = state{frozen: s.frozen, stopped: s.stopped} })
	r.mu.Lock()
	clear(r.next)
	r.mu.Unlock()
}

// Cut resets all connections.
func (r *Route) Cut() {
	for _, c := range r.all() {
		c.reset()
	}
}

// all returns the connections in the order in which they were made.
func (r *Route) all() []*conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*conn, 0, len(r.conns))
	for c := range r.conns {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *conn) int { return cmp.Compare(a.number, b.number) })
	return all
}

func (r *Route) set(change func(*state)) {
	r.mu.Lock()
	change(&r.state)
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	for _, c := range r.all() {
		c.due() // what was held up
		c.deliver()
	}
}

// holds tells what is held up.
func (r *Route) holds() (there, back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.there || r.state.frozen || r.state.stopped, r.state.back || r.state.frozen
}

// delay draws how long a message takes.
func (r *Route) delay() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Delay + time.Duration(r.random.Int64N(int64(r.Delay)))
}

// decide says what happens to a command.
func (r *Route) decide(words []string) Fault {
	words[0] = strings.ToUpper(words[0])
	r.mu.Lock()
	r.sent++
	r.names = append(r.names, words[0])
	f, said := r.next[r.sent]
	delete(r.next, r.sent)
	r.mu.Unlock()
	if !said && r.Decide != nil {
		return r.Decide(words)
	}
	return f
}

// Pool returns a new pool of connections over the route.
func (r *Route) Pool() *redis.Pool {
	return &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", "", redis.DialContextFunc(r.Dial))
	}}
}

// Dial makes a connection, as net.Dialer's DialContext does. The address that it is given does not matter.
func (r *Route) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	pause := time.NewTimer(r.delay())
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		down := r.server.isDown()
		r.mu.Lock()
		refused, mum, changed := down || r.state.refused, r.state.mum || r.state.frozen, r.changed
		r.mu.Unlock()
		if refused {
			return nil, errors.New("connection refused by the test")
		}
		if !mum {
			c := &conn{route: r, readable: make(chan struct{}, 1)}
			c.client = r.server.connect(c.push, c.reset)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.made++
			c.number = r.made
			r.conns[c] = true
			return c, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

var errReset = fmt.Errorf("the test: %w", syscall.ECONNRESET)

// conn is one connection over a route, as the client has it.
type conn struct {
	route    *Route
	number   int
	client   *client       // what the server knows of it
	readable chan struct{} // has an element when reading may go on; capacity 1

	mu          sync.Mutex
	partial     []byte      // of a command that was not written to its end
	out         []departure // what is on its way to the server
	home        []departure // what is on its way back
	outAt       time.Time   // when the last of out arrives
	homeAt      time.Time
	outTimer    *time.Timer
	homeTimer   *time.Timer
	lostCommand bool   // nothing arrives at the server any more
	lostReply   bool   // nothing comes back any more
	in          []byte // what has arrived and was not read
	err         error  // what reading ends with
	deadline    time.Time
	closed      bool
}

// departure is a command on its way, the end of the connection where it has no words, or bytes on their way back.
type departure struct {
	words []string
	fault Fault
	raw   []byte
	at    time.Time
}

// Write takes whole commands out of what is written and decides what happens to them.
func (c *conn) Write(b []byte) (int, error) {
	delay := c.route.delay()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	text := b
	if len(c.partial) > 0 {
		text = append(c.partial, b...)
	}
	at := time.Now().Add(delay)
	for len(text) > 0 {
		words, n := command(text)
		if n == 0 {
			break
		}
		text = text[n:]
		if len(words) == 0 {
			continue
		}
		f := c.route.decide(words)
		if f.Cut {
			c.end(errReset)
			return 0, c.err
		}
		if c.lostCommand = c.lostCommand || f.LoseCommand; c.lostCommand {
			continue
		}
		at = at.Add(f.LateCommand)
		c.depart(departure{words: words, fault: f, at: at})
	}
	c.partial = append(c.partial[:0], text...)
	return len(b), nil
}

// depart puts something on its way to the server. The caller holds mu.
func (c *conn) depart(d departure) {
	c.outAt = later(d.at, c.outAt)
	d.at = c.outAt
	c.out = append(c.out, d)
	if len(c.out) == 1 {
		schedule(&c.outTimer, c.outAt, c.due)
	}
}

// later returns at, or the instant after last where that is later: what is sent on a connection stays in order.
func later(at, last time.Time) time.Time {
	if at.After(last) {
		return at
	}
	return last
}

func schedule(timer **time.Timer, at time.Time, do func()) {
	if *timer == nil {
		*timer = time.AfterFunc(time.Until(at), do)
		return
	}
	(*timer).Reset(time.Until(at))
}

// due tells the server that commands have arrived.
func (c *conn) due() {
	select {
	case c.route.server.arrived <- c:
	case <-c.route.server.over:
	}
}

// arrive has the server run the commands that have arrived. Only its goroutine calls it.
func (c *conn) arrive() {
	for {
		held, _ := c.route.holds()
		c.mu.Lock()
		if held || len(c.out) == 0 || c.err == errReset {
			c.mu.Unlock()
			return
		}
		if pause := time.Until(c.out[0].at); pause > 0 {
			schedule(&c.outTimer, c.out[0].at, c.due)
			c.mu.Unlock()
			return
		}
		d := c.out[0]
		c.out = c.out[1:]
		c.mu.Unlock()
		switch {
		case d.words == nil:
			c.route.forget(c)
		case d.fault.Refused != "":
			c.send([]byte("-"+d.fault.Refused+"\r\n"), d.fault)
		default:
			c.send(c.route.server.run(c.client, d.words), d.fault)
		}
	}
}

// push sends what the server publishes to the client.
func (c *conn) push(raw []byte) { c.send(raw, Fault{}) }

// send puts bytes on their way back.
func (c *conn) send(raw []byte, f Fault) {
	delay := c.route.delay()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lostReply = c.lostReply || f.LoseReply
	if c.lostReply || c.err != nil || len(raw) == 0 {
		return
	}
	c.homeAt = later(time.Now().Add(delay+f.LateReply), c.homeAt)
	c.home = append(c.home, departure{raw: raw, at: c.homeAt})
	if len(c.home) == 1 {
		schedule(&c.homeTimer, c.homeAt, c.deliver)
	}
}

// deliver makes what has come back readable.
func (c *conn) deliver() {
	_, held := c.route.holds()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.home) > 0 && !held {
		if time.Until(c.home[0].at) > 0 {
			schedule(&c.homeTimer, c.home[0].at, c.deliver)
			return
		}
		c.in = append(c.in, c.home[0].raw...)
		c.home = c.home[1:]
		c.wake()
	}
}

// wake lets a reader look again.
func (c *conn) wake() {
	select {
	case c.readable <- struct{}{}:
	default:
	}
}

// end ends the connection as the client sees it. The caller holds mu.
func (c *conn) end(err error) {
	if c.err == nil {
		c.err = err
		c.wake()
	}
	if err == errReset { // nothing of it arrives any more
		c.err, c.out, c.home = err, nil, nil
		c.route.forget(c)
	}
}

func (c *conn) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(errReset)
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		c.mu.Lock()
		if len(c.in) > 0 {
			n := copy(b, c.in)
			c.in = c.in[:copy(c.in, c.in[n:])]
			c.mu.Unlock()
			return n, nil
		}
		err, deadline := c.err, c.deadline
		c.mu.Unlock()
		if err != nil {
			c.wake()
			return 0, err
		}
		if deadline.IsZero() {
			<-c.readable
			continue
		}
		left := time.Until(deadline)
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		timer := time.NewTimer(left)
		select {
		case <-c.readable:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Close ends the connection for the client. What it has sent, and what the route holds up, still arrives.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	if c.err == nil {
		c.depart(departure{at: time.Now()})
	}
	c.end(net.ErrClosed)
	c.mu.Unlock()
	c.route.mu.Lock()
	defer c.route.mu.Unlock()
	if _, known := c.route.conns[c]; known {
		c.route.conns[c] = false
	}
	return nil
}

func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
func (c *conn) LocalAddr() net.Addr              { return addr("process " + c.route.process.name) }
func (c *conn) RemoteAddr() net.Addr             { return addr("server") }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadline.Equal(t) {
		c.deadline = t
		c.wake()
	}
	return nil
}

type addr string

func (addr) Network() string  { return "world" }
func (a addr) String() string { return string(a) }
