package driver

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// busyWriter returns a connection whose writer is stuck in the write of the first command.
func busyWriter(t *testing.T) (f *fake, l *Shared, first <-chan error) {
	t.Helper()
	f = newFake()
	f.gate = make(chan struct{})
	l = over(t, f, nil)
	first = ask(t.Context(), l, "FIRST")
	redistest.Await(t, "the writer is busy", func() bool { return f.sent() == 1 })
	return f, l, first
}

func TestCallerThatLeavesTheQueueHasNotSent(t *testing.T) {
	f, l, first := busyWriter(t)

	ctx, cancel := context.WithCancel(t.Context())
	second := ask(ctx, l, "SECOND")
	queuedUp(t, l, 1)
	cancel()
	err := <-second
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, err, context.Canceled)

	ctx, cancel = context.WithCancel(t.Context())
	ran := make(chan Outcome, 1)
	go func() {
		m := &protocol.ModernAcquire{Key: "k", Token: "token", TTL: time.Minute}
		out, err := l.Advance(ctx, m, protocol.Reply{}, func(Outcome) { t.Error("nothing to finish") })
		assert.ErrorIs(t, err, context.Canceled)
		ran <- out
	}()
	queuedUp(t, l, 2)
	cancel()
	require.Equal(t, protocol.Failed, (<-ran).Step.Verdict)

	fourth := ask(t.Context(), l, "FOURTH")
	queuedUp(t, l, 3)
	f.gate <- struct{}{}
	f.gate <- struct{}{}
	f.replies <- "OK"
	f.replies <- "OK"
	require.NoError(t, errors.Join(<-first, <-fourth))
	assert.Equal(t, []string{"FIRST[]", "FOURTH[]"}, f.got)
}

// A command whose messages are to precede its answer has a PING before it, in the same write, of whose
// answer nobody hears.
func TestAnswerLast(t *testing.T) {
	f := newFake()
	l := over(t, f, nil)
	wanted := wire.Plain("RELEASE")
	wanted.AnswerLast = true
	const n = 32
	for i := range n {
		f.replies <- "PONG"
		f.replies <- int64(i)
		reply, err := l.Request(t.Context(), wanted)
		require.NoError(t, err)
		require.EqualValues(t, i, reply.Int)
	}
	require.Len(t, f.got, 2*n)
	for i, command := range f.got {
		require.Equal(t, [...]string{"PING[]", "RELEASE[]"}[i%2], command)
	}
	require.Equal(t, n, f.flushes, "one write for both")
}

// The caller of such a command leaves: what stays behind disturbs nobody.
func TestAnswerLastWithdrawn(t *testing.T) {
	f, l, first := busyWriter(t)
	ctx, cancel := context.WithCancel(t.Context())
	wanted := wire.Plain("RELEASE")
	wanted.AnswerLast = true
	left := make(chan error, 1)
	go func() {
		_, err := l.Request(ctx, wanted)
		left <- err
	}()
	queuedUp(t, l, 2)
	cancel()
	require.ErrorIs(t, <-left, ErrNotSent)
	last := ask(t.Context(), l, "LAST")
	queuedUp(t, l, 3)
	f.gate <- struct{}{}
	f.gate <- struct{}{}
	f.replies <- "OK"
	f.replies <- "PONG"
	f.replies <- "OK"
	require.NoError(t, <-first)
	require.NoError(t, <-last)
	assert.Equal(t, []string{"FIRST[]", "PING[]", "LAST[]"}, f.got)
}

func TestQueueIsBounded(t *testing.T) {
	f := newFake()
	l := over(t, f, func(o *SharedOptions) { o.Bound = 2 })
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() { assert.NoError(t, <-ask(t.Context(), l, "A")) })
	}
	redistest.Await(t, "two are under way", func() bool { return f.sent() == 2 })
	k := l.only.link.Load()
	redistest.Await(t, "three wait", func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.waiting == 3 })
	ctx := redistest.Bounded(t, time.Millisecond)
	require.ErrorIs(t, <-ask(ctx, l, "B"), ErrNotSent)
	for range 5 {
		f.replies <- "OK"
	}
	all.Wait()
	assert.Len(t, f.got, 5)
}

