package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// wrong is one thing done wrong: in the commands as they are sent and answered, or in what the holder is told.
type wrong struct {
	tellsNobody bool
	call        func(c *call) (any, error)
}

func (w *wrong) deaf() bool { return w != nil && w.tellsNobody }

// wrongs are the implementations that the kit must find.
var wrongs = map[string]*wrong{
	"wrapped": {}, // nothing: a right one, over a pool that somebody has wrapped
	"release-without-compare": {call: on("bridge_release", func(c *call) (any, error) {
		return int64(1), c.also("DEL", c.get("key"), c.get("guard"))
	})},
	"no-deadline": {tellsNobody: true},
	"near-value": {call: func(c *call) (any, error) { // its true expiry, 3 s ahead when it is first seen
		if i := c.at("value"); i >= 0 && strings.HasPrefix(c.script, "bridge_") {
			c.pool.mu.Lock()
			defer c.pool.mu.Unlock()
			value := fmt.Sprint(c.args[i])
			if c.pool.near[value] == "" {
				c.pool.near[value] = strconv.FormatInt(time.Now().Add(3*time.Second).UnixMilli(), 10)
			}
			c.args[i] = c.pool.near[value]
		}
		return c.pass()
	}},
	"no-settle": {call: func(c *call) (any, error) {
		if c.script == "bridge_settle" {
			return []any{int64(1), int64(0), int64(0), []byte{}}, nil
		}
		reply, err := c.pass()
		if row, ok := reply.([]any); ok && c.script == "bridge_acquire" && row[0] == int64(2) {
			row[0] = int64(1)
		}
		return reply, err
	}},
	"no-withdrawal": {call: on("bridge_settle", func(c *call) (any, error) {
		reply, err := c.pass()
		if row, ok := reply.([]any); ok && row[0] == int64(-1) {
			return []any{int64(1), int64(0), int64(0), []byte{}}, c.takes()
		}
		return reply, err
	})},
	"renewal-without-guard": {call: on("bridge_renew", func(c *call) (any, error) {
		return []any{int64(1)}, c.also("PEXPIRE", c.get("key"), c.get("ttl"))
	})},
	"renewal-unconditional": {call: on("bridge_renew", func(c *call) (any, error) { return []any{int64(1)}, c.takes() })},
	"no-renewal":            {call: on("bridge_renew", func(*call) (any, error) { return []any{int64(1)}, nil })},
	"ttl-missing": {call: on("bridge_acquire", func(c *call) (any, error) {
		reply, err := c.pass()
		return reply, errors.Join(err, c.also("PERSIST", c.get("key")))
	})},
	"no-grace": {call: on("bridge_acquire", func(c *call) (any, error) {
		i := c.at("rules")
		_, others, _ := strings.Cut(fmt.Sprint(c.args[i]), " ")
		c.args[i] = "0 " + others
		return c.pass()
	})},
	"takes-foreign": {call: on("bridge_acquire", func(c *call) (any, error) {
		reply, err := c.pass()
		if row, ok := reply.([]any); ok && row[0] == int64(-1) && c.also("DEL", c.get("key")) == nil {
			return c.pass()
		}
		return reply, err
	})},
	"lost-reply-is-refused": {call: on("bridge_acquire", func(c *call) (any, error) {
		reply, err := c.pass()
		var refused redis.Error
		if err != nil && !errors.As(err, &refused) {
			return []any{int64(0), int64(0), int64(1000), []byte("5"), int64(0)}, nil
		}
		return reply, err
	})},
	"no-place-in-queue": {call: on("bridge_acquire", func(c *call) (any, error) {
		if i := c.at("entry"); i >= 0 {
			c.args = c.args[:i]
		}
		return c.pass()
	})},
	"fence-falls": {call: on("bridge_acquire", func(c *call) (any, error) {
		reply, err := c.pass()
		if row, ok := reply.([]any); ok && row[0].(int64) > 0 {
			row[1] = int64(1e15) - time.Now().UnixMilli()
		}
		return reply, err
	})},
	"never-reports": {call: func(c *call) (any, error) { // it asks for the record, acts by it, and tells nobody
		if c.script != "stage_join" {
			return c.unbound()
		}
		reports := fmt.Sprint(c.get("not_after")) != "0"
		c.args[c.at("not_after")] = 0
		reply, err := c.pass()
		if row, ok := reply.([]any); ok && reports && len(row) > 2 {
			row[0], row[2] = int64(1), row[1].(int64)+2000
		}
		return reply, err
	}},
	"ignores-moves": {call: func(c *call) (any, error) { // it reports once, and acts by what it was told then
		if c.script != "stage_join" {
			return c.unbound()
		}
		c.pool.mu.Lock()
		defer c.pool.mu.Unlock()
		if row := slices.Clone(c.pool.joined); len(row) > 0 && row[0] == int64(1) {
			row[1], row[2] = time.Now().UnixMilli(), time.Now().Add(2*time.Second).UnixMilli()
			return row, nil
		}
		reply, err := c.pass()
		c.pool.joined, _ = reply.([]any)
		return reply, err
	}},
	"no-bound": {call: func(c *call) (any, error) { return c.unbound() }},
	"own-clock": {call: func(c *call) (any, error) {
		if i := c.at("not_after"); i >= 0 && fmt.Sprint(c.args[i]) != "0" {
			c.args[i] = time.Now().Add(2 * time.Second).UnixMilli()
		}
		return c.pass()
	}},
	"loads-scripts-once": {call: func(c *call) (any, error) {
		if c.name == "EVAL" && strings.HasPrefix(c.script, "bridge_") {
			c.pool.mu.Lock()
			defer c.pool.mu.Unlock()
			if c.pool.loaded[c.script] {
				return nil, redis.Error("ERR the script has gone")
			}
			c.pool.loaded[c.script] = true
		}
		return c.pass()
	}},
}

