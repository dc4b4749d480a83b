package driver

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// SharedOptions of a Shared. Now is required, and either Dial or Servers.
type SharedOptions struct {
	// Dial makes a connection outside of any pool. It must honour its context.
	Dial func(ctx context.Context) (redis.Conn, error)
	// Servers, where the keys are on several, takes Dial's place. A command goes the way that package topology describes;
	// one server's silence is no other's.
	Servers topology.Servers
	// Now is the clock of the machines that Advance runs.
	Now func() protocol.Instant
	// Setup, if set, is run on a fresh connection before anything else, within ReplyTimeout. Without Servers addr is empty.
	Setup func(addr string, conn redis.Conn) error
	// Down, if set, is called once for each connection that was set up and broke. It must not block.
	Down func(addr string, conn redis.Conn, err error)

	ReplyTimeout time.Duration // how long a command may be without reply, at most a quarter longer; zero: 5 s
	Ping         time.Duration // how long a connection may be idle before it is asked; zero: 30 s
	Retry        time.Duration // the pause after a failed attempt to connect; doubles up to 16 times that; zero: 10 ms
	Bound        int           // how many commands may be without reply, for each server; zero: 1024
}

func (o SharedOptions) withDefaults() SharedOptions {
	o.ReplyTimeout = cmp.Or(o.ReplyTimeout, 5*time.Second)
	o.Ping = cmp.Or(o.Ping, 30*time.Second)
	o.Retry = cmp.Or(o.Retry, 10*time.Millisecond)
	o.Bound = cmp.Or(o.Bound, 1024)
	return o
}

// Shared is the pipelined connection to one server, or one to each of several, made when it is needed. Any number of callers
// share it.
//
// Commands are pipelined without anybody asking for it: what arrives while a write is under way goes
// out together with the next one, and one reader hands the replies out in their order. So a hundred
// callers cost about as many system calls as one, on both sides, and a caller costs neither a goroutine
// nor a timer.
//
// # Contexts
//
// A caller whose context ends gets back at once, and the connection stays usable: this is what a pool
// cannot do, where a cancelled command costs the connection. What becomes of the command is not left
// open. One that still stood in the queue is taken out: it has certainly not run (ErrNotSent). For one
// that was sent, Advance finishes the rest of its protocol run when the reply comes, and tells what came
// out, so that it can be given back.
//
// # Failure
//
// A connection that breaks, or leaves a command without reply for ReplyTimeout, is dropped. Everything
// that was sent on it is answered with Silence, which the protocol machines know how to settle; what
// still stood in the queue is sent over the next connection, which is made by the next command that
// needs one. A connection whose server says that it is the wrong one (READONLY after a failover, LOADING ...) is
// given up as well, since the address may mean another server by now: what was sent on it gets its replies, and the
// command that was refused is sent once more. A server that is busy with a script is asked again until ReplyTimeout is
// over. After an attempt to connect has failed, the next one waits for Retry,
// a time that doubles, and the commands wait with it. A connection that nobody has used for Ping is asked whether it lives.
//
// # Limits
//
// At most Bound commands are without reply at a time; further callers wait for room, in which their
// contexts are honoured. A Batch has half as many places to itself: however many callers there are, it
// waits for none of them. It must not be used for commands that change what the connection is (WATCH,
// MULTI, SUBSCRIBE, SELECT) or that block: it belongs to everybody.
//
// # Who writes
//
// One goroutine reads. Flush when a quarter of the outstanding calls are queued: the server then always has work and does not go to
// sleep. Waking it is what costs most: a write that wakes a sleeping server takes as long as several others. The outstanding
// calls are the largest number that was queued or unanswered at once lately. The caller whose command completes a quarter writes it itself, which saves two switches between goroutines; a caller that
// is alone always does. So does one that finds the server with nothing to do. What stays behind is for the writer. It yields once
// before it takes what is queued: every goroutine that the last replies have woken then gets into the same write. A write blocks only
// when the socket's buffer is full, and a caller would then not hear its context: so callers write only while few bytes are
// unanswered.
//
// Among up to 8 callers each write counts, and each goroutine that is woken. The replies to one write are handed out, and the
// reader yields before it hands out more. Else the callers of two writes would meet in one, and client and server would wait for each
// other.
//
// # Who wakes which goroutine
//
// To wake a sleeping thread can take longer than a server on the same machine needs for an answer. Over a connection of
// package rawconn the reader therefore looks for a reply that is due before it sleeps, while that pays: for 40 µs. On several
// processors, several callers have it look for 100 µs. Among more than 64 the next replies are there already. A reader that misses
// replies stops looking. Then each batch puts threads to sleep and wakes them, and a lock costs the client twice the processor time.
// The price of looking: with a server 40 to 100 µs away, one processor may look for as long as replies are due.
type Shared struct {
	opts  SharedOptions
	only  *server // without Servers
	calls *calls  // beside it: the runtime keeps a sync.Pool, and what it lies in, for two collections more
	stop  func()  // ends the hearing of masters that are none any more

	mu      sync.Mutex
	servers map[string]*server // by address
	closed  bool

	life       context.Context // of attempts to connect
	end        context.CancelFunc
	background Background
}