// What was sent is answered with Silence; what was queued goes over the next connection.
func TestBrokenConnection(t *testing.T) {
	f, spare := newFake(), newFake()
	f.gate = make(chan struct{})
	conns := []*fake{f, spare}
	downs := make(chan error, 2)
	l := open(t, nil, func(o *SharedOptions) {
		o.Down = func(_ string, _ redis.Conn, err error) { downs <- err }
		o.Dial = func(context.Context) (redis.Conn, error) { c := conns[0]; conns = conns[1:]; return c, nil }
	})
	sent := ask(t.Context(), l, "SENT")
	redistest.Await(t, "the writer is busy", func() bool { return f.sent() == 1 })
	waiting := ask(t.Context(), l, "WAITING")
	queuedUp(t, l, 1)
	f.replies <- io.ErrUnexpectedEOF

	err := <-sent
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, <-downs, io.ErrUnexpectedEOF)
	spare.replies <- "OK"
	require.NoError(t, <-waiting)
	assert.Equal(t, []string{"WAITING[]"}, spare.got)
}

// A reply that nobody asked for means that requests and replies do not match any more.
func TestSpuriousReplyEndsTheConnection(t *testing.T) {
	f := newFake()
	f.rogue = true
	downs := make(chan error, 1)
	l := over(t, f, func(o *SharedOptions) { o.Down = func(_ string, _ redis.Conn, err error) { downs <- err } })
	require.NoError(t, l.Connect(t.Context(), ""))
	f.replies <- "OK"
	assert.ErrorContains(t, <-downs, "nobody asked")
}

func TestIdleConnectionIsPinged(t *testing.T) {
	f := newFake()
	downs := make(chan error, 1)
	l := over(t, f, func(o *SharedOptions) {
		o.Ping, o.ReplyTimeout = 5*time.Millisecond, 20*time.Millisecond
		o.Down = func(_ string, _ redis.Conn, err error) { downs <- err }
	})
	f.replies <- "PONG"
	f.replies <- "PONG"
	require.NoError(t, l.Connect(t.Context(), ""))
	assert.ErrorContains(t, <-downs, "no reply within")
	assert.Equal(t, "PING[] PING[] PING[]", strings.Join(f.got, " "))
}

func TestAttemptsToConnect(t *testing.T) {
	var dials atomic.Int32
	refused := errors.New("refused")
	up := newFake()
	l := open(t, nil, func(o *SharedOptions) {
		o.Retry = 30 * time.Millisecond
		o.Dial = func(context.Context) (redis.Conn, error) {
			if dials.Add(1) == 1 {
				return nil, refused
			}
			return up, nil
		}
	})
	err := <-ask(t.Context(), l, "A")
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, err, refused)
	// What comes next waits for the next attempt, as long as its context lasts: the error of the last one says
	// nothing about what that will find.
	start := time.Now()
	short := redistest.Bounded(t, time.Millisecond)
	require.ErrorIs(t, <-ask(short, l, "A"), context.DeadlineExceeded)
	for range 20 {
		up.replies <- "OK"
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { assert.NoError(t, <-ask(t.Context(), l, "A")) })
	}
	all.Wait()
	assert.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond, "after a pause")
	assert.EqualValues(t, 2, dials.Load())
}

func TestSetup(t *testing.T) {
	s := redistest.Mini(t)
	l := open(t, s.Dial, func(o *SharedOptions) {
		o.Setup = func(_ string, c redis.Conn) error { _, err := c.Do("SELECT", 3); return err }
	})
	_, err := l.Request(t.Context(), wire.Plain("SET", "k", "v"))
	require.NoError(t, err)
	s.Mini.Select(3)
	assert.True(t, s.Mini.Exists("k"))

	ended := make(chan struct{})
	l = open(t, s.Dial, func(o *SharedOptions) {
		o.ReplyTimeout = 20 * time.Millisecond
		o.Setup = func(_ string, c redis.Conn) error { defer close(ended); _, err := c.Receive(); return err }
	})
	_, err = l.Request(t.Context(), wire.Plain("SET", "k", "v"))
	require.ErrorIs(t, err, ErrNotSent)
	<-ended
}

