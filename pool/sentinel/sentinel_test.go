package sentinel

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newPool(t *testing.T, g *redistest.SentinelGroup) *Pool {
	t.Helper()
	// On a busy machine a sentinel may do nothing for half a minute (its "tilt" mode).
	pool, err := New(Options{Addrs: g.Addrs(), Master: g.Name, Patience: 2 * time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pool.Close()) })
	return pool
}

// The master dies while locks are held and waited for, and when it is back it is a replica. No write had
// to be lost: the replica was in step.
func TestFailover(t *testing.T) {
	g := redistest.NewSentinels(t, 1, 3, "--min-replicas-to-write", "0")
	pool := newPool(t, g)
	ctx := redistest.Bounded(t, 5*time.Minute) // a sentinel in tilt takes its time
	var mode redistest.Mode
	m, err := modern.New(pool, modern.Options{TTL: 5 * time.Minute, FenceTTL: time.Hour, Observer: mode.Observe})
	require.NoError(t, err)
	defer m.Close()
	l, err := legacy.New(pool, legacy.Options{Lease: 5 * time.Minute, Poll: 20 * time.Millisecond, ReplyTimeout: time.Second})
	require.NoError(t, err)
	defer l.Close()

	held, err := m.Acquire(ctx, "modern")
	require.NoError(t, err)
	old, err := l.Acquire(ctx, "legacy")
	require.NoError(t, err)
	waiting := []<-chan error{redistest.BeginTurn(ctx, m.Acquire, "modern"), redistest.BeginTurn(ctx, l.Acquire, "legacy")}
	before := g.Master()
	redistest.Await(t, "a waiter", func() bool { return mode.Is() == "tracking" })
	conn := before.Conn()
	_, err = conn.Do("SET", "marker", 1)
	require.NoError(t, err)
	acknowledged, err := redis.Int(conn.Do("WAIT", 1, 30_000)) // this write, and all before it
	require.NoError(t, err)
	require.Equal(t, 1, acknowledged, "the replica is in step")
	before.Kill()
	g.AwaitFailover(before)

	require.NoError(t, held.Renew(ctx), "held over the failover")
	require.NoError(t, held.Context().Err())
	require.NoError(t, held.Release(ctx))
	require.NoError(t, old.Release(ctx))
	for _, over := range waiting {
		require.NoError(t, <-over, "every waiter resumes")
	}
	k, err := m.Acquire(ctx, "modern")
	require.NoError(t, err)
	require.NoError(t, k.Release(ctx))
	assert.Greater(t, k.Fence(), held.Fence(), "fencing tokens go on rising")
}

// A master is demoted behind the backs of connected clients: READONLY ends their connections, and they go
// where the sentinels say.
func TestReadOnlyFromStaleConnections(t *testing.T) {
	g := redistest.NewSentinels(t, 1, 3)
	pool := newPool(t, g)
	ctx := redistest.Bounded(t, 5*time.Minute) // a sentinel in tilt takes its time
	m, err := modern.New(pool, modern.Options{TTL: 5 * time.Second})
	require.NoError(t, err)
	defer m.Close()
	l, err := legacy.New(pool, legacy.Options{Lease: time.Minute})
	require.NoError(t, err)
	defer l.Close()
	for _, name := range []string{"a", "b"} { // connected
		k, err := m.Acquire(ctx, name)
		require.NoError(t, err)
		require.NoError(t, k.Release(ctx))
	}
	var stop atomic.Bool
	var working sync.WaitGroup
	var turns atomic.Int64
	for range 4 {
		working.Go(func() {
			for !stop.Load() {
				err := m.Do(ctx, "busy", func(context.Context) error { turns.Add(1); return nil })
				if err != nil && !errors.Is(err, lockmigrate.ErrLost) && !errors.Is(err, lockmigrate.ErrUnknownOutcome) {
					t.Errorf("a command failed: %v", err)
				}
			}
		})
	}
	g.Failover()
	began := map[*redistest.Server]int{}
	for _, s := range g.Servers {
		began[s] = scriptsRunBy(s)
	}
	redistest.Await(t, "turns on the new master", func() bool {
		now := g.Master() // a busy machine may have it replaced in its turn
		return scriptsRunBy(now) > began[now]+50
	})
	stop.Store(true)
	working.Wait()
	assert.Positive(t, turns.Load())
	// The old master takes writes until it is told that it is none: what it was the last to take is lost.
	redistest.Await(t, "an old lock on the new master", func() bool {
		err := l.Do(ctx, "old", func(context.Context) error { return nil })
		require.False(t, err != nil && !errors.Is(err, lockmigrate.ErrLost) && !errors.Is(err, lockmigrate.ErrUnknownOutcome), err)
		return err == nil
	})
}

// scriptsRunBy counts the scripts that clients sent to a server; a replica is sent what they did instead.
func scriptsRunBy(s *redistest.Server) int {
	info, _ := redis.String(s.Try("INFO", "commandstats"))
	_, after, _ := strings.Cut(info, "cmdstat_evalsha:calls=")
	number, _, _ := strings.Cut(after, ",")
	n, _ := strconv.Atoi(number)
	return n
}

func TestNobodyKnowsTheMaster(t *testing.T) {
	pool, err := New(Options{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, Master: "m", Patience: -1})
	require.NoError(t, err)
	defer pool.Close()
	l, err := legacy.New(pool, legacy.Options{})
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "k")
	assert.ErrorContains(t, err, "connection refused")
	assert.NotErrorIs(t, err, lockmigrate.ErrUnknownOutcome)
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{}, {Addrs: []string{"a:1"}}, {Addrs: []string{"a"}, Master: "m"}} {
		_, err := New(o)
		assert.Error(t, err)
	}
}
