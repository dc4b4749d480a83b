package driver

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// TestClientAndServerWorkAtOnce: the callers whom one read has woken do not all go into one write. Else the server would wait
// for the last of them, and all of them for the server. Nor does each of many write alone.
func TestClientAndServerWorkAtOnce(t *testing.T) {
	for _, procs := range []int{1, 2} {
		for _, callers := range []int{4, 8, 16, 64, 256} {
			t.Run(fmt.Sprintf("%d processors, %d callers", procs, callers), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				writes := writesForARound(t, callers)
				if procs == 1 { // several run the callers at once: how many meet in a write is chance
					require.GreaterOrEqual(t, writes, 4.0, "writes for each round")
				}
				require.LessOrEqual(t, writes, max(7, float64(callers)/8), "writes for each round") // each alone: as many as callers
			})
		}
	}
}

// writesForARound is how many writes callers make who are all answered at once, as by a server that was slow, and ask again.
func writesForARound(t *testing.T, callers int) float64 {
	const rounds = 50
	f := newFake()
	l := over(t, f, nil)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range rounds {
				_, err := l.Request(t.Context(), wire.Plain("COMMAND"))
				assert.NoError(t, err)
			}
		})
	}
	before := 0
	for round := range rounds {
		require.Eventually(t, func() bool { return f.sent() == (round+1)*callers }, time.Minute, 100*time.Microsecond)
		if round == rounds/2 {
			before = f.writes()
		}
		for range callers {
			f.replies <- "OK"
		}
	}
	all.Wait()
	return float64(f.writes()-before) / (rounds/2 - 1)
}

// TestAServerWithNothingToDoIsAskedAtOnce: the first command after a pause goes out alone, however many callers there were lately.
// While the server works on it, a quarter of the crowd makes the next write.
func TestAServerWithNothingToDoIsAskedAtOnce(t *testing.T) {
	for _, procs := range []int{1, 2} {
		f := newFake()
		k := newLink(&server{owner: NewShared(SharedOptions{Dial: f.dial})})
		k.conn, k.procs, k.crowd, k.timer = f, procs, 16, time.NewTimer(time.Hour) // no writer runs
		writes := func(commands int) int {
			for range commands {
				ok, err := k.submit(t.Context(), ping())
				require.True(t, ok && err == nil)
			}
			return f.writes()
		}
		require.Equal(t, 1, writes(1))
		require.Equal(t, 1, writes(3))
		require.Equal(t, 2, writes(1))
		require.Equal(t, 5, f.sent())
	}
}

func ping() *call {
	c := (&calls{}).get()
	c.request.Name = "PING"
	return c
}

// TestWritesStayApart: the replies to several writes come at once. The callers of the first write again before those of the second
// are woken. So each quarter makes one write: the server has something to do while the others ask.
func TestWritesStayApart(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, callers := range []int{4, 8} {
		// A reply that comes while the others are still handed out makes one write more now and then.
		require.InDelta(t, 4, writesForARound(t, callers), 0.4, "writes for each round of %d callers", callers)
	}
}

// TestHowLongAReadLooks: a caller that is alone wants no more than a wake-up costs. Several on several processors want the reply
// before their threads sleep; on one processor they would wait for the look. Among many the next reply is there already.
func TestHowLongAReadLooks(t *testing.T) {
	for _, c := range []struct {
		procs int
		crowd uint32
		want  time.Duration
	}{{1, 1, lookAlone}, {1, 64, lookAlone}, {1, 65, 0}, {2, 1, lookAlone}, {2, 2, lookShared}, {2, 64, lookShared}, {2, 65, 0}} {
		f := newFake()
		k := newLink(&server{owner: NewShared(SharedOptions{Dial: f.dial})})
		k.conn, k.procs, k.timer = f, c.procs, time.NewTimer(time.Hour) // neither reader nor writer runs
		require.Zero(t, k.due(), "no reply is due")
		ok, err := k.submit(t.Context(), ping())
		require.True(t, ok && err == nil)
		k.crowd = c.crowd
		require.Equal(t, c.want, k.due(), "%+v", c)
	}
}

// TestFewOverARawConnection: each command is written, beside a server that is looked for and beside one that answers too late for
// that. Callers come and go, so that many writes are not complete. A command that nobody wrote would stay without a reply.
func TestFewOverARawConnection(t *testing.T) {
	s := redistest.Real(t)
	slow := redistest.NewProxy(t, s)
	slow.Before(func([]string) { time.Sleep(200 * time.Microsecond) }) // longer than a look
	for _, addr := range []string{s.Addr, slow.Addr} {
		for _, procs := range []int{1, 2} {
			few(t, addr, procs)
		}
	}
}

