package pipeline

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/background"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/topology"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// Way is a Line to one server, or Lines to several.
type Way interface {
	// ConnectTo makes sure that there is a connection to a server; a Line knows only one.
	ConnectTo(ctx context.Context, addr string) error
	// Disconnect breaks a connection off, if it is still the one in use.
	Disconnect(addr string, conn redis.Conn, why error)
	Do(ctx context.Context, c protocol.Command) (protocol.Reply, error)
	Request(ctx context.Context, request wire.Request) (protocol.Reply, error)
	Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error))
	Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error)
	Close()
	Wait()
}

// Over returns a way to the servers behind a pool: Lines where there are several, otherwise a Line that
// dials as opts say.
func Over(servers topology.Servers, opts Options) Way {
	if servers == nil {
		return New(opts)
	}
	return NewLines(servers, opts, nil)
}

// Lines is a line to each of several servers, made when it is needed. A command goes the way that package
// topology describes; one server's silence is no other's.
type Lines struct {
	servers topology.Servers
	opts    Options // Dial, Setup and Down are set for each line
	events  Events

	mu     sync.Mutex
	lines  map[string]*Line
	closed bool
	stop   func() // ends the hearing of masters that are none any more

	background background.Group
}

// Events are Setup and Down of Options, with the server's address.
type Events interface {
	Setup(addr string, conn redis.Conn) error
	Down(addr string, conn redis.Conn, err error)
}

// NewLines returns lines that connect with their first commands. Events may be nil; Dial, Setup and Down of
// the options do not count.
func NewLines(servers topology.Servers, opts Options, events Events) *Lines {
	l := &Lines{servers: servers, opts: opts.withDefaults(), events: events, lines: make(map[string]*Line)}
	l.stop = servers.Gone(l.gone)
	return l
}

// gone gives the connection to a master up that is none any more. Nothing else may ever tell: it may hang.
func (l *Lines) gone(addr string) {
	l.mu.Lock()
	one := l.lines[addr]
	l.mu.Unlock()
	if one != nil {
		one.abandon()
	}
}

// at returns the line to a server.
func (l *Lines) at(addr string) (*Line, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, notSent{ErrClosed}
	}
	one := l.lines[addr]
	if one == nil {
		o := l.opts
		o.Dial = func(ctx context.Context) (redis.Conn, error) { return l.servers.DialAddr(ctx, addr) }
		o.Setup, o.Redirected = nil, true
		if l.events != nil {
			o.Setup = func(conn redis.Conn) error { return l.events.Setup(addr, conn) }
		}
		o.Down = func(conn redis.Conn, err error) {
			l.servers.Stale(addr)
			if l.events != nil {
				l.events.Down(addr, conn, err)
			}
		}
		one = New(o)
		l.lines[addr] = one
	}
	return one, nil
}

func (l *Lines) all() []*Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*Line
	for _, one := range l.lines {
		all = append(all, one)
	}
	return all
}

// ConnectTo implements Way.
func (l *Lines) ConnectTo(ctx context.Context, addr string) error {
	one, err := l.at(addr)
	if err != nil {
		return err
	}
	return one.Connect(ctx)
}

// Disconnect implements Way.
func (l *Lines) Disconnect(addr string, conn redis.Conn, why error) {
	l.mu.Lock()
	one := l.lines[addr]
	l.mu.Unlock()
	if one != nil {
		one.Disconnect(addr, conn, why)
	}
}

// Close breaks the connections off. Whatever is under way gets Silence.
func (l *Lines) Close() {
	l.stop()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for _, one := range l.all() {
		one.Close()
	}
}

// Wait returns when nothing of these lines runs any more. It ends soon only after Close.
func (l *Lines) Wait() {
	l.background.Close()
	for _, one := range l.all() {
		one.Wait()
	}
}

// Do sends one command, as Line's.
func (l *Lines) Do(ctx context.Context, c protocol.Command) (protocol.Reply, error) {
	request, err := wire.RequestOf(c)
	if err != nil {
		return protocol.Reply{Kind: protocol.Fault, Text: err.Error()}, err
	}
	return l.Request(ctx, request)
}

// Request is Do for what has no protocol.Command.
func (l *Lines) Request(ctx context.Context, request wire.Request) (protocol.Reply, error) {
	reply, pending, err := l.exchange(ctx, request)
	if pending != nil {
		return protocol.Reply{Kind: protocol.Silence}, context.Cause(ctx)
	}
	return reply, err
}

// call under way on a line, when its caller's context ended.
type underWay struct {
	line *Line
	call *call
}

