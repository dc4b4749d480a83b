package compat_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// opener opens a Locker with a TTL, and a timeout of replies; zero: the default.
type opener func(pool lockmigrate.Pool, ttl, reply time.Duration) (lockmigrate.Locker, error)

func modernOf(opts modern.Options) opener {
	return func(pool lockmigrate.Pool, ttl, reply time.Duration) (lockmigrate.Locker, error) {
		opts := opts
		opts.TTL, opts.ReplyTimeout = ttl, reply
		return modern.New(pool, opts)
	}
}

func legacyOf(dialect string) opener {
	return func(pool lockmigrate.Pool, _, _ time.Duration) (lockmigrate.Locker, error) {
		return legacy.New(pool, legacy.Options{Dialect: legacy.Dialect{Name: dialect}, Lease: time.Minute, Poll: 20 * time.Millisecond})
	}
}

// kinds open a Locker of each kind.
var kinds = map[string]opener{
	"modern":        modernOf(modern.Options{}),
	"modern fenced": modernOf(modern.Options{FenceTTL: time.Minute}),
	"modern unfair": modernOf(modern.Options{Unfair: true}),
	"modern redisson": func(pool lockmigrate.Pool, ttl, reply time.Duration) (lockmigrate.Locker, error) {
		return redisson.New(pool, modern.Options{TTL: ttl, ReplyTimeout: reply})
	},
	"bridge": func(pool lockmigrate.Pool, ttl, reply time.Duration) (lockmigrate.Locker, error) {
		return compat.New(pool, compat.Options{TTL: ttl, ReplyTimeout: reply, Yield: -1})
	},
	"legacy": legacyOf("jedis-ms"),
	// Its commands go over a connection of the pool.
	"legacy watching": legacyOf("servicestack"),
}

// short is the TTL of most.
const short = 3 * time.Second

// acquirer opens a Locker that the end of the test closes, and returns its Acquire.
func (open opener) acquirer(t *testing.T, pool lockmigrate.Pool, ttl time.Duration) func(ctx context.Context, key string) (lockmigrate.Lock, error) {
	l, err := open(pool, ttl, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Acquire
}

// A name stands for a master, and then for the replica that was promoted in its place, as behind DNS or in a managed
// service; the old master lives on as a replica, and no connection breaks. The locks go over to the new master by
// themselves: what is held stays held, who waits gets its turn, and nothing fails for longer than the change takes.
func TestANameThatMovesToAnotherMaster(t *testing.T) {
	t.Parallel()
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.NewReplicated(t)
			link := redistest.NewLink(t, servers.Master.Addr)
			pool := poolTo(t, link.Addr)
			redistest.Idle(t, pool)
			acquire := open.acquirer(t, pool, short)
			ctx := redistest.Bounded(t, 2*time.Minute)
			kept, err := acquire(ctx, "kept")
			require.NoError(t, err)
			wanted, err := acquire(ctx, "wanted")
			require.NoError(t, err)
			old := strings.HasPrefix(name, "legacy")
			asks, over := "eval|evalsha|setnx", 1
			if old { // an attempt is several commands: it is over when the next one has begun
				asks, over = "setnx", 2
			}
			before := calls(servers.Master, asks)
			waiting := redistest.BeginTurn(ctx, acquire, "wanted")
			// A first attempt may fail in the change, as k0's may: the subject is one who waits by then.
			redistest.Await(t, "the waiter's first attempt", func() bool { return calls(servers.Master, asks) >= before+over })
			demote(t, servers, link, "127.0.0.1:1")
			failures := 0
			for i := range 60 {
				if err := <-redistest.BeginTurn(ctx, acquire, fmt.Sprint("k", i)); err != nil {
					failures++
					t.Logf("%d: %v", i, err)
				}
			}
			assert.LessOrEqual(t, failures, 3, "of 60")
			require.NoError(t, wanted.Release(ctx))
			assert.NoError(t, <-waiting)
			if !old {
				stays(t, kept, 4*time.Second)
			}
			require.NoError(t, errors.Join(kept.Context().Err(), kept.Release(ctx)))
		})
	}
}

// TestIdleConnectionsToAServerLeftBehind: a pool has idle connections to a server that was left behind. Whatever is asked over it, the first
// command gets through, and the connections are ended. While the address means the wrong server, few are made.
func TestIdleConnectionsToAServerLeftBehind(t *testing.T) {
	for _, refusal := range []string{"READONLY You can't write against a read only replica.", "LOADING Redis is loading", "MASTERDOWN Link"} {
		t.Run(refusal[:8], func(t *testing.T) {
			behind, now := redistest.Mini(t), redistest.Mini(t)
			var address atomic.Pointer[redistest.Server]
			var dials atomic.Int64
			pool := &redis.Pool{MaxIdle: 20, DialContext: func(ctx context.Context) (redis.Conn, error) {
				dials.Add(1)
				return redis.DialContext(ctx, "tcp", address.Load().Addr)
			}}
			defer pool.Close()
			moves := func() {
				address.Store(behind)
				behind.Mini.SetError("")
				redistest.Idle(t, pool)
				behind.Mini.SetError(refusal)
				address.Store(now)
			}
			l, err := legacyOf("servicestack")(pool, short, 0)
			require.NoError(t, err)
			fenced, err := modernOf(modern.Options{FenceTTL: time.Minute})(pool, short, 0)
			require.NoError(t, err)
			moves()
			_, err = lockers.HalfOf(fenced).RaiseFence(t.Context(), "k", 7)
			require.NoError(t, err)
			moves()
			k, err := l.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			moves()
			require.NoError(t, k.Renew(t.Context()))
			moves()
			require.NoError(t, k.Release(t.Context()))

			address.Store(behind)
			now.Mini.SetError(refusal)
			before := dials.Load()
			for range 5 {
				_, err := l.TryAcquire(t.Context(), "k")
				assert.ErrorContains(t, err, refusal)
			}
			assert.LessOrEqual(t, int(dials.Load()-before), 10)
			now.Mini.SetError("")
			behind.Mini.SetError("")
			require.NoError(t, errors.Join(l.Close(), fenced.Close()))
			for range pool.IdleCount() {
				_, err := pool.Get().Do("PING")
				assert.NoError(t, err, "a connection that was refused was given back")
			}
		})
	}
}

