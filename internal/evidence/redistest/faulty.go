package redistest

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Fate is what happens to one exchange on a faulty connection.
type Fate uint8

const (
	Passes       Fate = iota
	LosesReply        // the command runs, its reply never comes, the connection breaks
	LosesCommand      // the command never arrives, the connection breaks
)

// Faulty is a pool whose connections lose commands and replies as told. It is safe for concurrent use.
type Faulty struct {
	Pool *redis.Pool
	// Fate decides about the n-th command (from 0) that passes through the pool.
	Fate func(n int, command string) Fate
	// Before, if set, is called before each command is sent.
	Before func(n int, command string)

	mu       sync.Mutex
	count    int
	commands []string
}

// GetContext implements lockmigrate.Pool.
func (f *Faulty) GetContext(ctx context.Context) (redis.Conn, error) {
	conn, err := f.Pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	return &faultyConn{Conn: conn, pool: f}, nil
}

// Commands returns the names of the commands so far.
func (f *Faulty) Commands() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.commands, " ")
}

func (f *Faulty) next(command string) Fate {
	f.mu.Lock()
	n := f.count
	f.count++
	f.commands = append(f.commands, command)
	f.mu.Unlock()
	if f.Before != nil {
		f.Before(n, command)
	}
	if f.Fate == nil {
		return Passes
	}
	return f.Fate(n, command)
}

type faultyConn struct {
	redis.Conn
	pool   *Faulty
	broken bool
}

var errBroken = errors.New("connection broken by the test")

func (c *faultyConn) Do(command string, args ...any) (any, error) {
	return c.DoWithTimeout(0, command, args...)
}

func (c *faultyConn) DoWithTimeout(timeout time.Duration, command string, args ...any) (any, error) {
	if c.broken {
		return nil, errBroken
	}
	if command == "" {
		return c.Conn.Do("")
	}
	switch c.pool.next(command) {
	case LosesReply:
		_, _ = redis.DoWithTimeout(c.Conn, timeout, command, args...)
		c.broken = true
		return nil, io.EOF
	case LosesCommand:
		c.broken = true
		return nil, io.EOF
	}
	return redis.DoWithTimeout(c.Conn, timeout, command, args...)
}

func (c *faultyConn) ReceiveWithTimeout(timeout time.Duration) (any, error) {
	if c.broken {
		return nil, errBroken
	}
	return redis.ReceiveWithTimeout(c.Conn, timeout)
}

// Idle leaves nine idle connections in a pool; those that it had come last.
func Idle(t testing.TB, pool *redis.Pool) {
	var conns [9]redis.Conn
	for i := range conns {
		conns[i] = pool.Get()
		if err := conns[i].Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
}
