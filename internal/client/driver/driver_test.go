package driver

import (
	"context"
	"errors"
	"net"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newDriver(pool interface {
	GetContext(context.Context) (redis.Conn, error)
}) *PerAttempt {
	return &PerAttempt{Pool: pool, Now: time.Now, ReplyTimeout: time.Second}
}

func taking() *protocol.LegacyAcquire {
	return &protocol.LegacyAcquire{Dialect: protocol.JedisMS, Key: "k", Lease: time.Minute, Poll: time.Millisecond}
}

func mustNotAbandon(t *testing.T) func(Outcome) {
	return func(o Outcome) { t.Errorf("abandoned with %+v, though its caller stayed", o) }
}

func TestNothingIsSentForAContextThatHasEnded(t *testing.T) {
	s := redistest.Mini(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("left")
	cancel(reason)
	out, err := newDriver(s.Pool()).Advance(ctx, taking(), protocol.Reply{}, mustNotAbandon(t))
	assert.ErrorIs(t, err, reason)
	assert.Equal(t, protocol.Failed, out.Step.Verdict, "certainly not acquired")
	assert.Zero(t, s.Mini.TotalConnectionCount())
}

// A lock can be given back over the pool after Close, with or without a context that ends.
func TestAClosedDriverRunsOnItsCallers(t *testing.T) {
	s := redistest.Mini(t)
	d := newDriver(s.Pool())
	d.Close()
	out, err := d.Advance(t.Context(), taking(), protocol.Reply{}, mustNotAbandon(t))
	require.NoError(t, err)
	assert.Equal(t, protocol.Acquired, out.Step.Verdict)
}

func TestRefusalIsOneCallersOwn(t *testing.T) {
	s := redistest.Mini(t)
	l := open(t, s.Dial, nil)
	s.Do("HSET", "h", "f", "v")
	reply, err := l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "h"})
	assert.Error(t, err)
	assert.Equal(t, protocol.Fault, reply.Kind)
	assert.Contains(t, reply.Text, "WRONGTYPE")
	reply, err = l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "absent"})
	assert.NoError(t, err)
	assert.Equal(t, protocol.Nil, reply.Kind)
}

func TestClosedLine(t *testing.T) {
	s := redistest.Mini(t)
	l := open(t, s.Dial, nil)
	require.NoError(t, l.Connect(t.Context(), ""))
	l.Close()
	_, err := l.Request(t.Context(), wire.Request{Name: "PING"})
	assert.ErrorIs(t, err, ErrClosed)
}

// A connection that is given up while the contexts of its callers end, as at every loss of a hub's connection: each run is told
// what became of it once, and all of them before both the connection and the callers are through.
func TestCloseBesideCallersThatLeave(t *testing.T) {
	const callers = 8
	for range 500 {
		f := newFake()
		l := over(t, f, nil)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var left, told atomic.Int32
		for range callers {
			all.Go(func() {
				m := &protocol.ModernAcquire{Key: "k", Token: "token", TTL: time.Minute}
				out, err := l.Advance(ctx, m, protocol.Reply{}, func(o Outcome) {
					assert.NotEqual(t, protocol.Acquired, o.Step.Verdict, "nobody has answered")
					told.Add(1)
				})
				if err != nil && out.Step.Verdict == protocol.Unsure {
					left.Add(1)
				}
			})
		}
		for f.sent() < callers {
			time.Sleep(10 * time.Microsecond) // polling
		}
		go leave()
		l.Close()
		l.Wait()
		all.Wait()
		assert.Equal(t, left.Load(), told.Load())
	}
}

func TestAClosedGroupRefuses(t *testing.T) {
	var g Background
	g.Close()
	assert.False(t, g.Begin())
	assert.False(t, g.Go(func() { t.Error("it ran") }))
	here := false
	g.GoOrDo(func() { here = true })
	assert.True(t, here, "on the caller's goroutine")
	g.Close()
}

func TestAnEndTooMany(t *testing.T) {
	var g Background
	assert.True(t, g.Begin())
	g.End()
	assert.Panics(t, g.End)
}

// Close waits for what was counted in, and for what that starts while Close waits.
func TestCloseWaits(t *testing.T) {
	var g Background
	assert.True(t, g.Begin())
	closed, started, finish := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { g.Close(); close(closed) }()
	for g.Begin() { // until it has been closed
		g.End()
		runtime.Gosched()
	}
	var order []string
	g.Fork(func() {
		close(started)
		<-finish
		order = append(order, "the last task")
	})
	<-started
	g.Extend()
	g.End()
	g.End()
	select {
	case <-closed:
		t.Error("Close has not waited")
	default:
	}
	close(finish)
	<-closed
	assert.Equal(t, []string{"the last task"}, order)
}

// Whatever races with Close either runs before Close returns, or is refused.
func TestCloseBesideStarts(t *testing.T) {
	for range 300 {
		var g Background
		var starters, closers sync.WaitGroup
		var over atomic.Bool
		var started, ran atomic.Int64
		for range 3 {
			starters.Go(func() {
				task := func() {
					assert.False(t, over.Load(), "a task ran after Close")
					ran.Add(1)
				}
				for g.Go(task) {
					started.Add(1)
				}
			})
		}
		for range 2 {
			closers.Go(func() {
				g.Close()
				over.Store(true)
			})
		}
		closers.Wait()
		starters.Wait()
		assert.Equal(t, started.Load(), ran.Load())
	}
}

// longLength is a length that redigo would allocate before it has seen a byte of the value.
var longLength = regexp.MustCompile(`[*$][+-]?[0-9]{5,}`)

// FuzzReplies answers with any bytes. Every caller gets a reply or an error, and the line ends.
func FuzzReplies(f *testing.F) {
	f.Add([]byte("+OK\r\n:1\r\n$3\r\nabc\r\n*2\r\n:1\r\n$-1\r\n-ERR no\r\n"))
	f.Add([]byte("-NOSCRIPT No matching script.\r\n-NOSCRIPT again\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n"))
	f.Add([]byte("+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+one too many\r\n"))
	f.Add([]byte("*-1\r\n$5\r\nab"))
	f.Fuzz(func(t *testing.T, replies []byte) {
		if longLength.Match(replies) {
			t.Skip("redigo allocates what a length says, before anything of it has come; see SECURITY.md")
		}
		l := NewShared(SharedOptions{ReplyTimeout: time.Second, Dial: func(context.Context) (redis.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				go func() { // the server reads whatever comes, and hangs up after its last word
					buf := make([]byte, 4096)
					for {
						if _, err := theirs.Read(buf); err != nil {
							return
						}
					}
				}()
				_, _ = theirs.Write(replies)
				_ = theirs.Close()
			}()
			return redis.NewConn(ours, 0, 0), nil
		}})
		defer func() { l.Close(); l.Wait() }()
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				ctx := redistest.Bounded(t, 500*time.Millisecond)
				reply, err := l.Do(ctx, protocol.Command{Op: protocol.CompareDel, Key: "k", Value: "token"})
				if err == nil && reply.Kind == protocol.Silence || err != nil && reply.Kind != protocol.Silence && reply.Kind != protocol.Fault {
					t.Errorf("%+v with error %v", reply, err)
				}
			})
		}
		all.Wait()
	})
}