// demote has the replica be the master that a name leads to, and the old master a replica of another.
func demote(t *testing.T, servers *redistest.Replicated, name *redistest.Link, of string) {
	host, port, err := net.SplitHostPort(of)
	require.NoError(t, err)
	servers.AwaitInStep(t)
	name.Retarget(servers.Replica.Addr)
	servers.Promote()
	servers.Master.Do("REPLICAOF", host, port)
}

// stays checks that a lock is not lost for longer than its TTL.
func stays(t *testing.T, k lockmigrate.Lock, longer time.Duration) {
	select {
	case <-k.Context().Done():
		t.Errorf("a lock that is on the new master was lost: %v", context.Cause(k.Context()))
	case <-time.After(longer):
	}
}

// attempts is how often a server was asked for a lock, or to renew one.
func attempts(s *redistest.Server) int { return calls(s, "eval|evalsha|setnx") }

// calls is how often commands were called.
func calls(s *redistest.Server, commands string) (n int) {
	stats, _ := redis.String(s.Do("INFO", "commandstats"), nil)
	for _, found := range regexp.MustCompile(`cmdstat_(?:`+commands+`):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		calls, _ := strconv.Atoi(found[1])
		n += calls
	}
	return n
}

// TestAWaiterOfADemotedServer: a process that only waits asks a server that has become a replica, which answers: held. Others hand the key
// on to each other at the new master, and it is never free. The waiter must notice, and get its turn.
func TestAWaiterOfADemotedServer(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"bridge", ""}, {"modern", ""}, {"bridge", "redis-6.2.11"}, {"modern", "redis-6.2.11"}} {
		t.Run(c[0]+" "+c[1], func(t *testing.T) {
			t.Parallel()
			open, servers := kinds[c[0]], redistest.Shape{Version: c[1]}.Replicated(t)
			link := redistest.NewLink(t, servers.Master.Addr)
			holds, waits := open.acquirer(t, poolTo(t, link.Addr), short), open.acquirer(t, poolTo(t, link.Addr), short)
			ctx := redistest.Bounded(t, time.Minute)
			holder, err := holds(ctx, "wanted")
			require.NoError(t, err)
			got := redistest.BeginTurn(ctx, waits, "wanted")
			redistest.Await(t, "the waiter", func() bool { return servers.Master.Do("ZCARD", protocol.QueueKey("wanted")) == int64(1) })
			demote(t, servers, link, servers.Replica.Addr)
			others, stop := context.WithCancel(ctx)
			var turns sync.WaitGroup
			defer turns.Wait()
			defer stop()
			for range 2 {
				acquire := open.acquirer(t, poolTo(t, servers.Replica.Addr), short)
				for range 2 { // the key is handed on and never free
					turns.Go(func() {
						for others.Err() == nil {
							if k, err := acquire(others, "wanted"); err == nil {
								time.Sleep(10 * time.Millisecond)
								_ = k.Release(ctx)
							}
						}
					})
				}
			}
			redistest.Await(t, "those who wait at the new master", func() bool {
				n, _ := servers.Replica.Do("ZCARD", protocol.QueueKey("wanted")).(int64)
				return n >= 2
			})
			require.NoError(t, holder.Release(ctx))
			select {
			case err := <-got:
				assert.NoError(t, err)
			case <-time.After(20 * time.Second):
				t.Error("the waiter gets no turn")
			}
		})
	}
}

// TestADemotedServersNoIsNoLoss: the connection for renewals still leads to the old master, a replica by now, when a lock is taken at
// the new one over another connection. The old one does not know the lock: that is no word on whose it is.
func TestADemotedServersNoIsNoLoss(t *testing.T) {
	t.Parallel()
	const patient = 2 * time.Second // more than a quarter of the TTL: renewals have a connection of their own
	for _, name := range []string{"modern", "modern redisson", "bridge"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.NewReplicated(t)
			link := redistest.NewLink(t, servers.Master.Addr)
			locker, err := kinds[name](poolTo(t, link.Addr), short, patient)
			require.NoError(t, err)
			t.Cleanup(func() { _ = locker.Close() })
			before, err := locker.Acquire(t.Context(), "before")
			require.NoError(t, err)
			was := attempts(servers.Master)
			redistest.Await(t, "a renewal", func() bool { return attempts(servers.Master) > was })
			require.NoError(t, before.Release(t.Context()))
			demote(t, servers, link, "127.0.0.1:1")
			kept, err := locker.Acquire(t.Context(), "kept")
			require.NoError(t, err)
			stays(t, kept, short+time.Second)
			assert.NoError(t, kept.Release(t.Context()))
			assert.EqualValues(t, 0, servers.Replica.Do("EXISTS", "kept"))
		})
	}
}
