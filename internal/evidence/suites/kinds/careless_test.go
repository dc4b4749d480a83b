package kinds

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// careless is a caller whose own code, an Observer or a pool, panics or ends its goroutine in the n-th call that is made on that goroutine.
type careless struct {
	caller atomic.Value // the goroutine's name
	n      atomic.Int64 // calls until then
	fails  func()
	failed atomic.Bool
}

func (c *careless) called() {
	if name, _ := c.caller.Load().(string); name == goroutine() && c.n.Add(-1) == 0 {
		c.failed.Store(true)
		c.fails()
	}
}

func (c *careless) observe(lockmigrate.Event) { c.called() }

func goroutine() string {
	text := make([]byte, 64)
	name, _, _ := bytes.Cut(text[:runtime.Stack(text, false)], []byte(" ["))
	return string(name)
}

// TestCarelessCallers: whatever a caller's code does in a call on its own goroutine, nothing stays counted, held or hanging: the
// key is free at once, Close returns, and a namespace knows nobody any more.
func TestCarelessCallers(t *testing.T) {
	waysToFail := map[string]func(){"panics": func() { panic("careless") }, "ends its goroutine": runtime.Goexit}
	for _, k := range kinds {
		for way, fails := range waysToFail {
			t.Run(k.name+" "+way, func(t *testing.T) {
				redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
					calls := int64(1)
					for failed := true; failed; calls++ {
						failed = carelessTurn(t, s, k, calls, fails)
					}
					assert.Greater(t, calls, int64(4), "calls on the caller's goroutine")
				})
			})
		}
	}
}

// carelessTurn takes turns in which the n-th call fails, and tells whether there was one.
func carelessTurn(t *testing.T, s *redistest.Server, k kind, n int64, fails func()) bool {
	t.Helper()
	s.Do("FLUSHALL")
	c := &careless{fails: fails}
	var pools []lockmigrate.Pool
	for db := range 3 {
		pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
			wire := func(ctx context.Context, _, _ string) (net.Conn, error) { return s.Wire(ctx) }
			return redis.DialContext(ctx, "tcp", "", redis.DialContextFunc(wire), redis.DialDatabase(db))
		}}
		t.Cleanup(func() { _ = pool.Close() })
		pools = append(pools, &onPool{careless: c, own: pool})
	}
	locker := k.open(t, pools, terms{ttl: 20 * time.Second, reply: time.Second, told: c.observe, server: s})
	what := fmt.Sprint("call ", n)
	turn := func(work func(ctx context.Context)) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			c.caller.Store(goroutine())
			work(context.Background())
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal(what, ": a turn hangs")
		}
	}
	c.n.Store(n)
	turn(func(ctx context.Context) {
		held, err := locker.TryAcquire(ctx, key)
		require.NoError(t, err)
		defer func() { _ = held.Release(ctx) }()
		_ = held.Renew(ctx)
	})
	turn(func(ctx context.Context) { _ = locker.Do(ctx, key, func(context.Context) error { return nil }) })
	began := time.Now()
	c.n.Store(-1)
	turn(func(ctx context.Context) {
		held, err := locker.Acquire(ctx, key)
		if assert.NoError(t, err, what) {
			assert.NoError(t, held.Release(ctx), what)
		}
	})
	assert.Less(t, time.Since(began), 10*time.Second, "%s: the key stays held", what)
	closed := make(chan struct{})
	go func() { _ = locker.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Fatal(what, ": Close hangs")
	}
	if stage, in := inNamespace[k.name]; in {
		view, err := (&stages.Store{Pool: s.Pool(), Namespace: stage.String(), ReplyTimeout: 5 * time.Second}).Show(t.Context())
		require.NoError(t, err)
		assert.Empty(t, view.Members, "%s: an attempt is counted for ever", what)
	}
	return c.failed.Load()
}

// inNamespace are the kinds that are members, with their namespaces.
var inNamespace = map[string]lockmigrate.Stage{"compat at stage legacy": lockmigrate.StageLegacy, "compat at stage modern": lockmigrate.StageModern, "handover at stage both": lockmigrate.StageBoth}

// onPool is one of the pools of a careless caller.
type onPool struct {
	*careless
	own *redis.Pool
}

func (p *onPool) GetContext(ctx context.Context) (redis.Conn, error) {
	p.called()
	return p.own.GetContext(ctx)
}

func (p *onPool) Dial(ctx context.Context) (redis.Conn, error) {
	p.called()
	return p.own.DialContext(ctx)
}

// TestANilContextIsRefused by every method of every kind.
func TestANilContextIsRefused(t *testing.T) {
	each(t, func(k kind) bool { return k.name != "modern, an owner's" }, terms{}, func(s *scene) { // context.WithValue refuses it there
		var none context.Context
		_, err := s.TryAcquire(none, key)
		assert.ErrorContains(s, err, "the context is nil")
		_, err = s.Acquire(none, key)
		assert.ErrorContains(s, err, "the context is nil")
		assert.ErrorContains(s, s.Do(none, key, func(context.Context) error { return nil }), "the context is nil")
		held := s.hold()
		assert.ErrorContains(s, held.Renew(none), "the context is nil")
		assert.ErrorContains(s, held.Release(none), "the context is nil")
		assert.NoError(s, held.Release(s.Context()))
	})
}