// ErrClosed stands behind the error of a command on a closed Shared.
var ErrClosed = errors.New("connection closed")

// NewShared returns a Shared that connects with its first command.
func NewShared(opts SharedOptions) *Shared {
	c := &Shared{opts: opts.withDefaults(), calls: new(calls), servers: make(map[string]*server), stop: func() {}}
	c.life, c.end = context.WithCancel(context.Background())
	if opts.Servers == nil {
		c.only, _ = c.at("")
	} else {
		c.stop = opts.Servers.Gone(func(addr string) {
			if s := c.known(addr); s != nil { // nothing else may ever tell that it is no master any more: it may hang
				s.abandon()
			}
		})
	}
	return c
}

// at returns the connection to a server.
func (c *Shared) at(addr string) (*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, NotSent{Cause: ErrClosed}
	}
	s := c.servers[addr]
	if s == nil {
		s = &server{owner: c, addr: addr}
		c.servers[addr] = s
	}
	return s, nil
}

func (c *Shared) known(addr string) *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[addr]
}

// Renew gives the connections up that there are: each is over with its last reply, and what comes next goes over another one.
func (c *Shared) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		s.abandon()
	}
}

// Close breaks the connections off. Whatever is under way gets Silence.
func (c *Shared) Close() {
	c.stop()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	for _, s := range c.servers { // no more are added
		s.close()
	}
}

// Wait returns when nothing of it runs any more. It ends soon only after Close.
func (c *Shared) Wait() { c.background.Close() }

// Connect makes sure that there is a connection to a server. Without Servers addr is empty.
func (c *Shared) Connect(ctx context.Context, addr string) error {
	s, err := c.at(addr)
	if err == nil {
		_, err = s.connect(ctx)
	}
	return err
}

// Disconnect breaks a connection off, if it is still the one in use.
func (c *Shared) Disconnect(addr string, conn redis.Conn, why error) {
	if s := c.known(addr); s != nil {
		if k := s.link.Load(); k != nil && k.conn == conn {
			k.fail(why)
		}
	}
}

// Do sends one command and waits for its reply as long as ctx does. The error beside a Silence is why
// there is none: it matches ErrNotSent, or the command may have run, or may run yet. Commands whose
// outcome matters are for Advance.
func (c *Shared) Do(ctx context.Context, command protocol.Command) (protocol.Reply, error) {
	one := c.calls.get()
	if err := one.request.Of(&command); err != nil {
		return protocol.Reply{Kind: protocol.Fault, Text: err.Error()}, err
	}
	return c.ask(ctx, one)
}

// Request is Do for what has no protocol.Command.
func (c *Shared) Request(ctx context.Context, request wire.Request) (protocol.Reply, error) {
	one := c.calls.get()
	one.request = request
	return c.ask(ctx, one)
}