func few(t *testing.T, addr string, procs int) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	l := open(t, redistest.Dialer(addr), func(o *SharedOptions) {
		o.ReplyTimeout = time.Minute // else a command that was left behind goes over the next connection
		o.Dial = func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", addr, redis.DialContextFunc(rawconn.DialContext))
		}
	})
	var all sync.WaitGroup
	end := time.Now().Add(200 * time.Millisecond)
	for g := range 8 {
		all.Go(func() {
			key := fmt.Sprint(addr, procs, g)
			for i := 0; time.Now().Before(end); i++ {
				reply, err := l.Do(t.Context(), protocol.Command{Op: protocol.GetSet, Key: key, Value: fmt.Sprint(i)})
				if !assert.NoError(t, err) || i > 0 && !assert.Equal(t, fmt.Sprint(i-1), reply.Text, "each gets its own reply") {
					return
				}
				if i%(g+2) == 0 {
					time.Sleep(time.Duration(g*137) * time.Microsecond) // a caller that has something else to do
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.Fail(t, "a command was left behind")
	}
}

func TestBatchWithinABound(t *testing.T) {
	redistest.EachTCP(t, func(t *testing.T, s *redistest.Server) {
		l := open(t, s.Dial, func(o *SharedOptions) { o.Bound = 64 })
		s.Do("SET", "k", "token")
		commands := make([]protocol.Command, 500)
		for i := range commands {
			commands[i] = protocol.Command{Op: protocol.Get, Key: "k"}
			if i%2 == 1 {
				commands[i] = protocol.Command{Op: protocol.CompareDel, Key: "absent", Value: "token"}
			}
		}
		next := 0
		l.Batch(t.Context(), commands, func(i int, reply protocol.Reply, err error) {
			assert.Equal(t, next, i)
			next++
			assert.NoError(t, err)
			want := protocol.Reply{Kind: protocol.Text, Text: "token"}
			if i%2 == 1 {
				want = protocol.Reply{Kind: protocol.Integer}
			}
			assert.Equal(t, want, reply)
		})
		assert.Equal(t, len(commands), next)
	})
}

// Callers who fill the pipeline, and those who queue up for a place, keep no batch waiting.
func TestBatchHasRoomOfItsOwn(t *testing.T) {
	f := newFake()
	l := over(t, f, func(o *SharedOptions) { o.Bound = 8 })
	var callers []<-chan error
	for range 12 {
		callers = append(callers, ask(t.Context(), l, "OTHERS"))
	}
	redistest.Await(t, "the pipeline is full", func() bool { return f.sent() == 8 })
	k := l.only.link.Load()
	redistest.Await(t, "the others wait for room", func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.waiting == 4 })
	done := make(chan int)
	go func() {
		answers := 0
		l.Batch(t.Context(), twentyGets()[:6], func(_ int, reply protocol.Reply, err error) {
			assert.NoError(t, err)
			answers++
		})
		done <- answers
	}()
	redistest.Await(t, "a batch is sent as far as half the bound", func() bool { return f.sent() == 12 })
	for range 18 {
		f.replies <- "OK"
	}
	assert.Equal(t, 6, <-done)
	for _, caller := range callers {
		assert.NoError(t, <-caller)
	}
}

func TestCancelledBatch(t *testing.T) {
	f := newFake()
	l := over(t, f, func(o *SharedOptions) { o.Bound = 8 })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		redistest.Await(t, "the window is under way", func() bool { return f.sent() == 4 })
		f.replies <- "OK"
		redistest.Await(t, "one more", func() bool { return f.sent() == 5 })
		cancel()
	}()
	var good, without, never int
	l.Batch(ctx, twentyGets(), func(_ int, _ protocol.Reply, err error) {
		switch {
		case err == nil:
			good++
		case errors.Is(err, ErrNotSent):
			never++
		default:
			without++
		}
	})
	assert.Equal(t, [3]int{1, 4, 15}, [3]int{good, without, never})
	_ = f.Close()
}

func twentyGets() []protocol.Command {
	commands := make([]protocol.Command, 20)
	for i := range commands {
		commands[i] = protocol.Command{Op: protocol.Get, Key: "k"}
	}
	return commands
}
