package topology

import (
	"context"
	"errors"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
)

// Elsewhere tells that an error reply speaks of the server and not of the command, which has not run: another
// server would run it, or the same one later. A connection that leads there is to be given up where an address may
// come to mean another server: a DNS name, a managed service, a proxy.
func Elsewhere(reply string) bool {
	r, _, _ := Read(reply)
	return r != Answer
}

// Busy tells that an error reply says that the server runs a slow script and has not run the command. It is the right
// server, and answers when the script has ended: as one does that is slow for another reason and says nothing.
func Busy(reply string) bool { return strings.HasPrefix(reply, "BUSY ") }

// IsBusy is Busy of an error.
func IsBusy(err error) bool {
	refused, ok := err.(redis.Error)
	return ok && Busy(string(refused))
}

// Patience is how long a command waits for a server that is busy.
type Patience struct {
	until time.Time
	pause time.Duration
}

// Wait pauses before the command is sent again, as long as ctx and the limit since the first call allow. It tells whether
// it may be sent.
func (p *Patience) Wait(ctx context.Context, limit time.Duration) bool {
	if p.until.IsZero() {
		p.until = time.Now().Add(limit)
	}
	p.pause = min(max(2*p.pause, 2*time.Millisecond), 50*time.Millisecond)
	return time.Now().Add(p.pause).Before(p.until) && Sleep(ctx, p.pause)
}

// Leaving returns a pool that drops a connection whose server has said that it is the wrong one, and the idle ones
// with it, where pool is a *redis.Pool: they lead to the same server, and nothing but the answer to a command
// tells. Those of any other pool are dropped as they are met, see Again. Pools of several servers see to that themselves.
func Leaving(pool lockmigrate.Pool) lockmigrate.Pool {
	if RouterOf(pool) != nil {
		return pool
	}
	if _, is := pool.(*leaving); is {
		return pool
	}
	l := &leaving{pool: pool}
	l.life, l.end = context.WithCancelCause(context.Background())
	return l
}

// Leave has nobody wait any more for a connection of a pool that Leaving has returned, now or later: their error is cause.
// Connections that were handed out are not touched. A pool of several servers bounds such waits by itself.
func Leave(pool lockmigrate.Pool, cause error) {
	if l, is := pool.(*leaving); is {
		l.end(cause)
	}
}

type leaving struct {
	pool     lockmigrate.Pool
	dropping atomic.Bool
	refused  atomic.Int32    // connections in the last minute whose server has said that it is the wrong one
	life     context.Context // of waits for a connection
	end      context.CancelCauseFunc
}

// maxStale is how many refused connections a minute Again takes for old. Those that a pool has dialled unseen are among
// them: a server that stays the wrong one must not be flooded with connections.
const maxStale = 256

// Again tells whether a command that ended with err is to be sent again over another connection of the pool: the server of
// this one has said that it is the wrong one, and another may lead to the right one. A connection that was just dialled has
// the last word: the address means its server now. Any other may be older than a change of the address, and the pool may have
// more of its age.
func Again(ctx context.Context, conn redis.Conn, err error) bool {
	c, is := conn.(*leavingConn)
	var refused redis.Error
	return is && errors.As(err, &refused) && Elsewhere(string(refused)) && (c.dialled == nil || !c.dialled.Load()) &&
		c.pool.refused.Load() <= maxStale && ctx.Err() == nil
}

// Over is an exchange over a connection of a pool, and over others as long as Again tells.
func Over(ctx context.Context, pool lockmigrate.Pool, exchange func(conn redis.Conn) (any, error)) (any, error) {
	for {
		conn, err := pool.GetContext(ctx)
		if err != nil {
			return nil, err
		}
		reply, err := exchange(conn)
		again := Again(ctx, conn, err)
		if _ = conn.Close(); !again {
			return reply, err
		}
	}
}

func (l *leaving) GetContext(ctx context.Context) (redis.Conn, error) {
	if l.refused.Load() == 0 {
		return l.get(ctx)
	}
	dialled := new(atomic.Bool)
	if p, is := l.pool.(*redis.Pool); is { // its Dial knows no context
		dialled.Store(p.IdleCount() == 0)
	}
	conn, err := l.get(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) {
		if err == nil {
			dialled.Store(true)
		}
	}}))
	if c, is := conn.(*leavingConn); is {
		c.dialled = dialled
	}
	return conn, err
}