func (c *Shared) ask(ctx context.Context, one *call) (protocol.Reply, error) {
	reply, pending, err := c.exchange(ctx, one)
	if pending != nil {
		return protocol.Reply{Kind: protocol.Silence}, context.Cause(ctx)
	}
	return reply, err
}

// exchange sends one command to the server that serves its key and waits for its reply. What has certainly
// not run goes on its way as long as ctx and the servers' patience last. It returns the call that is under way where ctx ends first.
func (c *Shared) exchange(ctx context.Context, one *call) (protocol.Reply, *call, error) {
	if c.only != nil {
		return c.only.exchange(ctx, one)
	}
	silence, request := protocol.Reply{Kind: protocol.Silence}, one.request
	one.free() // each try has a call of its own
	redirects := topology.Begin(c.opts.Servers, request.Key())
	for {
		var s *server
		reply := silence
		addr, asking, err := redirects.Next(ctx)
		if err != nil {
			err = NotSent{Cause: err}
		} else if s, err = c.at(addr); err == nil {
			one := c.calls.get()
			one.request, one.asking = request, asking
			if reply, one, err = s.exchange(ctx, one); one != nil {
				return silence, one, nil
			}
		}
		onward, pause := false, time.Duration(0)
		switch {
		case errors.Is(err, ErrClosed):
		case reply.Kind == protocol.Fault:
			onward, pause = redirects.Refused(reply.Text)
		case reply.Kind == protocol.Silence && (errors.Is(err, ErrNotSent) || topology.Idempotent(request.Name)) && ctx.Err() == nil:
			onward, pause = redirects.Unreachable()
		}
		if !onward {
			return reply, nil, err
		}
		if !topology.Sleep(ctx, pause) {
			return silence, nil, NotSent{Cause: context.Cause(ctx)}
		}
	}
}

// Advance runs a machine as PerAttempt does: until it wants to sleep or is done. When ctx ends
// first, the run goes on in the background and abandoned is told what came out; unless nothing was sent
// yet, which the verdict Failed says.
func (c *Shared) Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(Outcome)) (Outcome, error) {
	return c.run(ctx, Run{Machine: m, Now: c.opts.Now}, reply, abandoned)
}

func (c *Shared) run(ctx context.Context, r Run, reply protocol.Reply, abandoned func(Outcome)) (Outcome, error) {
	var pending *call
	outcome, err := r.Advance(ctx, reply, func(command protocol.Command) (protocol.Reply, error) {
		one := c.calls.get()
		if err := one.request.Of(&command); err != nil {
			return protocol.Reply{Kind: protocol.Silence}, NotSent{Cause: err}
		}
		reply, under, err := c.exchange(ctx, one)
		if under != nil {
			pending, err = under, ErrPending
		}
		return reply, err
	})
	if outcome.Step.Verdict == protocol.Unsure && err != nil {
		c.finish(ctx, r, pending, abandoned)
	}
	return outcome, err
}

// finish brings a run to its end whose caller has left: pending is the command without a reply, nil when it
// could not be sent. Every wait in it is bounded by the reply timeout.
func (c *Shared) finish(ctx context.Context, r Run, pending *call, abandoned func(Outcome)) {
	c.background.GoOrDo(func() { // itself if it is closed, where everything ends at once
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*c.opts.ReplyTimeout)
		defer cancel()
		reply := protocol.Reply{Kind: protocol.Silence}
		r.Sent, r.Last = true, context.Cause(ctx)
		if pending != nil {
			reply, r.Last = pending.link.server.settle(bounded, pending)
		}
		// Where bounded ends too, the run goes on in a finish of its own, which tells abandoned when it has ended: the machine
		// is that one's then.
		if out, err := c.run(bounded, r, reply, abandoned); err == nil {
			abandoned(out)
		}
	})
}

// At names the server that serves a key; "" where there is one only, or none is known.
func (c *Shared) At(ctx context.Context, key string) string {
	if c.only != nil {
		return ""
	}
	addr, _ := c.opts.Servers.Locate(ctx, key) // Batch tells the error
	return addr
}

