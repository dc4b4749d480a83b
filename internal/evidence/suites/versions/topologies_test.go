package versions

import (
	"context"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

// grown are the versions that the topologies are tried on.
var grown = []string{"redis-5.0.6", "redis-6.2.11", "redis-8.10.2", "valkey-9.0.0"}

// kinds are Lockers by the name of their kind.
type kinds map[string]lockmigrate.Locker

// over are the kinds of lock that a topology is tried with.
func over(t *testing.T, pool lockmigrate.Pool) kinds {
	t.Helper()
	all := kinds{}
	for _, l := range of("legacy-unexpired", "bridge", "modern-fencing") {
		all[l.name] = l.process(t, pool, 10*time.Second, nil)
	}
	return all
}

// turns takes and gives back a lock of each kind, n times. None may be lost.
func turns(t *testing.T, kinds kinds, n int) {
	t.Helper()
	ctx := redistest.Bounded(t, time.Minute)
	for name, l := range kinds {
		for range n {
			lock, err := l.Acquire(ctx, "lock."+name)
			if !assert.NoError(t, err, name) {
				break
			}
			assert.NoError(t, lock.Release(ctx), name)
		}
	}
}

// held are locks of each kind that are kept through a failover in which nothing is lost.
func held(t *testing.T, kinds kinds) (release func()) {
	t.Helper()
	var all []func(context.Context) error
	for name, l := range kinds {
		lock, err := l.Acquire(t.Context(), "held."+name)
		require.NoError(t, err, name)
		all = append(all, lock.Release)
	}
	return func() {
		t.Helper()
		for _, r := range all {
			assert.NoError(t, r(t.Context()))
		}
	}
}

// TestSentinel: the locks of a master that dies are taken on the one that follows it.
func TestSentinel(t *testing.T) {
	t.Parallel()
	for _, name := range grown {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			group := redistest.Shape{Version: name}.Sentinels(t, 1, 3)
			pool, err := sentinel.New(sentinel.Options{Addrs: group.Addrs(), Master: group.Name})
			require.NoError(t, err)
			t.Cleanup(func() { _ = pool.Close() })
			kinds := over(t, pool)
			turns(t, kinds, 3)
			release := held(t, kinds)
			master := group.Master()
			redistest.Await(t, "a replica that has the locks", func() bool {
				for _, s := range group.Servers {
					all, err := redis.Strings(s.Try("KEYS", "held.*"))
					if err != nil || len(all) < len(kinds) {
						return false
					}
				}
				return true
			})
			assert.NotEqual(t, master.Addr, group.Failover().Addr)
			release()
			group.AwaitOK() // until the old master is a replica it takes commands, and nobody keeps what they write: TestFaults has that
			turns(t, kinds, 3)
		})
	}
}

// TestCluster: locks are taken on every master, and kept while a replica takes over.
func TestCluster(t *testing.T) {
	t.Parallel()
	for _, name := range grown {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.Shape{Version: name}.Cluster(t, 3, 1)
			pool, err := cluster.New(cluster.Options{Addrs: c.Addrs()})
			require.NoError(t, err)
			t.Cleanup(func() { _ = pool.Close() })
			kinds := over(t, pool)
			turns(t, kinds, 3)
			release := held(t, kinds)
			owner := c.Owner(protocol.Slot("held.bridge"))
			for i, m := range c.Masters {
				if m == owner {
					c.Failover(c.Replicas[i][0])
					c.AwaitOwner(protocol.Slot("held.bridge"), c.Replicas[i][0])
				}
			}
			release()
			turns(t, kinds, 3)
		})
	}
}