func (l *leaving) get(ctx context.Context) (redis.Conn, error) {
	if p, is := l.pool.(*redis.Pool); is && !p.Wait {
		return l.wrap(p.GetContext(ctx)) // it waits for a dial at most
	}
	// The context must live as long as the connection, which may dial with it yet.
	waits, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.life, func() { cancel(context.Cause(l.life)) })
	conn, err := l.wrap(l.pool.GetContext(waits))
	stop()
	if c, is := conn.(*leavingConn); is {
		c.done = cancel
		return c, err
	}
	if err != nil && context.Cause(ctx) == nil && context.Cause(waits) != nil {
		err = context.Cause(waits)
	}
	cancel(nil)
	return conn, err
}

func (l *leaving) wrap(conn redis.Conn, err error) (redis.Conn, error) {
	if err != nil || conn == nil {
		return conn, err
	}
	c := &leavingConn{pool: l}
	c.told = told{conn, c}
	return c, nil
}

// dropIdle closes the connections that the pool has at the moment.
func (l *leaving) dropIdle() {
	pool, is := l.pool.(*redis.Pool)
	if !is || l.dropping.Swap(true) {
		return
	}
	defer l.dropping.Store(false)
	// An idle one comes at once; where others have taken them meanwhile, there is not much to wait for.
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	for range pool.IdleCount() {
		conn, err := pool.GetContext(ctx)
		if err == nil {
			discard(conn)
		}
		_ = conn.Close()
	}
}

// discard keeps a pool from taking a connection back. redigo has no word for that, but does not take back one
// that has failed: nothing is to be read, and the time for it is over.
func discard(conn redis.Conn) {
	_, _ = redis.ReceiveWithTimeout(conn, time.Nanosecond)
}

// leavingConn watches the replies of a pool's connection.
type leavingConn struct {
	told
	pool    *leaving
	done    context.CancelCauseFunc // nil where nothing waits for that
	dialled *atomic.Bool            // whether it was made when it was asked for, as far as is seen; nil where nobody looked
	wrong   bool
	closed  bool
}

func (c *leavingConn) look(refused redis.Error) {
	if c.wrong || !Elsewhere(string(refused)) {
		return
	}
	c.wrong = true
	if c.pool.refused.Add(1) == 1 {
		time.AfterFunc(time.Minute, func() { c.pool.refused.Store(0) })
	}
}

func (c *leavingConn) Close() error {
	if c.done != nil {
		defer c.done(nil)
	}
	if c.wrong && !c.closed {
		c.closed = true
		discard(c.Conn)
		err := c.Conn.Close()
		c.pool.dropIdle()
		return err
	}
	c.closed = true
	return c.Conn.Close()
}

// told is a connection whose refusals somebody looks at. That is no function: a method as a value is an allocation.
type told struct {
	redis.Conn
	by interface{ look(refused redis.Error) }
}

func (c *told) tell(reply any, err error) (any, error) {
	if refused, ok := err.(redis.Error); ok {
		c.by.look(refused)
	}
	return reply, err
}

func (c *told) Do(name string, args ...any) (any, error) { return c.tell(c.Conn.Do(name, args...)) }

func (c *told) Receive() (any, error) { return c.tell(c.Conn.Receive()) }

func (c *told) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	return c.tell(redis.DoWithTimeout(c.Conn, timeout, name, args...))
}

func (c *told) ReceiveWithTimeout(timeout time.Duration) (any, error) {
	return c.tell(redis.ReceiveWithTimeout(c.Conn, timeout))
}

func (c *told) DoContext(ctx context.Context, name string, args ...any) (any, error) {
	return c.tell(redis.DoContext(c.Conn, ctx, name, args...))
}

func (c *told) ReceiveContext(ctx context.Context) (any, error) {
	return c.tell(redis.ReceiveContext(c.Conn, ctx))
}
