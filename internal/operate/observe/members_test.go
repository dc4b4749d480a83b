package observe_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// oldTurns is an old client whose clock is right, and whose lease is its own, that takes turns on a key. Twice it dies in its turn, and comes back
// when another has taken its lock over.
func oldTurns(t *testing.T, s *redistest.Server, key string, lease time.Duration) {
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
			time.Sleep(lease + 500*time.Millisecond)
			turn++
		default:
			time.Sleep(2 * time.Millisecond)
			_, err = conn.Do("DEL", key)
			turn++
		}
		assert.NoError(t, err)
	}
}

// TestMembersBesideAnOldClient: members at stage legacy with leases of 30 s take turns with an old client that has one of a second. They say by their
// scripts that they are none of the old clients, so these are measured alone. testdata/leases.txt has package legacy, which does not say so.
func TestMembersBesideAnOldClient(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: "orders", Stage: stages.Legacy, Patterns: []string{"lock:*"}, Dialect: "jedis-ms", Shortest: time.Second}))
	report := watch(t, s, observe.Options{}, func() {
		var group sync.WaitGroup
		group.Go(func() { oldTurns(t, s, "lock:7", time.Second) })
		for range 3 {
			member, err := compat.New(s.Pool(), compat.Options{Namespace: "orders"})
			require.NoError(t, err)
			t.Cleanup(func() { _ = member.Close() })
			group.Go(func() {
				for range 60 {
					err := member.Do(t.Context(), "lock:7", func(context.Context) error { time.Sleep(2 * time.Millisecond); return nil })
					if !errors.Is(err, lockmigrate.ErrLost) { // to an old client's DEL that came later than its lease, on a busy machine
						assert.NoError(t, err)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		group.Wait()
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
			assert.Less(t, row.LeaseMS, 5000.0, "that of a member")
			if row.LeaseDoubt == "" { // who waited was not late
				assert.Equal(t, 1000.0, row.LeaseMS)
				assert.InDelta(t, 0, value(row.SkewMS), 100)
			}
		}
	}
	assert.Equal(t, map[string]int{observe.Member: 3, observe.Legacy: 1}, kinds)
}