// Commands, replies and connections get lost at random while callers come and go. Whatever happens, no
// caller is told something that is not so: the server's count is at least what was acknowledged, and at
// most that plus what may have run.
func TestNothingIsMiscounted(t *testing.T) {
	redistest.EachTCP(t, func(t *testing.T, s *redistest.Server) {
		proxy := redistest.NewProxy(t, s)
		l := open(t, redistest.Dialer(proxy.Addr), func(o *SharedOptions) { o.Bound = 16; o.ReplyTimeout = time.Second })
		stop := make(chan struct{})
		var trouble, all sync.WaitGroup
		trouble.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(3 * time.Millisecond): // the rhythm of the trouble, not a wait for anything
				}
				if i%4 != 3 || s.Mini != nil {
					proxy.Cut()
				} else {
					s.Do("CLIENT", "PAUSE", 10)
				}
			}
		})
		var yes, unknown, no atomic.Int64
		for g := range 24 {
			all.Go(func() {
				for i := range 150 {
					ctx, cancel := context.WithCancel(t.Context())
					if (g+i)%3 == 0 {
						timer := time.AfterFunc(time.Duration(i)*2*time.Microsecond, cancel)
						defer timer.Stop()
					}
					_, err := l.Request(ctx, wire.Plain("INCR", "n"))
					switch {
					case err == nil:
						yes.Add(1)
					case errors.Is(err, ErrNotSent):
						no.Add(1)
					default:
						unknown.Add(1)
					}
					cancel()
				}
			})
		}
		all.Wait()
		close(stop)
		trouble.Wait()
		// What is still under way is ahead of this in the pipeline, or will never come.
		reply, err := l.Request(t.Context(), wire.Plain("INCRBY", "n", 0))
		for errors.Is(err, io.EOF) || reply.Kind == protocol.Silence {
			reply, err = l.Request(t.Context(), wire.Plain("INCRBY", "n", 0))
		}
		require.NoError(t, err)
		t.Logf("%d acknowledged, %d unknown, %d not sent; the server counted %d", yes.Load(), unknown.Load(), no.Load(), reply.Int)
		assert.GreaterOrEqual(t, reply.Int, yes.Load())
		assert.LessOrEqual(t, reply.Int, yes.Load()+unknown.Load())
		assert.Positive(t, unknown.Load(), "the test is to reach the rare state")
		assert.EqualValues(t, 24*150, yes.Load()+unknown.Load()+no.Load())
	})
}

// silent is a machine that asks several times, whatever becomes of its questions.
type silent struct {
	t    *testing.T
	asks int
	next atomic.Int32 // calls of Next; two goroutines in it at once are the fault
	busy atomic.Bool
}

func (m *silent) Next(_ protocol.Instant, _ protocol.Reply) protocol.Step {
	if !m.busy.CompareAndSwap(false, true) {
		m.t.Error("two runs of one machine at once")
	}
	defer m.busy.Store(false)
	if int(m.next.Add(1)) > m.asks {
		return protocol.Step{Kind: protocol.Done, Verdict: protocol.Unsure}
	}
	return protocol.Step{Kind: protocol.Send, Command: protocol.Command{Op: protocol.CompareDel, Key: "k", Value: "v"}}
}

// A run whose caller has left may outlast the time that it is given. It is told once, when the machine has ended.
func TestRunThatOutlastsItsBoundIsToldOnce(t *testing.T) {
	l := over(t, nil, func(o *SharedOptions) {
		o.ReplyTimeout = 20 * time.Millisecond
		o.Dial = func(context.Context) (redis.Conn, error) { return newFake(), nil }
	})
	ctx, cancel := context.WithCancel(t.Context())
	m := &silent{t: t, asks: 12} // each question takes a ReplyTimeout, and a bound is four
	told := make(chan int32, 16)
	time.AfterFunc(5*time.Millisecond, cancel)
	_, err := l.Advance(ctx, m, protocol.Reply{}, func(Outcome) { told <- m.next.Load() })
	require.ErrorIs(t, err, context.Canceled)
	assert.EqualValues(t, m.asks+1, <-told, "told when the machine has ended")
	l.Close()
	l.Wait()
	assert.Empty(t, told, "told once")
}