// exchange sends one command to the server that serves its key and waits for its reply. What has certainly
// not run goes on its way as long as ctx and the servers' patience last.
func (l *Lines) exchange(ctx context.Context, request wire.Request) (protocol.Reply, *underWay, error) {
	silence := protocol.Reply{Kind: protocol.Silence}
	course := topology.Begin(l.servers, request.Key())
	for {
		var one *Line
		addr, asking, err := course.Next(ctx)
		if err != nil {
			err = notSent{err}
		} else {
			one, err = l.at(addr)
		}
		reply := silence
		if err == nil {
			c := newCall(request)
			c.asking = asking
			if err = one.submit(ctx, c); err != nil {
				c.free()
			} else {
				var left stage
				if reply, left, err = one.wait(ctx, c); left == abandonedCall {
					return silence, &underWay{one, c}, nil
				}
			}
		}
		again, pause := false, time.Duration(0)
		switch {
		case errors.Is(err, ErrClosed):
		case reply.Kind == protocol.Fault:
			again, pause = course.Refused(reply.Text)
		case reply.Kind == protocol.Silence && (errors.Is(err, ErrNotSent) || topology.Idempotent(request.Name)) && ctx.Err() == nil:
			again, pause = course.Unreachable()
		}
		if !again {
			return reply, nil, err
		}
		if !topology.Sleep(ctx, pause) {
			return silence, nil, notSent{context.Cause(ctx)}
		}
	}
}

// Advance runs a machine, as Line's.
func (l *Lines) Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		return driver.Ended(protocol.Failed, cause), cause
	}
	return l.advance(ctx, m, reply, false, nil, abandoned)
}

// advance is Advance in the midst of a run: sent tells that a command was sent before, last how it failed.
func (l *Lines) advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, sent bool, last error, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	for {
		step := m.Next(l.opts.Now(), reply)
		if step.Kind != protocol.Send {
			return driver.Rests(step, last), nil
		}
		request, err := wire.RequestOf(step.Command)
		if err != nil {
			return driver.Ended(protocol.Failed, err), nil
		}
		var pending *underWay
		reply, pending, err = l.exchange(ctx, request)
		unsent := errors.Is(err, ErrNotSent)
		switch cause := context.Cause(ctx); {
		case pending != nil || unsent && sent && cause != nil:
			l.finish(ctx, m, pending, abandoned)
			return driver.Ended(protocol.Unsure, cause), cause
		case unsent && !sent && cause != nil:
			return driver.Ended(protocol.Failed, cause), cause
		case unsent && !sent:
			return driver.Ended(protocol.Failed, err), nil
		case err != nil:
			last = err
		}
		sent = true
	}
}

// finish brings a run to its end whose caller has left.
func (l *Lines) finish(ctx context.Context, m protocol.Machine, pending *underWay, abandoned func(driver.Outcome)) {
	l.background.GoOrDo(func() { // as Line's
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*l.opts.ReplyTimeout)
		defer cancel()
		reply, last := protocol.Reply{Kind: protocol.Silence}, context.Cause(ctx)
		if pending != nil {
			reply, last = pending.line.settle(bounded, pending.call)
		}
		// Where bounded ends too, the run goes on in a finish of its own, which tells abandoned when it has ended: the machine
		// is that one's then.
		if out, err := l.advance(bounded, m, reply, true, last, abandoned); err == nil {
			abandoned(out)
		}
	})
}

// Batch sends each server what is its own, to all of them at once, and calls each for every reply, from
// several goroutines but never for one command twice. What is redirected is sent on.
func (l *Lines) Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error)) {
	parts := make(map[string][]int)
	for i, c := range commands {
		addr, err := l.servers.Locate(ctx, c.Key)
		if err != nil {
			each(i, protocol.Reply{Kind: protocol.Silence}, notSent{err})
			continue
		}
		parts[addr] = append(parts[addr], i)
	}
	var sending sync.WaitGroup
	for addr, indexes := range parts {
		sending.Go(func() { l.batch(ctx, addr, commands, indexes, each) })
	}
	sending.Wait()
}

func (l *Lines) batch(ctx context.Context, addr string, commands []protocol.Command, indexes []int, each func(i int, reply protocol.Reply, err error)) {
	one, err := l.at(addr)
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
	one.Batch(ctx, part, func(n int, reply protocol.Reply, err error) {
		if reply.Kind == protocol.Fault {
			if r, _, _ := topology.Read(reply.Text); r != topology.Answer {
				onward = append(onward, indexes[n])
				return
			}
		}
		each(indexes[n], reply, err)
	})
	for _, i := range onward { // the first one corrects the table
		reply, err := l.Do(ctx, commands[i])
		each(i, reply, err)
	}
}
