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

	"github.com/lockmigrate/lockmigrate"
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
	"release-without-compare": {call: on("bridge_release", func(c *call) (any, error) {
		_, _ = c.conn.Do("DEL", c.get("key"), c.get("guard"))
		return int64(1), nil
	})},
	"no-deadline": {tellsNobody: true},
	"near-value": {call: func(c *call) (any, error) { // its true expiry
		if i := c.at("value"); i >= 0 && strings.HasPrefix(c.script, "bridge_") {
			c.args[i] = near(fmt.Sprint(c.args[i]))
		}
		return c.pass()
	}},
	"wrapped": {}, // nothing: a right one, over a pool that somebody has wrapped
	"no-withdrawal": {call: on("bridge_settle", func(c *call) (any, error) {
		reply, err := c.pass()
		if row, ok := reply.([]any); ok && row[0] == int64(-1) {
			_, _ = c.conn.Do("SET", c.get("key"), c.get("value"), "PX", c.get("ttl"))
			_, _ = c.conn.Do("SET", c.get("guard"), c.get("value"), "PX", c.get("ttl"))
			return []any{int64(1), int64(0), int64(0), []byte{}}, nil
		}
		return reply, err
	})},
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
	"renewal-without-guard": {call: on("bridge_renew", func(c *call) (any, error) {
		_, err := c.conn.Do("PEXPIRE", c.get("key"), c.get("ttl"))
		return []any{int64(1)}, err
	})},
	"renewal-unconditional": {call: on("bridge_renew", func(c *call) (any, error) {
		_, err := c.conn.Do("SET", c.get("key"), c.get("value"), "PX", c.get("ttl"))
		_, _ = c.conn.Do("SET", c.get("guard"), c.get("value"), "PX", c.get("ttl"))
		return []any{int64(1)}, err
	})},
	"no-renewal": {call: on("bridge_renew", func(*call) (any, error) { return []any{int64(1)}, nil })},
	"ttl-missing": {call: on("bridge_acquire", func(c *call) (any, error) {
		reply, err := c.pass()
		_, _ = c.conn.Do("PERSIST", c.get("key"))
		return reply, err
	})},
	"no-grace": {call: on("bridge_acquire", func(c *call) (any, error) {
		if i := c.at("rules"); i >= 0 {
			words := strings.Fields(fmt.Sprint(c.args[i]))
			words[0] = "0"
			c.args[i] = strings.Join(words, " ")
		}
		return c.pass()
	})},
	"takes-foreign": {call: on("bridge_acquire", func(c *call) (any, error) {
		reply, err := c.pass()
		if row, ok := reply.([]any); ok && row[0] == int64(-1) {
			_, _ = c.conn.Do("DEL", c.get("key"))
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
			row[1] = int64(1e15) - time.Now().UnixMicro()/1000
		}
		return reply, err
	})},
	"never-reports": {call: func(c *call) (any, error) { // it reads the record, acts by it, and tells nobody
		if c.script == "stage_join" {
			return c.asIfJoined()
		}
		return c.unbound()
	}},
	"ignores-moves": {call: func(c *call) (any, error) { // it reports once, and acts by what it was told then
		if c.script != "stage_join" {
			return c.unbound()
		}
		if last := c.pool.joined(); last != nil && last[0] == int64(1) {
			return again(last), nil
		}
		reply, err := c.pass()
		if row, ok := reply.([]any); ok {
			c.pool.keep(row)
		}
		return reply, err
	}},
	"no-bound": {call: func(c *call) (any, error) { return c.unbound() }},
	"own-clock": {call: func(c *call) (any, error) {
		if i := c.at("not_after"); i >= 0 && fmt.Sprint(c.args[i]) != "0" {
			c.args[i] = time.Now().Add(2 * time.Second).UnixMilli()
		}
		return c.pass()
	}},
	"no-script-no-lock": {call: func(c *call) (any, error) { // it loads its scripts when it starts, and never again
		if c.script != "" && !strings.HasPrefix(c.script, "stage_") && c.name == "EVAL" && c.pool.loaded(c.script) {
			return nil, redis.Error("ERR the script has gone")
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
	pool   *wrongPool
	conn   redis.Conn
	name   string
	script string // its name, for EVALSHA and EVAL
	named  *scripts.Script
	args   []any
}

func (c *call) pass() (any, error) { return c.conn.Do(c.name, c.args...) }

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

// unbound sends a command that may act whenever it comes.
func (c *call) unbound() (any, error) {
	if i := c.at("not_after"); i >= 0 && !strings.HasPrefix(c.script, "stage_") {
		c.args[i] = 0
	}
	return c.pass()
}

// asIfJoined asks for the record only, and makes the answer to a report of it.
func (c *call) asIfJoined() (any, error) {
	asks := fmt.Sprint(c.get("not_after")) == "0"
	c.args[c.at("not_after")] = 0
	reply, err := c.pass()
	if row, ok := reply.([]any); ok && !asks && len(row) > 2 {
		row[0], row[2] = int64(1), row[1].(int64)+2000
	}
	return reply, err
}

// again is an answer of the record as if it had come now.
func again(row []any) []any {
	row = slices.Clone(row)
	row[1], row[2] = time.Now().UnixMilli(), time.Now().Add(2*time.Second).UnixMilli()
	return row
}

// near is a true expiry in the place of a far one: the same for the same value, and 3 s ahead when it is first seen.
func near(value string) string {
	nearMu.Lock()
	defer nearMu.Unlock()
	if nears[value] == "" {
		nears[value] = strconv.FormatInt(time.Now().Add(3*time.Second).UnixMilli(), 10)
	}
	return nears[value]
}

var (
	nearMu sync.Mutex
	nears  = map[string]string{}
)

// wrongPool hands out connections that do it wrong.
type wrongPool struct {
	lockmigrate.Pool
	wrong *wrong
}

var (
	poolMu sync.Mutex
	kept   = map[*wrongPool][]any{}
	seen   = map[loading]bool{}
)

func (p *wrongPool) joined() []any  { poolMu.Lock(); defer poolMu.Unlock(); return kept[p] }
func (p *wrongPool) keep(row []any) { poolMu.Lock(); defer poolMu.Unlock(); kept[p] = row }

// loaded tells whether a script was loaded over the pool before, and loads it.
func (p *wrongPool) loaded(script string) bool {
	poolMu.Lock()
	defer poolMu.Unlock()
	defer func() { seen[loading{p, script}] = true }()
	return seen[loading{p, script}]
}

type loading struct {
	*wrongPool
	script string
}

func (p *wrongPool) GetContext(ctx context.Context) (redis.Conn, error) {
	conn, err := p.Pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	return &wrongConn{Conn: conn, pool: p}, nil
}

// wrongConn runs each command when it is sent, so that it can be another one.
type wrongConn struct {
	redis.Conn
	pool    *wrongPool
	timeout time.Duration
	replies []any
	errs    []error
}

func (c *wrongConn) Do(name string, args ...any) (any, error) {
	if name == "" {
		return c.Conn.Do(name)
	}
	call := &call{pool: c.pool, conn: c.Conn, name: strings.ToUpper(name), args: slices.Clone(args)}
	if (call.name == "EVALSHA" || call.name == "EVAL") && len(args) > 1 {
		file := scripts.NameOf(fmt.Sprint(args[0]))
		call.script = strings.TrimSuffix(file, ".lua")
		for _, s := range scripts.All() {
			if s.Name == file {
				call.named = s
			}
		}
	}
	if c.timeout > 0 {
		call.conn = timed{c.Conn, c.timeout}
	}
	if c.pool.wrong.call == nil {
		return call.pass()
	}
	return c.pool.wrong.call(call)
}

// timed bounds each reply.
type timed struct {
	redis.Conn
	timeout time.Duration
}

func (t timed) Do(name string, args ...any) (any, error) {
	return redis.DoWithTimeout(t.Conn, t.timeout, name, args...)
}

func (c *wrongConn) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	c.timeout = timeout
	return c.Do(name, args...)
}

func (c *wrongConn) DoContext(_ context.Context, name string, args ...any) (any, error) {
	return c.Do(name, args...)
}

func (c *wrongConn) Send(name string, args ...any) error {
	reply, err := c.Do(name, args...)
	c.replies, c.errs = append(c.replies, reply), append(c.errs, err)
	return nil
}

func (c *wrongConn) Flush() error { return nil }

func (c *wrongConn) Receive() (any, error) {
	if len(c.replies) == 0 {
		return c.Conn.Receive()
	}
	reply, err := c.replies[0], c.errs[0]
	c.replies, c.errs = c.replies[1:], c.errs[1:]
	return reply, err
}

func (c *wrongConn) ReceiveWithTimeout(time.Duration) (any, error) { return c.Receive() }

func (c *wrongConn) ReceiveContext(context.Context) (any, error) { return c.Receive() }
