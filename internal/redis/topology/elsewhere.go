package topology

import (
	"context"
	"errors"
	"strings"
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

// Dialler returns how to make connections beside those of a pool; nil where it cannot, and for a pool of several servers.
func Dialler(pool lockmigrate.Pool) func(ctx context.Context) (redis.Conn, error) {
	var dial func(ctx context.Context) (redis.Conn, error)
	switch p := pool.(type) {
	case lockmigrate.Dialer:
		dial = p.Dial
	case *redis.Pool:
		if dial = p.DialContext; dial == nil {
			dial = func(context.Context) (redis.Conn, error) { return p.Dial() }
		}
	default:
		return nil
	}
	return func(ctx context.Context) (redis.Conn, error) {
		conn, err := dial(ctx)
		if conn == nil && err == nil {
			err = errNoConn
		}
		return conn, err
	}
}

// errNoConn is the error of a Dial that returns neither a connection nor an error.
var errNoConn = errors.New("the pool's Dial returned neither a connection nor an error")

// Over is an exchange over a connection of a pool, and once more over another one where Again gives one.
func Over(ctx context.Context, pool lockmigrate.Pool, exchange func(conn redis.Conn) (any, error)) (any, error) {
	conn, err := pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := exchange(conn)
	if fresh := Again(ctx, pool, conn, err); fresh != nil {
		conn = fresh
		reply, err = exchange(conn)
	}
	_ = conn.Close() // it has done what it was for
	return reply, err
}

// Again gives a pool's connection up whose server has said by err that it is the wrong one, and the idle ones with it: they lead to the same
// server, and nothing but the answer to a command tells. It returns one that was just dialled, which has the last word: the address means its
// server now. It returns nil where err is the command's answer, and where no connection can be made. Pools of several servers see to that
// themselves.
func Again(ctx context.Context, pool lockmigrate.Pool, conn redis.Conn, err error) redis.Conn {
	var refused redis.Error
	dial := Dialler(pool)
	if dial == nil || !errors.As(err, &refused) || !Elsewhere(string(refused)) {
		return nil
	}
	discard(conn)
	if e, is := pool.(*ending); is {
		pool = e.pool
	}
	if p, is := pool.(*redis.Pool); is {
		dropIdle(p)
	}
	fresh, err := dial(ctx)
	if err != nil {
		return nil // the answer says why, as far as is known
	}
	_ = conn.Close() // the pool drops it
	return fresh
}

// dropIdle closes the connections that the pool has at the moment.
func dropIdle(pool *redis.Pool) {
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

// Ending returns a pool whose waits for a connection end with life, with its cause: a pool may be exhausted for ever. A pool of several servers
// bounds such waits by itself.
func Ending(pool lockmigrate.Pool, life context.Context) lockmigrate.Pool {
	if RouterOf(pool) != nil {
		return pool
	}
	return &ending{pool, life}
}

type ending struct {
	pool lockmigrate.Pool
	life context.Context
}

// Dial implements lockmigrate.Dialer.
func (e *ending) Dial(ctx context.Context) (redis.Conn, error) { return Dialler(e.pool)(ctx) }

func (e *ending) GetContext(ctx context.Context) (redis.Conn, error) {
	if p, is := e.pool.(*redis.Pool); is && !p.Wait {
		return p.GetContext(ctx) // it waits for a dial at most
	}
	waits, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.life, func() { cancel(context.Cause(e.life)) })()
	conn, err := e.pool.GetContext(waits)
	if err != nil && context.Cause(ctx) == nil && context.Cause(waits) != nil {
		err = context.Cause(waits)
	}
	return conn, err
}
