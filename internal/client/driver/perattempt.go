// Package driver runs protocol machines over redigo: a PerAttempt over connections of a pool, one for each attempt, and a Shared over one
// pipelined connection that many callers share.
//
// # Contexts
//
// redigo's own context support closes the connection under a command that is cancelled, and then
// nobody knows whether it ran. Here the caller gets back at once, while the exchange that is under
// way is brought to its end on a goroutine of its own, bounded by the reply timeout: its reply comes,
// the machine reaches its verdict, and what the caller no longer wants is undone by the Abandoned
// hook. Only when no reply comes at all is the outcome really unknown.
//
// # Connections
//
// One attempt uses one connection; it goes back to the pool before the machine sleeps. A connection
// that failed is dropped and the next command, which asks what became of the last one, gets another. Where the answer to the first
// command of a run says that the server is the wrong one (READONLY, LOADING ...), the command goes out once more over a connection that was
// just dialled, see topology.Again.
package driver

import (
	"context"
	"errors"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// PerAttempt runs machines. It is safe for concurrent use.
type PerAttempt struct {
	Pool         lockmigrate.Pool
	Now          func() time.Time // the client's wall clock
	ReplyTimeout time.Duration    // the longest wait for one reply
	// Opened, if set, may ask something of each connection before it is used.
	Opened func(conn redis.Conn)

	background Background
}

// Outcome is how a stretch of a machine's run ended.
type Outcome struct {
	Step End
	Err  error // the last refusal or I/O error behind a Failed or Unsure verdict
}

// End is a protocol.Step that is a Sleep or a Done. It has no Command: that is 400 bytes, and outcomes are handed by value
// through all the frames of an acquisition.
type End struct {
	Kind    protocol.StepKind
	Verdict protocol.Verdict
	Sleep   time.Duration
}

// Ended is the outcome of a run that is over.
func Ended(v protocol.Verdict, err error) Outcome {
	return Outcome{End{Kind: protocol.Done, Verdict: v}, err}
}

// Rests is the outcome of a run whose machine sends nothing next.
func Rests(step protocol.Step, last error) Outcome {
	return Outcome{End{step.Kind, step.Verdict, step.Sleep}, last}
}

// Advance runs a machine from its last reply until it wants to sleep or is done.
//
// When ctx ends first, Advance returns its cause at once. Its Outcome then says Failed if nothing was
// sent, or Unsure if the run goes on in the background: the machine must not be touched again by the
// caller, and abandoned is called with what came out.
func (d *PerAttempt) Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(Outcome)) (Outcome, error) {
	if err := context.Cause(ctx); err != nil {
		return Ended(protocol.Failed, err), err
	}
	if ctx.Done() == nil {
		return d.advance(ctx, m, reply), nil
	}

	result := make(chan Outcome) // unbuffered: exactly one of caller and background takes the outcome
	if !d.background.Go(func() {
		outcome := d.advance(ctx, m, reply)
		select {
		case result <- outcome:
		case <-ctx.Done():
			abandoned(outcome)
		}
	}) {
		return d.advance(ctx, m, reply), nil
	}
	select {
	case outcome := <-result:
		return outcome, nil
	case <-ctx.Done():
		err := context.Cause(ctx)
		return Ended(protocol.Unsure, err), err
	}
}

// Close returns when nothing runs in the background any more. The pool is not the PerAttempt's: a lock can still be released
// afterwards, but Advance then keeps its callers until the exchange is over, whatever becomes of their contexts.
func (d *PerAttempt) Close() { d.background.Close() }

func (d *PerAttempt) advance(ctx context.Context, m protocol.Machine, reply protocol.Reply) Outcome {
	var conn redis.Conn
	ends, begun, watching := []context.CancelFunc(nil), false, false
	defer func() {
		if watching && conn != nil {
			wire.GiveUp(conn)
		}
		closeConn(conn)
		for _, end := range ends {
			end()
		}
	}()
	r := Run{Machine: m, Now: func() protocol.Instant { return protocol.InstantOf(d.Now()) }}
	outcome, _ := r.Advance(context.WithoutCancel(ctx), reply, func(c protocol.Command) (reply protocol.Reply, err error) {
		if conn == nil {
			if begun {
				// Once a command is without its reply, the question what became of it outlives the caller by the
				// time of one reply, and of a failover where there can be one. The context must live as long as the connection, which may dial with it yet.
				bounded, end := context.WithTimeout(context.WithoutCancel(ctx), d.ReplyTimeout+d.patience())
				ctx, ends = bounded, append(ends, end)
			}
			if conn, err = d.connect(ctx); err != nil {
				return protocol.Reply{Kind: protocol.Silence}, NotSent{err}
			}
		}
		first := !begun
		begun, watching = true, c.Op == protocol.Watch || watching && c.Op != protocol.Unwatch && c.Op != protocol.Commit
		reply, err = wire.Do(conn, d.ReplyTimeout, c)
		if first {
			if fresh := topology.Again(ctx, d.Pool, conn, err); fresh != nil {
				conn = d.opened(fresh)
				reply, err = wire.Do(conn, d.ReplyTimeout, c)
			}
		}
		if reply.Kind == protocol.Silence || conn.Err() != nil {
			closeConn(conn)
			conn = nil
		}
		return reply, err
	})
	return outcome
}

func (d *PerAttempt) patience() time.Duration {
	if r := topology.RouterOf(d.Pool); r != nil {
		return r.Patience()
	}
	return 0
}

func (d *PerAttempt) connect(ctx context.Context) (redis.Conn, error) {
	conn, err := d.Pool.GetContext(ctx)
	if err != nil {
		closeConn(conn)
		return nil, err
	}
	return d.opened(conn), nil
}

func (d *PerAttempt) opened(conn redis.Conn) redis.Conn {
	if d.Opened != nil {
		d.Opened(conn)
	}
	return conn
}

func closeConn(conn redis.Conn) {
	if conn != nil {
		_ = conn.Close() // a connection that failed has nothing more to say
	}
}

// Elsewhere tells that an error is the word of the wrong server: nothing has run there.
func Elsewhere(err error) bool {
	var refused redis.Error
	return errors.As(err, &refused) && topology.Elsewhere(string(refused))
}

// Refused tells that an error is the server's own word on a command, and not a failure to reach the right server, or one that
// is busy.
func Refused(err error) bool {
	var refused redis.Error
	return errors.As(err, &refused) && !topology.Elsewhere(string(refused)) && !topology.Busy(string(refused))
}
