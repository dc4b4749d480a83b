package versions

import (
	"context"
	"errors"
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
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

// turnsDuring is turns from a failover on, until old is not a master any more. Until then old takes commands of clients that have not heard of
// the failover, and nobody else has what they write. Such a lock may be lost, which its holder is told at its release. Which ones
// those are is looked up at once: the lock that the new master has is never lost.
func turnsDuring(t *testing.T, kinds kinds, n int, old, master *redistest.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kept, lost := map[string]int{}, map[string]int{}
	demoted := false
	for !demoted {
		demoted = old.Role() == "slave" // and one more turn
		time.Sleep(10 * time.Millisecond)
		for name, l := range kinds {
			lock, err := l.Acquire(ctx, "lock."+name)
			if !assert.NoError(t, err, name) {
				return
			}
			there := master.Value("lock."+name) != ""
			switch err := lock.Release(ctx); {
			case err == nil:
				kept[name]++
			case !there && errors.Is(err, lockmigrate.ErrLost):
				lost[name]++
			default:
				assert.NoError(t, err, "%s, on the new master: %t", name, there)
			}
		}
	}
	t.Logf("until the old master followed the new one: kept %v, lost and told %v", kept, lost)
	turns(t, kinds, n)
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
			group := redistest.NewSentinelsOf(t, name, 1, 3)
			pool, err := sentinel.New(sentinel.Options{Addrs: group.Addrs(), Master: group.Name})
			require.NoError(t, err)
			t.Cleanup(func() { _ = pool.Close() })
			kinds := over(t, pool)
			turns(t, kinds, 3)
			release := held(t, kinds)
			master := group.Master()
			redistest.Await(t, "a replica that has the locks", 10*time.Second, func() bool {
				for _, s := range group.Servers {
					all, err := redis.Strings(s.Try("KEYS", "held.*"))
					if err != nil || len(all) < len(kinds) {
						return false
					}
				}
				return true
			})
			group.Failover()
			assert.NotEqual(t, master.Addr, group.Master().Addr)
			release()
			turnsDuring(t, kinds, 3, master, group.Master())
		})
	}
}

// TestCluster: locks are taken on every master, and kept while a replica takes over.
func TestCluster(t *testing.T) {
	t.Parallel()
	for _, name := range grown {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.NewClusterOf(t, name, 3, 1)
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
