package compat_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// wrapped is a pool that can only hand out connections, as one that traces them.
type wrapped struct{ pool *redis.Pool }

func (w wrapped) GetContext(ctx context.Context) (redis.Conn, error) { return w.pool.GetContext(ctx) }

type opener func(pool lockmigrate.Pool) (lockmigrate.Locker, error)

func modernOf(opts modern.Options) opener {
	if opts.TTL == 0 {
		opts.TTL = 3 * time.Second
	}
	return func(pool lockmigrate.Pool) (lockmigrate.Locker, error) { return modern.New(pool, opts) }
}

// kinds open a Locker of each kind.
var kinds = map[string]opener{
	"modern":        modernOf(modern.Options{}),
	"modern fenced": modernOf(modern.Options{FenceTTL: time.Minute}),
	"modern unfair": modernOf(modern.Options{Unfair: true}),
	"modern redisson": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return redisson.New(pool, modern.Options{TTL: 3 * time.Second})
	},
	"bridge": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return compat.New(pool, compat.Options{TTL: 3 * time.Second, Yield: -1})
	},
	"legacy": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return legacy.New(pool, legacy.Options{Lease: time.Minute, Poll: 20 * time.Millisecond})
	},
}

// acquirer opens a Locker that the end of the test closes, and returns its Acquire.
func (open opener) acquirer(t *testing.T, pool lockmigrate.Pool) func(ctx context.Context, key string) (lockmigrate.Lock, error) {
	l, err := open(pool)
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
		for _, handingOut := range []bool{false, true} {
			title := name
			if handingOut {
				title += " over a pool that is wrapped"
			}
			t.Run(title, func(t *testing.T) {
				t.Parallel()
				servers := redistest.NewReplicated(t)
				link := redistest.NewLink(t, servers.Master.Addr)
				plain := &redis.Pool{
					MaxIdle: 9,
					DialContext: func(ctx context.Context) (redis.Conn, error) {
						return redis.DialContext(ctx, "tcp", link.Addr)
					},
				}
				t.Cleanup(func() { _ = plain.Close() })
				var pool lockmigrate.Pool = plain
				if handingOut {
					pool = wrapped{plain}
				}
				rest(t, plain)
				acquire := open.acquirer(t, pool)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				kept, err := acquire(ctx, "kept")
				require.NoError(t, err)
				wanted, err := acquire(ctx, "wanted")
				require.NoError(t, err)
				asks, over := "eval|evalsha|setnx", 1
				if name == "legacy" { // an attempt is several commands: it is over when the next one has begun
					asks, over = "setnx", 2
				}
				waiting, before := make(chan error, 1), calls(servers.Master, asks)
				go func() {
					k, err := acquire(ctx, "wanted")
					if err == nil {
						err = k.Release(ctx)
					}
					waiting <- err
				}()
				// A first attempt may fail in the change, as k0's may: the subject is one who waits by then.
				redistest.Await(t, "the waiter's first attempt", 10*time.Second, func() bool { return calls(servers.Master, asks) >= before+over })
				servers.AwaitInStep(t)

				link.Retarget(servers.Replica.Addr)
				servers.Promote()
				servers.Master.Do("REPLICAOF", "127.0.0.1", "1")

				failures := 0
				for i := range 60 {
					k, err := acquire(ctx, fmt.Sprint("k", i))
					if err == nil {
						err = k.Release(ctx)
					}
					if err != nil {
						failures++
						t.Logf("%d: %v", i, err)
					}
				}
				assert.LessOrEqual(t, failures, 3, "of 60")
				require.NoError(t, wanted.Release(ctx))
				assert.NoError(t, <-waiting)
				if name != "legacy" {
					select {
					case <-kept.Context().Done():
						t.Errorf("a lock that is on the new master was lost: %v", context.Cause(kept.Context()))
					case <-time.After(4 * time.Second): // longer than its TTL
					}
				}
				require.NoError(t, errors.Join(kept.Context().Err(), kept.Release(ctx)))
			})
		}
	}
}

