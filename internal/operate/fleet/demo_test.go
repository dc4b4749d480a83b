package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// servers are a demo's two servers.
func servers(t *testing.T, act time.Duration) (o Options, acts *[]Act) {
	t.Helper()
	acts = new([]Act)
	o = Options{Act: act, Told: func(a Act) { *acts = append(*acts, a) }, Event: func(Event) {}}
	for range 2 {
		server, err := StartServer()
		require.NoError(t, err)
		e, err := endpoint.Parse("redis://"+server.Addr(), endpoint.TLSFiles{})
		require.NoError(t, err)
		t.Cleanup(server.Close)
		o.End, o.Other = e, o.End
	}
	return o, acts
}

func nothingLeft(t *testing.T, o Options) {
	t.Helper()
	for _, end := range []*endpoint.Endpoint{o.End, o.Other} {
		conn, err := end.Dial(context.Background())
		require.NoError(t, err)
		keys, err := redis.Strings(conn.Do("KEYS", "*"))
		require.NoError(t, errors.Join(err, conn.Close()))
		assert.Empty(t, keys)
	}
}

// TestOverlapsAreSeen: where every turn is told to take longer than the lease, the old scheme does not exclude, and the referee says so.
func TestOverlapsAreSeen(t *testing.T) {
	r := NewReferee()
	inside := make(chan int, 100)
	r.Entered = func(_ *Worker, beside []*Worker) { inside <- len(beside) }
	ctx, cancel := context.WithCancel(context.Background())
	for _, name := range []string{"a", "b", "c"} {
		w := &Worker{Name: name, Key: func() string { return "k" }, Hold: func() time.Duration { return 20 * time.Millisecond }, Think: func() time.Duration { return 0 },
			Take: func(context.Context, string) (Held, error) { return open{}, nil }}
		w.Start(ctx, r, 0)
		defer func() { _ = w.Wait(context.Background()) }()
	}
	defer cancel()
	for beside := 0; beside == 0; {
		beside = <-inside
	}
	assert.Positive(t, r.Since().Overlaps)
}

// open is a lock that is always held, by everybody.
type open struct{}

func (open) Context() context.Context      { return context.Background() }
func (open) Release(context.Context) error { return nil }

// TestWhoRetiresGivesBack: a worker that alone is told to stop gives its lock back, also on a server that takes a second to answer: an old client's
// value, left behind, would keep everybody out at stage modern.
func TestWhoRetiresGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		given := make(slow, 1)
		w := &Worker{Key: func() string { return "k" }, Hold: func() time.Duration { return 0 }, Think: func() time.Duration { return time.Hour },
			Take: func(context.Context, string) (Held, error) { return given, nil }}
		w.Start(t.Context(), NewReferee(), 0)
		synctest.Wait() // it gives back
		w.Stop()
		require.NoError(t, w.Wait(t.Context()))
		assert.NoError(t, <-given)
	})
}

// slow is a lock that is given back in a second.
type slow chan error

func (slow) Context() context.Context { return context.Background() }
func (s slow) Release(ctx context.Context) error {
	s <- lifetime.Sleep(ctx, time.Second)
	return nil
}

// spoiled plays a demo in which somebody writes to its key at the beginning of an act.
func spoiled(t *testing.T, act, command string, value func() any) error {
	o, _ := servers(t, 250*time.Millisecond)
	defer nothingLeft(t, o)
	o.Event = func(e Event) {
		if e.Act != act {
			return
		}
		act = "" // once
		conn, err := o.End.Dial(context.Background())
		require.NoError(t, err)
		records, err := redis.Strings(conn.Do("KEYS", "*lockmigrate-demo-*"))
		require.NoError(t, err)
		_, id, _ := strings.Cut(records[0], "lockmigrate-demo-")
		_, err = conn.Do(command, "lockmigrate-demo:"+id[:12]+":orders", value())
		require.NoError(t, errors.Join(err, conn.Close()))
	}
	return Demo(context.Background(), o)
}

// TestStoryThatNobodyCanPlay: what keeps the members out is the error.
func TestStoryThatNobodyCanPlay(t *testing.T) {
	assert.ErrorContains(t, spoiled(t, "legacy", "LPUSH", func() any { return "x" }), "a key holds another type than this command works with")
}

// TestWhoLosesARaceAtLast: an old client's GETSET, late, puts its expiry on the key just before it retires. It is over before tokens only are taken.
func TestWhoLosesARaceAtLast(t *testing.T) {
	defer func(whole []act) { story = whole }(story)
	story = []act{{stage: story[2].stage, cast: story[4].cast}, story[4]} // no old client deletes it
	assert.NoError(t, spoiled(t, "modern", "GETSET", func() any { return time.Now().Add(lease / 4).UnixMilli() }))
}

func TestInterruptedStoryLeavesNothing(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) }) // after the servers and the pools are closed
	o, acts := servers(t, time.Hour)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(250*time.Millisecond, cancel)
	assert.ErrorIs(t, Demo(ctx, o), context.Canceled)
	assert.Empty(t, *acts)
	nothingLeft(t, o)
}

func TestTTLsPassAndNothingIsLeftRunning(t *testing.T) {
	defer goleak.VerifyNone(t)
	s, err := StartServer()
	require.NoError(t, err)
	defer s.Close()
	conn, err := redis.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer conn.Close()

	_, err = conn.Do("SET", "k", "v", "PX", 50)
	require.NoError(t, err)
	began := time.Now()
	require.Eventually(t, func() bool {
		n, err := redis.Int(conn.Do("EXISTS", "k"))
		return err == nil && n == 0
	}, time.Minute, time.Millisecond)
	require.GreaterOrEqual(t, time.Since(began), 40*time.Millisecond, "the TTL passed too fast")
}