// Batch sends commands without waiting for replies in between, as far as half of Bound allows, and calls each for every reply,
// with the errors of Do. One server's replies come in order, from the caller's goroutine. Of several servers each gets what is
// its own, all at once: then each is called from several goroutines, but never for one command twice. What is redirected is
// sent on, all at once too.
func (c *Shared) Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error)) {
	if c.only != nil {
		c.only.batch(ctx, commands, each)
		return
	}
	parts := make(map[string][]int)
	for i, command := range commands {
		addr, err := c.opts.Servers.Locate(ctx, command.Key)
		if err != nil {
			each(i, protocol.Reply{Kind: protocol.Silence}, NotSent{Cause: err})
			continue
		}
		parts[addr] = append(parts[addr], i)
	}
	var sending sync.WaitGroup
	for addr, indexes := range parts {
		sending.Go(func() { c.batch(ctx, addr, commands, indexes, each) })
	}
	sending.Wait()
}

func (c *Shared) batch(ctx context.Context, addr string, commands []protocol.Command, indexes []int, each func(i int, reply protocol.Reply, err error)) {
	s, err := c.at(addr)
	if err != nil {
		for _, i := range indexes {
			each(i, protocol.Reply{Kind: protocol.Silence}, err)
		}
		return
	}
	part := make([]protocol.Command, len(indexes))
	for n, i := range indexes {
		part[n] = commands[i]
	}
	var onward []int
	s.batch(ctx, part, func(n int, reply protocol.Reply, err error) {
		if reply.Kind == protocol.Fault {
			if r, _, _ := topology.Read(reply.Text); r != topology.Answer {
				onward = append(onward, indexes[n])
				return
			}
		}
		each(indexes[n], reply, err)
	})
	var sending sync.WaitGroup
	for n, i := range onward {
		send := func() {
			reply, err := c.Do(ctx, commands[i])
			each(i, reply, err)
		}
		if n == 0 { // it corrects the table
			send()
			continue
		}
		sending.Go(send)
	}
	sending.Wait()
}

// Run is a stretch of a machine's life: commands and replies, until it wants to sleep or is done. All that send commands use it,
// over a pool or over a pipelined connection.
type Run struct {
	Machine protocol.Machine
	Now     func() protocol.Instant
	Sent    bool  // a command was sent already: the outcome is not certain without its reply
	Last    error // the last refusal or I/O error
}

var (
	// ErrNotSent is matched by the error of a command that has certainly not run, and will not.
	ErrNotSent = errors.New("command not sent")
	// ErrPending is the error of a command whose reply is still to come, though its caller's context has ended.
	ErrPending = errors.New("command without a reply yet")
)

// NotSent is an error that matches ErrNotSent, and its cause.
type NotSent struct{ Cause error }

func (e NotSent) Error() string   { return e.Cause.Error() }
func (e NotSent) Unwrap() []error { return []error{ErrNotSent, e.Cause} }

// Advance goes on from the last reply. Exchange sends a command and waits for its reply, a Silence where there is none. When ctx
// ends first, Advance returns its cause: with Failed when nothing was sent, or with Unsure when the run is to be gone on with.
func (r *Run) Advance(ctx context.Context, reply protocol.Reply, exchange func(c protocol.Command) (protocol.Reply, error)) (Outcome, error) {
	if cause := context.Cause(ctx); cause != nil && !r.Sent {
		return Ended(protocol.Failed, cause), cause
	}
	for {
		step := r.Machine.Next(r.Now(), reply)
		if step.Kind != protocol.Send {
			return Rests(step, r.Last), nil
		}
		var err error
		reply, err = exchange(step.Command)
		unsent := err != nil && errors.Is(err, ErrNotSent)
		switch cause := context.Cause(ctx); {
		case err == ErrPending || unsent && r.Sent && cause != nil:
			return Ended(protocol.Unsure, cause), cause
		case unsent && !r.Sent && cause != nil:
			return Ended(protocol.Failed, cause), cause
		case unsent && !r.Sent:
			return Ended(protocol.Failed, err), nil
		case err != nil:
			r.Last = err
		}
		r.Sent = true
	}
}