// on does something wrong in place of one script.
func on(script string, f func(c *call) (any, error)) func(*call) (any, error) {
	return func(c *call) (any, error) {
		if c.script == script {
			return f(c)
		}
		return c.pass()
	}
}

// call is one command.
type call struct {
	*wrongConn
	name   string
	script string // its name, for EVALSHA and EVAL
	named  *scripts.Script
	args   []any
}

func (c *call) pass() (any, error) { return redis.DoWithTimeout(c.Conn, c.timeout, c.name, c.args...) }

// also sends another command.
func (c *call) also(name string, args ...any) error {
	_, err := c.Conn.Do(name, args...)
	return err
}

// at is where a script's key or argument stands among the arguments; -1 where it has none of that name.
func (c *call) at(name string) int {
	if c.named == nil {
		return -1
	}
	n, _ := strconv.Atoi(fmt.Sprint(c.args[1]))
	is := func(a scripts.Argument) bool { return a.Name == name }
	if i := slices.IndexFunc(c.named.Keys, is); i >= 0 && i < n {
		return 2 + i
	}
	if i := slices.IndexFunc(c.named.Args, is); i >= 0 && 2+n+i < len(c.args) {
		return 2 + n + i
	}
	return -1
}

func (c *call) get(name string) any { return c.args[c.at(name)] }

// takes sets key and guard, whatever they hold.
func (c *call) takes() error {
	return errors.Join(c.also("SET", c.get("key"), c.get("value"), "PX", c.get("ttl")), c.also("SET", c.get("guard"), c.get("value"), "PX", c.get("ttl")))
}

// unbound sends a command that may act whenever it comes.
func (c *call) unbound() (any, error) {
	if i := c.at("not_after"); i >= 0 && !strings.HasPrefix(c.script, "stage_") {
		c.args[i] = 0
	}
	return c.pass()
}

// wrongPool hands out connections that do it wrong.
type wrongPool struct {
	own   *redis.Pool
	reply time.Duration // less than the Locker waits for a reply
	wrong *wrong

	mu     sync.Mutex
	joined []any             // the record's first answer
	loaded map[string]bool   // scripts
	near   map[string]string // the true expiry that stands for a value
}

func (p *wrongPool) GetContext(ctx context.Context) (redis.Conn, error) {
	conn, err := p.own.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	return p.does(conn), nil
}

// Dial implements lockmigrate.Dialer.
func (p *wrongPool) Dial(ctx context.Context) (redis.Conn, error) {
	conn, err := p.own.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return p.does(conn), nil
}

func (p *wrongPool) does(conn redis.Conn) redis.Conn {
	return &wrongConn{Conn: conn, pool: p, timeout: p.reply, replies: make(chan outcome, 4096), closed: make(chan struct{})}
}

// wrongConn runs each command when it is sent, so that it can be another one.
type wrongConn struct {
	redis.Conn
	pool    *wrongPool
	timeout time.Duration
	listens bool // what it receives are messages
	replies chan outcome
	closed  chan struct{}
	closing sync.Once
}

type outcome struct {
	reply any
	err   error
}

func (c *wrongConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *wrongConn) Do(name string, args ...any) (any, error) {
	call := &call{wrongConn: c, name: strings.ToUpper(name), args: slices.Clone(args)}
	if (call.name == "EVALSHA" || call.name == "EVAL") && len(args) > 1 {
		file := scripts.NameOf(fmt.Sprint(args[0]))
		call.script = strings.TrimSuffix(file, ".lua")
		if i := slices.IndexFunc(scripts.All(), func(s *scripts.Script) bool { return s.Name == file }); i >= 0 {
			call.named = scripts.All()[i]
		}
	}
	if name == "" || c.pool.wrong.call == nil {
		return call.pass()
	}
	return c.pool.wrong.call(call)
}

func (c *wrongConn) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	c.timeout = timeout
	return c.Do(name, args...)
}

func (c *wrongConn) Send(name string, args ...any) error {
	if name == "SUBSCRIBE" { // before anybody reads
		c.listens = true
	}
	if c.listens {
		return c.Conn.Send(name, args...)
	}
	reply, err := c.Do(name, args...)
	c.replies <- outcome{reply, err}
	return nil
}

func (c *wrongConn) Flush() error {
	if c.listens {
		return c.Conn.Flush()
	}
	return nil
}

func (c *wrongConn) ReceiveWithTimeout(timeout time.Duration) (any, error) {
	if c.listens {
		return redis.ReceiveWithTimeout(c.Conn, timeout)
	}
	select {
	case a := <-c.replies:
		return a.reply, a.err
	case <-c.closed:
		return nil, errors.New("closed")
	}
}
