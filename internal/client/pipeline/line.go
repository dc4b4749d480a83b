// Package pipeline is one connection to a server that any number of callers share.
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
// waits for none of them. A line must not be used for commands that change what the connection is (WATCH,
// MULTI, SUBSCRIBE, SELECT) or that block: it belongs to everybody.
//
// # Who writes
//
// One goroutine writes and one reads. The writer yields once before it takes what is queued: on few
// processors, everybody whom the last replies have woken then gets into the same write. There is one
// shortcut: while callers come one at a time, they write their command themselves, which saves two
// switches between goroutines. A write blocks only when the socket's buffer is full, and the caller
// would then not hear its context: so the shortcut is for short commands, and only while nothing at all
// is unanswered.
package pipeline

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/background"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/topology"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// Options of a Line; Dial and Now are required.
type Options struct {
	// Dial makes a connection outside of any pool. It must honour its context.
	Dial func(ctx context.Context) (redis.Conn, error)
	// Now is the clock of the machines that Advance runs.
	Now func() protocol.Instant
	// Setup, if set, is run on a fresh connection before anything else, within ReplyTimeout.
	Setup func(conn redis.Conn) error
	// Down, if set, is called once for each connection that was set up and broke. It must not block.
	Down func(conn redis.Conn, err error)

	ReplyTimeout time.Duration // how long a command may be without reply, at most a quarter longer; zero: 5 s
	Ping         time.Duration // how long a connection may be idle before it is asked; zero: 30 s; negative: never
	Retry        time.Duration // the pause after a failed attempt to connect; doubles up to 16 times that; zero: 10 ms
	Bound        int           // how many commands may be without reply; zero: 1024
	// Redirected leaves it to others to find another server when one says that it is the wrong one.
	Redirected bool
}

func (o Options) withDefaults() Options {
	or(&o.ReplyTimeout, 5*time.Second)
	or(&o.Ping, 30*time.Second)
	or(&o.Retry, 10*time.Millisecond)
	or(&o.Bound, 1024)
	return o
}

func or[T comparable](value *T, otherwise T) {
	if *value == *new(T) {
		*value = otherwise
	}
}

// Line is safe for concurrent use.
type Line struct {
	opts Options
	link atomic.Pointer[link] // nil while there is none

	mu        sync.Mutex
	attempt   *attempt // to connect, under way
	failures  int      // attempts in a row that came to nothing
	notBefore time.Time
	leaves    int       // connections given up in a row because of what their servers said
	left      time.Time // when the last one was
	closed    bool

	life       context.Context // of attempts to connect
	end        context.CancelFunc
	background background.Group
}

// attempt is shared by all who need a connection meanwhile.
type attempt struct {
	done chan struct{}
	link *link
	err  error
}

var (
	// ErrClosed stands behind the error of a command on a closed line.
	ErrClosed = errors.New("line closed")
	// ErrNotSent is matched by the error of a command that has certainly not run, and will not.
	ErrNotSent = errors.New("command not sent")
)

type notSent struct{ cause error }

func (e notSent) Error() string   { return e.cause.Error() }
func (e notSent) Unwrap() []error { return []error{ErrNotSent, e.cause} }

// New returns a line that connects with its first command.
func New(opts Options) *Line {
	l := &Line{opts: opts.withDefaults()}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// Close breaks the connection off. Whatever is under way gets Silence.
func (l *Line) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.end()
	if k := l.link.Load(); k != nil {
		k.fail(ErrClosed)
	}
}

// Wait returns when nothing of this line runs any more. It ends soon only after Close.
func (l *Line) Wait() { l.background.Close() }

// Connect makes sure that there is a connection.
func (l *Line) Connect(ctx context.Context) error {
	_, err := l.connect(ctx)
	return err
}

// ConnectTo implements Way.
func (l *Line) ConnectTo(ctx context.Context, _ string) error { return l.Connect(ctx) }

// Disconnect implements Way.
func (l *Line) Disconnect(_ string, conn redis.Conn, why error) {
	if k := l.link.Load(); k != nil && k.conn == conn {
		k.fail(why)
	}
}

// Do sends one command and waits for its reply as long as ctx does. The error beside a Silence is why
// there is none: it matches ErrNotSent, or the command may have run, or may run yet. Commands whose
// outcome matters are for Advance.
func (l *Line) Do(ctx context.Context, c protocol.Command) (protocol.Reply, error) {
	request, err := wire.RequestOf(c)
	if err != nil {
		return protocol.Reply{Kind: protocol.Fault, Text: err.Error()}, err
	}
	return l.Request(ctx, request)
}

// Request is Do for what has no protocol.Command.
func (l *Line) Request(ctx context.Context, request wire.Request) (protocol.Reply, error) {
	one := newCall(request)
	if err := l.submit(ctx, one); err != nil {
		one.free()
		return protocol.Reply{Kind: protocol.Silence}, err
	}
	return l.settle(ctx, one)
}

// Batch sends commands without waiting for replies in between, as far as half of Bound allows, and calls
// each for every reply, in order, from the caller's goroutine. The errors are those of Do.
func (l *Line) Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error)) {
	type place struct {
		call *call
		err  error
	}
	window := min(len(commands), max(l.opts.Bound/2, 1))
	places := make([]place, window)
	for next, i := 0, 0; i < len(commands); i++ {
		for ; next < len(commands) && next-i < window; next++ {
			request, err := wire.RequestOf(commands[next])
			if err != nil {
				panic(err) // a batch is made by this module: an op without a wire form is a programming error
			}
			one := newCall(request)
			one.batched = true
			places[next%window] = place{one, l.submit(ctx, one)}
		}
		at := places[i%window]
		if at.err != nil {
			at.call.free()
			each(i, protocol.Reply{Kind: protocol.Silence}, at.err)
			continue
		}
		reply, err := l.settle(ctx, at.call)
		each(i, reply, err)
	}
}

