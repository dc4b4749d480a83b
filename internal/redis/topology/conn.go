package topology

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// GetContext returns a connection that finds its server with each command: by the command's key, or, for
// a command without one, the server of the command before. It follows redirections and outlives
// failovers; nothing is dialled before the first command.
//
// The context bounds the finding and dialling of servers until the first reply.
//
// What Send writes goes to one server, and redirections are not followed there. A failure to reach a
// server is a *NotRun.
func (r *Router) GetContext(ctx context.Context) (redis.Conn, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	return &conn{router: r, ctx: ctx}, nil
}

type conn struct {
	router *Router
	ctx    context.Context // bounds the finding and dialling
	bound  redis.Conn      // to addr; nil before the first command
	addr   string
	used   bool // a command has had its reply
	multi  bool // in a transaction
	closed bool
}

var errConnClosed = errors.New("the connection is closed")

func (c *conn) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	return c.unbind()
}

func (c *conn) Err() error {
	if c.closed {
		return errConnClosed
	}
	return nil
}

func (c *conn) unbind() error {
	bound := c.bound
	c.bound, c.multi = nil, false
	if bound == nil {
		return nil
	}
	return bound.Close()
}

// bind takes a connection to a server.
func (c *conn) bind(ctx context.Context, addr string) error {
	if c.bound != nil && c.addr == addr && c.bound.Err() == nil {
		return nil
	}
	_ = c.unbind()
	pool, err := c.router.pool(addr)
	if err != nil {
		return err
	}
	bound, err := pool.GetContext(ctx)
	if err != nil {
		return err
	}
	c.bound, c.addr = bound, addr
	return nil
}

func (c *conn) Do(name string, args ...any) (any, error) {
	return c.do(name, args, func(bound redis.Conn) (any, error) { return bound.Do(name, args...) })
}

func (c *conn) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	return c.do(name, args, func(bound redis.Conn) (any, error) { return redis.DoWithTimeout(bound, timeout, name, args...) })
}

func (c *conn) DoContext(ctx context.Context, name string, args ...any) (any, error) {
	return c.do(name, args, func(bound redis.Conn) (any, error) { return redis.DoContext(bound, ctx, name, args...) })
}

func (c *conn) do(name string, args []any, exchange func(redis.Conn) (any, error)) (any, error) {
	if c.closed {
		return nil, errConnClosed
	}
	key, keyed := KeyOf(name, args)
	if c.bound != nil && (!keyed || c.multi) {
		// It belongs to the commands before it: the end of a transaction, WAIT.
		reply, err := exchange(c.bound)
		return c.done(name, reply, err)
	}
	ctx := c.ctx
	if c.used && ctx.Err() != nil { // the connection is kept beyond it, as one of redigo's pool may be
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), findTimeout)
		defer cancel()
		ctx = bounded
	}
	redirects := Begin(c.router, key)
	for {
		addr, asking, err := redirects.Next(ctx)
		if err == nil {
			err = c.bind(ctx, addr)
		}
		if err != nil {
			again, pause := redirects.Unreachable()
			if !again || errors.Is(err, ErrClosed) || !Sleep(ctx, pause) {
				return nil, &NotRun{err}
			}
			continue
		}
		if asking {
			if strings.EqualFold(name, "WATCH") {
				// A watch does not survive the move of its key: wait for the end of the move.
				if !Sleep(ctx, 50*time.Millisecond) || time.Now().After(redirects.until) {
					return nil, &NotRun{errors.New("the key is being moved to another server")}
				}
				continue
			}
			if err := c.bound.Send("ASKING"); err != nil {
				_ = c.unbind()
				continue
			}
		}
		reply, err := exchange(c.bound)
		if refused, ok := err.(redis.Error); ok {
			if again, pause := redirects.Refused(string(refused)); again && Sleep(ctx, pause) {
				continue
			}
		}
		if _, refused := err.(redis.Error); err != nil && !refused && Idempotent(name) && !c.multi {
			_, _ = c.done(name, reply, err)
			if again, pause := redirects.Unreachable(); again && Sleep(ctx, pause) {
				continue
			}
			return nil, err
		}
		return c.done(name, reply, err)
	}
}

