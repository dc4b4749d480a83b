package waiting

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// modeOf returns what wakes the waiters at present.
func modeOf(h *Hub) Mode {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mode
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func now() protocol.Instant { return protocol.InstantOf(time.Now()) }

func newHub(t *testing.T, s *redistest.Server, change func(*Options)) *Hub {
	t.Helper()
	pool := s.Pool()
	o := Options{
		Dial:    func(ctx context.Context) (redis.Conn, error) { return pool.DialContext(ctx) },
		Runner:  &driver.PerAttempt{Pool: pool, Now: time.Now, ReplyTimeout: 5 * time.Second},
		Now:     now,
		Channel: "wake:test",
		Changed: func(Mode, error) {},
		Poll:    100 * time.Millisecond, ReplyTimeout: 5 * time.Second,
	}
	if change != nil {
		change(&o)
	}
	h := New(o)
	t.Cleanup(h.Close)
	return h
}

// reads is a machine that reads the key once: over the line, that arms the alarm.
type reads struct {
	key  string
	sent bool
	got  protocol.Reply
}

func (r *reads) Next(_ protocol.Instant, reply protocol.Reply) protocol.Step {
	if !r.sent {
		r.sent = true
		return protocol.Step{Kind: protocol.Send, Command: protocol.Command{Op: protocol.Get, Key: r.key}}
	}
	r.got = reply
	return protocol.Step{Kind: protocol.Done, Verdict: protocol.Busy}
}

func read(t *testing.T, h *Hub, key string) protocol.Reply {
	t.Helper()
	m := &reads{key: key}
	h.mu.Lock()
	front := h.queues[key].front()
	h.mu.Unlock()
	_, err := front.Advance(t.Context(), m, protocol.Reply{}, func(driver.Outcome) {})
	require.NoError(t, err)
	return m.got
}

func enter(t *testing.T, h *Hub, key string) *Turn {
	t.Helper()
	turn, err := h.Enter(t.Context(), key)
	require.NoError(t, err)
	t.Cleanup(turn.Leave)
	return turn
}

func wait(t *testing.T, turn *Turn) Event {
	t.Helper()
	e, err := turn.Wait(t.Context(), 20*time.Second)
	require.NoError(t, err)
	return e
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	s := redistest.Mini(t)
	h := newHub(t, s, nil)
	front := enter(t, h, "k")
	const n = 50
	order := make(chan int, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			turn, err := h.Enter(t.Context(), "k")
			if assert.NoError(t, err) {
				order <- i
				turn.Leave()
			}
		})
		require.Eventually(t, func() bool { return h.Waiting("k") == i+2 }, time.Minute, 50*time.Microsecond)
	}
	front.Leave()
	all.Wait()
	for i := range n {
		assert.Equal(t, i, <-order)
	}
	assert.Zero(t, h.Waiting("k"))
}

func TestCancelledWaiterLeavesAtOnceAndWakesNobody(t *testing.T) {
	s := redistest.Mini(t)
	h := newHub(t, s, nil)
	front := enter(t, h, "k")
	ctx, cancel := context.WithCancel(t.Context())
	second, third := make(chan error, 1), make(chan *Turn, 1)
	go func() { _, err := h.Enter(ctx, "k"); second <- err }()
	require.Eventually(t, func() bool { return h.Waiting("k") == 2 }, time.Minute, time.Millisecond)
	go func() { turn, _ := h.Enter(t.Context(), "k"); third <- turn }()
	require.Eventually(t, func() bool { return h.Waiting("k") == 3 }, time.Minute, time.Millisecond)
	cancel()
	assert.ErrorIs(t, <-second, context.Canceled)
	assert.Equal(t, 2, h.Waiting("k"))
	assert.Empty(t, third, "the front still stands there")
	front.Leave()
	(<-third).Leave()
	assert.Zero(t, h.Waiting("k"))
}

func TestModes(t *testing.T) {
	s := redistest.Mini(t)
	h := newHub(t, s, nil)
	assert.Equal(t, Idle, modeOf(h))
	turn := enter(t, h, "k")
	assert.Equal(t, Messages, modeOf(h), "the embedded server has no tracking")
	turn.Leave()

	refused := errors.New("nobody may listen")
	h = newHub(t, s, func(o *Options) {
		o.Dial, o.Poll = func(context.Context) (redis.Conn, error) { return nil, refused }, time.Millisecond
	})
	turn = enter(t, h, "k")
	assert.Equal(t, Polling, modeOf(h))
	assert.Equal(t, Timer, wait(t, turn).Kind)

	h = newHub(t, redistest.Real(t), nil)
	enter(t, h, "k")
	assert.Equal(t, Tracking, modeOf(h))
}

// Every way in which a stranger changes the key is heard, once for each reading.
func TestTrackingHearsStrangers(t *testing.T) {
	s := redistest.Real(t)
	h := newHub(t, s, nil)
	turn := enter(t, h, "k")
	for _, command := range [][]any{
		{"SETNX", "k", "v"}, {"GETSET", "k", "w"}, {"DEL", "k"},
		{"SET", "k", "v", "PX", 50}, {"PEXPIRE", "k", 30}, nil, // and expiry
	} {
		read(t, h, "k")
		if command != nil {
			s.Do(command[0].(string), command[1:]...)
		}
		start := time.Now()
		assert.Equal(t, Changed, wait(t, turn).Kind, "%v", command)
		t.Logf("%v after %v", command, time.Since(start))
	}
	read(t, h, "k")
	s.Do("FLUSHALL")
	assert.Equal(t, Reset, wait(t, turn).Kind)
}

func TestBrokenConnectionsAreReplaced(t *testing.T) {
	s := redistest.Real(t)
	h := newHub(t, s, nil)
	turn := enter(t, h, "k")
	for _, kind := range []string{"pubsub", "normal"} {
		s.Do("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
		for wait(t, turn).Kind != Reset { // told that it broke; a change from the turn before may be told late
		}
		require.Eventually(t, func() bool { return modeOf(h) == Tracking }, time.Minute, time.Millisecond)
		for read(t, h, "k"); ; read(t, h, "k") {
			s.Do("SET", "k", "v")
			if e := wait(t, turn); e.Kind == Changed {
				break
			}
		}
	}
}

// A listener that is silent and does not answer a ping is given up.
func TestSilentListenerIsGivenUp(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		h := newHub(t, s, nil)
		turn := enter(t, h, "k")
		first := h.places[""].listener
		thaw, began := s.Freeze(), time.Now()
		for wait(t, turn).Kind != Reset {
		}
		assert.LessOrEqual(t, time.Since(began), ping+5*time.Second)
		thaw()
		time.Sleep(10 * time.Second)
		assert.Equal(t, Messages, modeOf(h))
		h.mu.Lock()
		defer h.mu.Unlock()
		assert.NotSame(t, first, h.places[""].listener)
	})
}

func TestConnectionsAreClosedWhenNobodyWaits(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("hub")
		h := newHub(t, s, func(o *Options) { o.Dial = route.Pool().DialContext })
		enter(t, h, "k").Leave()
		time.Sleep(linger - time.Second)
		assert.Equal(t, 2, route.Open())
		time.Sleep(2 * time.Second)
		assert.Zero(t, route.Open())
		assert.Equal(t, Idle, modeOf(h))
		enter(t, h, "k")
		assert.Equal(t, Messages, modeOf(h))
	})
}
