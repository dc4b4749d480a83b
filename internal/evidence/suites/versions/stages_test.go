package versions

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

const namespace = "orders"

// lease is that of the old clients of a namespace, and the TTL of its members. An old client that stands still for longer deletes
// what another has taken (its stale DEL), at every stage that it may live in, and overlaps.
const lease = 3 * time.Second

// initStage makes the namespace of these tests.
var initStage = []string{"stage", "init", "--namespace", namespace, "--match", "lock.*", "--dialect", "jedis-ms", "--shortest-lease", lease.String()}

func memberOptions(d legacy.Dialect) compat.Options {
	return compat.Options{Namespace: namespace, Dialect: d, ShortestLease: lease, Lease: lease, TTL: lease}
}

func memberOf(server *redistest.Server) (compat.Locker, error) {
	return compat.New(server.Pool(), memberOptions(legacy.Dialect{Name: "jedis-ms"}))
}

// member is a holder that joins the namespace; its dialect is an argument.
func member(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
	locker, err := compat.New(pool, memberOptions(legacy.Dialect{Name: args["dialect"]}))
	if err != nil {
		return nil, err
	}
	if err := locker.Ready(context.Background()); err != nil {
		return nil, err
	}
	return holders.TakerOf(locker.Acquire), nil
}

// roundTrip takes a namespace from legacy to modern and back, under load, beside an old client wherever one may be.
func roundTrip(t *testing.T, server *redistest.Server, dialect string, old func() *holders.Holder) {
	store := &stages.Store{Pool: server.Pool(), Namespace: namespace, ReplyTimeout: 5 * time.Second}
	move := func(to stages.Stage) {
		t.Helper()
		ctx := redistest.Bounded(t, time.Minute)
		require.NoError(t, (&stages.Mover{Store: store, Look: 20 * time.Millisecond}).Run(ctx, to, func(stages.View, []stages.Blocker) {}))
	}
	require.NoError(t, store.Init(t.Context(), stages.Record{Stage: stages.Legacy, Patterns: []string{"lock.*"}, Dialect: dialect, Shortest: lease}))
	c := &holders.Crew{T: t, Key: key, Record: server}
	join := func() *holders.Holder {
		return c.Enlist(holders.StartGo(t, "member", server.URL(), holders.Arg("dialect", dialect)))
	}
	a, b := join(), join()
	client := c.Enlist(old())
	c.More(20)
	move(stages.Bridge)
	c.Progress(2, a, b, client)
	c.Stop(client)
	move(stages.Modern)
	c.Progress(5, a, b)
	move(stages.Bridge)
	client = c.Enlist(old())
	c.Progress(2, a, b, client)
	move(stages.Legacy)
	c.More(20)
	c.Stop(client, a, b)
	report := c.Found()
	t.Log(report)
	assert.Zero(t, report.Overlaps, redistest.Violated)
	assert.Empty(t, report.Thrown(lease), "a lock threw")
}

// TestStages: on each server that can keep a namespace, a lock of stage legacy is held beyond its renewals, and the namespace goes
// from legacy to modern and back beside an old client.
func TestStages(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, on site) {
		if !on.cell(t, servers.Namespace).How.Usable() {
			return // TestTable: it is refused
		}
		t.Run("held", func(t *testing.T) {
			t.Parallel()
			server := on.start(t)
			code, out, stderr := command(t, server, append(initStage, "--execute")...)
			require.Equal(t, done, code, "%s%s", out, stderr)
			locker, err := memberOf(server)
			require.NoError(t, err)
			defer locker.Close()
			require.NoError(t, locker.Ready(t.Context()))
			stage, _, err := locker.Stage()
			require.NoError(t, err)
			require.Equal(t, lockmigrate.StageLegacy, stage)
			lock, err := locker.Acquire(t.Context(), key)
			require.NoError(t, err)
			values := map[string]bool{}
			for ; len(values) < 5; time.Sleep(lease / 30) { // four renewals, beyond its lease
				require.NoError(t, lock.Context().Err(), "lost")
				value := server.Value(key)
				require.NotEmpty(t, value, "nothing stands on the key of a lock that is held")
				values[value] = true
			}
			require.NoError(t, lock.Release(t.Context()))
			assert.Empty(t, server.Value(key))
		})
		t.Run("round trip", func(t *testing.T) {
			t.Parallel()
			server := on.start(t)
			roundTrip(t, server, "jedis-ms", func() *holders.Holder {
				return holders.StartGo(t, "legacy-as-dialect", server.URL(), holders.Arg("ttl", lease))
			})
		})
	})
}

// TestStagesBesideReleasedHolders has the released jedis-lock and redis-py in the place of the old client, on the oldest server
// that can keep a namespace.
func TestStagesBesideReleasedHolders(t *testing.T) {
	t.Parallel()
	redistest.Need(t, redistest.Java, redistest.Python)
	for _, c := range []struct {
		kind    holders.Kind
		dialect string
	}{
		{holders.JedisLock, "jedis-ms"},
		{holders.RedisPy, "redispy-float"},
	} {
		t.Run(c.kind.Name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Of(t, "redis-3.2.6")
			roundTrip(t, server, c.dialect, func() *holders.Holder {
				return holders.Start(t, c.kind, server.URL(), holders.Arg("lease", lease), holders.Arg("wait", time.Minute))
			})
		})
	}
}

// TestReplicas: with locks of every kind held, and after waiters have taken turns, a replica has what its master has.
func TestReplicas(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"redis-3.2.6", "redis-5.0.6", ""} {
		t.Run(cmp.Or(name, "redis-server"), func(t *testing.T) {
			t.Parallel()
			pair := redistest.Shape{Version: name}.Replicated(t)
			var waiting sync.WaitGroup
			for _, l := range locks {
				held := "lock." + l.name
				lock, err := l.process(t, pair.Master.Pool(), patient, nil).Acquire(t.Context(), held)
				require.NoError(t, err)
				second := l.process(t, pair.Master.Pool(), patient, nil)
				waiting.Go(func() {
					_, err := second.Acquire(t.Context(), held) // and keeps it
					assert.NoError(t, err, l.name)
				})
				require.NoError(t, lock.Release(t.Context()))
			}
			waiting.Wait()
			// The holders renew all the time: both servers are read while nobody can write.
			redistest.Await(t, "a replica with what its master has", func() bool {
				before := contents(t, pair.Master)
				pair.AwaitInStep(t)
				after := contents(t, pair.Replica)
				same := fmt.Sprint(before) == fmt.Sprint(after)
				if !same && len(before) != len(after) {
					t.Logf("master %v, replica %v", before, after)
				}
				return same && len(before) >= len(locks)
			})
		})
	}
}

// contents returns every key with its value.
func contents(t *testing.T, server *redistest.Server) map[string]string {
	t.Helper()
	names, err := redis.Strings(server.Do("KEYS", "*"), nil)
	require.NoError(t, err)
	all := map[string]string{}
	for _, name := range names {
		if dump, err := redis.String(server.Do("DUMP", name), nil); err == nil {
			all[name] = dump
		}
	}
	return all
}
