package observe_test

import (
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
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

// oldTurns is an old client whose clock is right, and whose lease is its own, that takes turns on a key. Twice it dies in its turn, and comes back
// when another has taken its lock over: taken tells of turns of others.
func oldTurns(t *testing.T, s *redistest.Server, key string, lease time.Duration, taken <-chan struct{}) {
	conn := s.Conn()
	defer conn.Close()
	for turn := 0; turn < 20; {
		won, err := redis.Bool(conn.Do("SETNX", key, time.Now().Add(lease).UnixMilli()+1))
		assert.NoError(t, err)
		switch {
		case !won:
			_, err = conn.Do("GET", key)
			time.Sleep(20 * time.Millisecond)
		case turn%10 == 0:
			for len(taken) > 0 { // of before
				<-taken
			}
			<-taken
			turn++
		default:
			time.Sleep(2 * time.Millisecond)
			_, err = conn.Do("DEL", key)
			turn++
		}
		assert.NoError(t, err)
	}
}

// TestMembersBesideAnOldClient: members at stage legacy with leases of 30 s take turns with an old client that has one of 3 s. They say by their
// scripts that they are none of the old clients, so these are measured alone. testdata/leases.txt has package legacy, which does not say so.
func TestMembersBesideAnOldClient(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: "orders", Stage: stages.Legacy, Patterns: []string{"lock:*"}, Dialect: "jedis-ms", Shortest: time.Second}))
	report := watch(t, s, observe.Options{}, func() {
		var members, all sync.WaitGroup
		var one sync.Mutex // who loses a takeover to another writes over its value, as the old scheme has it: one waits at a time
		taken, over := make(chan struct{}, 1), make(chan struct{})
		all.Go(func() { defer close(over); oldTurns(t, s, "lock:7", 3*time.Second, taken) })
		for range 3 {
			member, err := compat.New(s.Pool(), compat.Options{Namespace: "orders"})
			require.NoError(t, err)
			t.Cleanup(func() { _ = member.Close() })
			members.Go(func() {
				for turns, done := 0, false; turns < 20 || !done; turns++ {
					one.Lock()
					assert.NoError(t, member.Do(t.Context(), "lock:7", func(context.Context) error {
						select {
						case taken <- struct{}{}:
						default:
						}
						time.Sleep(2 * time.Millisecond)
						return nil
					}))
					one.Unlock()
					time.Sleep(10 * time.Millisecond)
					select {
					case <-over:
						done = true
					default:
					}
				}
			})
		}
		members.Wait()
		all.Wait()
	})
	kinds := map[string]int{}
	for _, row := range report.Clients {
		kinds[row.Kind]++
		assert.Equal(t, "jedis-ms", row.Dialect)
		assert.False(t, row.LeaseVaries)
		if row.Kind == observe.Member {
			assert.Equal(t, 30_000.0, row.LeaseMS)
			assert.Nil(t, row.SkewMS)
		} else {
			assert.Equal(t, 3000.0, row.LeaseMS)
			assert.InDelta(t, 0, value(row.SkewMS), 100)
		}
	}
	assert.Equal(t, map[string]int{observe.Member: 3, observe.Legacy: 1}, kinds)
}

// TestOwnKinds lets this project's own lockers contend, two of each kind on a key of their own, and beside the members a service behind a
// sidecar: each release hands the lock to another. MONITOR shows each kind, and every turn of all, and nothing that went wrong.
func TestOwnKinds(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	java, err := redis.Dial("tcp", behindASidecar(t, s, stages.Bridge, s.Addr))
	require.NoError(t, err)
	t.Cleanup(func() { _ = java.Close() })
	type turn func(ctx context.Context, key string, work func(context.Context) error) error
	turns, keys := []turn{func(ctx context.Context, key string, work func(context.Context) error) error {
		for n := 0; n == 0; {
			var err error
			if n, err = redis.Int(java.Do("SETNX", key, time.Now().Add(20*time.Second).UnixMilli())); err != nil {
				return err
			}
		}
		_ = work(ctx)
		_, err := java.Do("DEL", key)
		return err
	}}, []string{"lock:members"}
	add := func(key string, l lockmigrate.Locker, err error) {
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		turns, keys = append(turns, l.Do), append(keys, key)
	}
	for range 2 {
		old, err := legacy.New(s.Pool(), legacy.Options{Lease: 30 * time.Second})
		add("old:lock", old, err)
		member, err := compat.New(s.Pool(), compat.Options{Namespace: "orders"})
		add("lock:members", member, err)
		require.NoError(t, member.Ready(t.Context()))
		token, err := modern.New(s.Pool(), modern.Options{FenceTTL: time.Minute})
		add("new:lock", token, err)
	}
	const each = 30
	report := watch(t, s, observe.Options{Group: observe.ByHost}, func() {
		var group sync.WaitGroup
		for i, take := range turns {
			group.Go(func() {
				for range each {
					assert.NoError(t, take(t.Context(), keys[i], func(context.Context) error { time.Sleep(2 * time.Millisecond); return nil }))
				}
			})
		}
		group.Wait()
		for _, take := range turns[1:] { // one after the other on one key, so that each follows each
			assert.NoError(t, take(t.Context(), "lock:shared", func(context.Context) error { return nil }))
		}
	})
	acquired, released := map[string]int64{}, map[string]int64{}
	for _, row := range report.Clients {
		if row.Tries > 0 { // not the sidecar's own connections
			acquired[row.Kind+" "+row.Dialect] += row.Acquired
			released[row.Kind+" "+row.Dialect] += row.Released
		}
	}
	assert.Equal(t, map[string]int64{"legacy jedis-ms": 2*each + 2, "bridge lockmigrate": 2*each + 2, "modern lockmigrate": 2*each + 2, "sidecar lockmigrate": each}, acquired)
	assert.Equal(t, acquired, released)
	assert.Empty(t, report.Hazards, fmt.Sprint(report.Clients))
	assert.Empty(t, report.Overlaps)
}

// TestFailoversRemembered: a promoted replica says that it has taken a master's place. One that has none beside it and was not promoted
// may have forgotten, so nothing is said.
func TestFailoversRemembered(t *testing.T) {
	t.Parallel()
	r := redistest.NewReplicated(t)
	of := func(s *redistest.Server) *profile.Failovers {
		end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
		require.NoError(t, err)
		w, err := observe.StartMasters(context.Background(), end, observe.Options{}, observe.Limits{For: 50 * time.Millisecond, Load: 10})
		require.NoError(t, err)
		require.NoError(t, w.Wait())
		return w.Profile().Failovers
	}
	before := of(r.Master)
	require.NotNil(t, before)
	assert.Zero(t, before.Seen)
	assert.Zero(t, before.Every())
	assert.Nil(t, of(r.Replica), "a replica's place is not a master's")

	r.Promote()
	after := of(r.Replica)
	require.NotNil(t, after)
	assert.EqualValues(t, 1, after.Seen)
	assert.Positive(t, after.Every())
	assert.Nil(t, of(redistest.Real(t)))
}