// rest leaves nine idle connections in a pool; those that it had come last.
func rest(t *testing.T, pool *redis.Pool) {
	var conns [9]redis.Conn
	for i := range conns {
		conns[i] = pool.Get()
		require.NoError(t, conns[i].Err())
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

// A pool that is wrapped has idle connections to a server that was left behind. Whatever a lock does, the first command gets through:
// each connection that it meets is ended. While the address means the wrong server, few are made.
func TestIdleConnectionsToAServerLeftBehind(t *testing.T) {
	for name, open := range kinds {
		for _, refusal := range []string{"READONLY You can't write against a read only replica.", "LOADING Redis is loading", "MASTERDOWN Link"} {
			for _, seen := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s %.8s dials seen %v", name, refusal, seen), func(t *testing.T) {
					behind, now := redistest.Mini(t), redistest.Mini(t)
					var address atomic.Pointer[redistest.Server]
					var dials atomic.Int64
					dial := func(ctx context.Context) (redis.Conn, error) {
						dials.Add(1)
						return redis.DialContext(ctx, "tcp", address.Load().Addr)
					}
					pool := &redis.Pool{MaxIdle: 20, DialContext: dial}
					if !seen {
						pool.DialContext, pool.Dial = nil, func() (redis.Conn, error) { return dial(context.Background()) }
					}
					defer pool.Close()
					moves := func() {
						address.Store(behind)
						behind.Mini.SetError("")
						rest(t, pool)
						behind.Mini.SetError(refusal)
						address.Store(now)
					}
					l, err := open(wrapped{pool})
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
					most := int64(6)
					if !seen {
						most += 256
					}
					assert.LessOrEqual(t, dials.Load()-before, most)
					now.Mini.SetError("")
					require.NoError(t, l.Close())
					for range pool.IdleCount() {
						_, err := pool.Get().Do("PING")
						assert.NoError(t, err, "a connection that was refused was given back")
					}
				})
			}
		}
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
	for _, c := range []struct{ name, version string }{{"bridge", ""}, {"modern", ""}, {"bridge", "redis-6.2.11"}, {"modern", "redis-6.2.11"}} {
		t.Run(c.name+" "+c.version, func(t *testing.T) {
			t.Parallel()
			servers, name := (*redistest.Replicated)(nil), c.name
			if c.version == "" {
				servers = redistest.NewReplicated(t)
			} else {
				servers = redistest.NewReplicatedOf(t, c.version)
			}
			link := redistest.NewLink(t, servers.Master.Addr)
			poolTo := func(addr string) *redis.Pool {
				pool := poolTo(t, addr)
				pool.MaxIdle = 8
				return pool
			}
			holds, waits := kinds[name].acquirer(t, poolTo(link.Addr)), kinds[name].acquirer(t, poolTo(link.Addr))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			holder, err := holds(ctx, "wanted")
			require.NoError(t, err)
			got := make(chan error, 1)
			go func() {
				k, err := waits(ctx, "wanted")
				if err == nil {
					err = k.Release(ctx)
				}
				got <- err
			}()
			redistest.Await(t, "the waiter", 10*time.Second, func() bool { return servers.Master.Do("ZCARD", protocol.QueueKey("wanted")) == int64(1) })
			servers.AwaitInStep(t)
			link.Retarget(servers.Replica.Addr)
			servers.Promote()
			host, port, err := net.SplitHostPort(servers.Replica.Addr)
			require.NoError(t, err)
			servers.Master.Do("REPLICAOF", host, port)

			others, stop := context.WithCancel(ctx)
			var turns sync.WaitGroup
			defer turns.Wait()
			defer stop()
			for range 2 {
				acquire := kinds[name].acquirer(t, poolTo(servers.Replica.Addr))
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
			redistest.Await(t, "those who wait at the new master", 10*time.Second, func() bool {
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
	const ttl, patient = 3 * time.Second, 2 * time.Second // more than a quarter of the TTL: renewals have a connection of their own
	for name, open := range map[string]opener{
		"modern": modernOf(modern.Options{TTL: ttl, ReplyTimeout: patient}),
		"redisson": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return redisson.New(pool, modern.Options{TTL: ttl, ReplyTimeout: patient})
		},
		"bridge": func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
			return compat.New(pool, compat.Options{TTL: ttl, ReplyTimeout: patient})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.NewReplicated(t)
			link := redistest.NewLink(t, servers.Master.Addr)
			locker, err := open(poolTo(t, link.Addr))
			require.NoError(t, err)
			t.Cleanup(func() { _ = locker.Close() })
			before, err := locker.Acquire(t.Context(), "before")
			require.NoError(t, err)
			was := attempts(servers.Master)
			redistest.Await(t, "a renewal", 10*time.Second, func() bool { return attempts(servers.Master) > was })
			require.NoError(t, before.Release(t.Context()))
			servers.AwaitInStep(t)
			link.Retarget(servers.Replica.Addr)
			servers.Promote()
			servers.Master.Do("REPLICAOF", "127.0.0.1", "1")

			kept, err := locker.Acquire(t.Context(), "kept")
			require.NoError(t, err)
			select {
			case <-kept.Context().Done():
				t.Errorf("lost: %v", context.Cause(kept.Context()))
			case <-time.After(ttl + time.Second):
			}
			assert.NoError(t, kept.Release(t.Context()))
			assert.EqualValues(t, 0, servers.Replica.Do("EXISTS", "kept"))
		})
	}
}