// Idempotent tells that a command may run twice: it changes nothing but its connection.
func Idempotent(name string) bool { return idempotent[strings.ToUpper(name)] }

var idempotent = map[string]bool{
	"GET": true, "HGET": true, "EXISTS": true, "PTTL": true, "TTL": true, "TIME": true, "PING": true, "WATCH": true,
}

// done notes what a reply means for the connection.
func (c *conn) done(name string, reply any, err error) (any, error) {
	c.used = true
	switch {
	case strings.EqualFold(name, "MULTI"):
		c.multi = err == nil
	case strings.EqualFold(name, "EXEC"), strings.EqualFold(name, "DISCARD"):
		c.multi = false
	}
	if c.bound != nil && c.bound.Err() != nil {
		if _, refused := err.(redis.Error); err != nil && !refused {
			c.router.Stale(c.addr)
		}
		_ = c.unbind()
	}
	return reply, err
}

func (c *conn) Send(name string, args ...any) error {
	if c.closed {
		return errConnClosed
	}
	key, keyed := KeyOf(name, args)
	if c.bound == nil || keyed && !c.multi {
		addr, err := c.router.Locate(c.ctx, key)
		if err == nil {
			err = c.bind(c.ctx, addr)
		}
		if err != nil {
			return &NotRun{err}
		}
	}
	if strings.EqualFold(name, "MULTI") {
		c.multi = true
	}
	return c.bound.Send(name, args...)
}

func (c *conn) Flush() error {
	if c.bound == nil {
		return nil
	}
	return c.bound.Flush()
}

func (c *conn) Receive() (any, error) { return c.ReceiveWithTimeout(0) }

func (c *conn) ReceiveWithTimeout(timeout time.Duration) (any, error) {
	if c.closed || c.bound == nil {
		return nil, errConnClosed
	}
	if timeout == 0 {
		return c.bound.Receive()
	}
	return redis.ReceiveWithTimeout(c.bound, timeout)
}

func (c *conn) ReceiveContext(ctx context.Context) (any, error) {
	if c.closed || c.bound == nil {
		return nil, errConnClosed
	}
	return redis.ReceiveContext(c.bound, ctx)
}

// keyless are the commands whose first argument is no key. Others are taken to begin with theirs.
var keyless = map[string]bool{
	"": true, "PING": true, "ECHO": true, "TIME": true, "SCRIPT": true, "MULTI": true, "EXEC": true, "DISCARD": true,
	"UNWATCH": true, "WAIT": true, "CLIENT": true, "INFO": true, "PUBLISH": true, "SUBSCRIBE": true, "UNSUBSCRIBE": true,
	"PSUBSCRIBE": true, "PUNSUBSCRIBE": true, "ROLE": true, "CONFIG": true, "ACL": true, "CLUSTER": true, "COMMAND": true,
	"DBSIZE": true, "SCAN": true, "KEYS": true, "FLUSHALL": true, "FLUSHDB": true, "MONITOR": true, "LATENCY": true,
	"AUTH": true, "HELLO": true, "SELECT": true, "ASKING": true, "READONLY": true, "READWRITE": true, "SLOWLOG": true,
	"MEMORY": true, "DEBUG": true, "LASTSAVE": true, "QUIT": true, "RESET": true, "FUNCTION": true,
}

// KeyOf returns the key that decides where a command goes.
func KeyOf(name string, args []any) (key string, keyed bool) {
	name = strings.ToUpper(name)
	at := 0
	switch {
	case keyless[name]:
		return "", false
	case name == "EVAL" || name == "EVALSHA":
		if len(args) < 2 || text(args[1]) == "0" {
			return "", false
		}
		at = 2
	}
	if at >= len(args) {
		return "", false
	}
	return text(args[at]), true
}

func text(arg any) string {
	switch v := arg.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case int:
		return itoa(int64(v))
	case int64:
		return itoa(v)
	case redis.Argument:
		return text(v.RedisArg())
	default:
		return ""
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