// Advance runs a machine as driver.Driver does: until it wants to sleep or is done. When ctx ends
// first, the run goes on in the background and abandoned is told what came out; unless nothing was sent
// yet, which the verdict Failed says.
func (l *Line) Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	if err := ctx.Err(); err != nil {
		cause := context.Cause(ctx)
		return driver.Ended(protocol.Failed, cause), cause
	}
	return l.advance(ctx, m, reply, false, nil, abandoned)
}

// advance is Advance in the midst of a run: sent tells that a command was sent before, last how it failed.
func (l *Line) advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, sent bool, last error, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	for {
		step := m.Next(l.opts.Now(), reply)
		if step.Kind != protocol.Send {
			return driver.Rests(step, last), nil
		}
		request, err := wire.RequestOf(step.Command)
		if err != nil {
			return driver.Ended(protocol.Failed, err), nil
		}
		one := newCall(request)
		if err = l.submit(ctx, one); err != nil {
			one.free()
		} else {
			var left stage
			if reply, left, err = l.wait(ctx, one); left == abandonedCall {
				cause := context.Cause(ctx)
				l.finish(ctx, m, one, abandoned)
				return driver.Ended(protocol.Unsure, cause), cause
			}
		}
		switch {
		case err == nil:
		case !errors.Is(err, ErrNotSent):
			last = err
		case sent && ctx.Err() != nil: // an earlier command is without its end
			cause := context.Cause(ctx)
			l.finish(ctx, m, nil, abandoned)
			return driver.Ended(protocol.Unsure, cause), cause
		case sent:
			last, reply = err, protocol.Reply{Kind: protocol.Silence}
		case ctx.Err() != nil:
			cause := context.Cause(ctx)
			return driver.Ended(protocol.Failed, cause), cause
		default:
			return driver.Ended(protocol.Failed, err), nil
		}
		sent = true
	}
}

// finish brings a run to its end whose caller has left: one is the command without a reply, nil when it
// could not be sent. Every wait in it is bounded by the reply timeout.
func (l *Line) finish(ctx context.Context, m protocol.Machine, one *call, abandoned func(driver.Outcome)) {
	l.background.GoOrDo(func() { // itself if the line is closed, where everything ends at once
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*l.opts.ReplyTimeout)
		defer cancel()
		reply, last := protocol.Reply{Kind: protocol.Silence}, context.Cause(ctx)
		if one != nil {
			reply, last = l.settle(bounded, one)
		}
		// Where bounded ends too, the run goes on in a finish of its own, which tells abandoned when it has ended: the machine
		// is that one's then.
		if out, err := l.advance(bounded, m, reply, true, last, abandoned); err == nil {
			abandoned(out)
		}
	})
}

// resubmissions bounds how often a command is sent anew that has certainly not run: because the
// connection broke before its turn, or because the server does not know the script.
const resubmissions = 3

// settle waits for the reply of a call that was submitted. The call is over when it returns, whatever
// becomes of the command.
func (l *Line) settle(ctx context.Context, one *call) (protocol.Reply, error) {
	reply, left, err := l.wait(ctx, one)
	if left == abandonedCall {
		return protocol.Reply{Kind: protocol.Silence}, context.Cause(ctx)
	}
	return reply, err
}

// wait waits for the reply of a call that was submitted. Unless it returns abandonedCall, the call is
// over; then it is under way on its link, and may be waited for again.
func (l *Line) wait(ctx context.Context, one *call) (protocol.Reply, stage, error) {
	silence := protocol.Reply{Kind: protocol.Silence}
	var patience topology.Patience
	for tries := 1; ; tries++ {
		left := one.link.await(ctx, one)
		switch left {
		case withdrawn: // the writer frees it
			return silence, left, notSent{context.Cause(ctx)}
		case abandonedCall:
			return silence, left, nil
		}
		switch {
		case !l.opts.Redirected && !one.misled && one.elsewhere() && l.leave(one.link):
			one.misled = true
			refused := one.err
			one.renew()
			if l.submit(ctx, one) == nil {
				continue
			}
			one.err = refused
		case topology.IsBusy(one.err):
			if !patience.Wait(ctx, l.opts.ReplyTimeout) {
				if ctx.Err() != nil {
					one.err = notSent{context.Cause(ctx)} // it has not run
				}
				break
			}
			one.renew()
			err := l.submit(ctx, one) // from here on its fields are the link's, unless there is an error
			if err == nil {
				tries--
				continue
			}
			one.err = err
		case !one.again():
		case tries > resubmissions:
			one.err = notSent{one.err}
		default:
			one.renew()
			err := l.submit(ctx, one)
			if err == nil {
				continue
			}
			one.err = err
		}
		reply, err := wire.Translate(one.raw, one.request.Explain(one.err))
		one.free()
		return reply, answered, err
	}
}

// submit puts a call into the queue of a connection. An error matches ErrNotSent; the call is still the
// caller's then.
func (l *Line) submit(ctx context.Context, one *call) error {
	if ctx.Err() != nil {
		return notSent{context.Cause(ctx)}
	}
	for range resubmissions {
		k := l.link.Load()
		if k == nil {
			var err error
			if k, err = l.connect(ctx); err != nil {
				return notSent{err}
			}
		}
		ok, err := k.submit(ctx, one)
		if err != nil {
			return notSent{err}
		}
		if ok {
			return nil
		}
		l.link.CompareAndSwap(k, nil) // it is over, and about to say so itself
	}
	return notSent{errors.New("connections break as soon as they are made")}
}
