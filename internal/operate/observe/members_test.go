package observe_test

import (
	"context"
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
	"github.com/lockmigrate/lockmigrate/legacy"
)

// oldTurns is an old client whose clock is right, and whose lease is its own, that takes turns on a key. Twice it dies in its turn, and comes back
// when another has taken its lock over.
func oldTurns(t *testing.T, s *redistest.Server, key string, lease time.Duration) {
	conn := s.Conn()
	defer conn.Close()
	_, err := conn.Do("CLIENT", "SETNAME", "java")
	assert.NoError(t, err)
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

// TestGoBesideAnOldClient: Go services with leases of 30 s take turns with an old client that has one of a second. Members say by their scripts
// that they are none of the old clients, so these are measured alone. Package legacy speaks as they do: there nobody can tell the old
// client's other lease from a wrong clock, and it is said.
func TestGoBesideAnOldClient(t *testing.T) {
	t.Parallel()
	for _, member := range []bool{true, false} {
		s := redistest.Real(t)
		store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: time.Second}
		require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: "orders", Stage: stages.Legacy, Patterns: []string{"lock:*"}, Dialect: "jedis-ms", Shortest: time.Second}))
		var services []lockmigrate.Locker
		for range 3 {
			var service lockmigrate.Locker
			var err error
			if service, err = legacy.New(s.Pool(), legacy.Options{Lease: 30 * time.Second}); member {
				service, err = compat.New(s.Pool(), compat.Options{Namespace: "orders"})
			}
			require.NoError(t, err)
			t.Cleanup(func() { _ = service.Close() })
			services = append(services, service)
		}
		report := watch(t, s, observe.Options{Group: observe.ByAddr}, func() {
			var group sync.WaitGroup
			group.Go(func() { oldTurns(t, s, "lock:7", time.Second) })
			for _, service := range services {
				group.Go(func() {
					for range 60 {
						assert.NoError(t, service.Do(t.Context(), "lock:7", func(context.Context) error { time.Sleep(2 * time.Millisecond); return nil }))
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			group.Wait()
		})
		java, members := observe.Row{}, 0
		for _, row := range report.Clients {
			t.Logf("member %v: %s %s %s lease %v (%s) %v to %v, skew %v ±%v, doubt %q, acquired %d", member, row.Addr, row.Kind, row.Dialect, row.LeaseMS, row.LeaseFrom, row.LeaseLeastMS, row.LeaseMostMS, value(row.SkewMS), value(row.SkewErrorMS), row.LeaseDoubt, row.Acquired)
			switch {
			case row.Kind == observe.Member:
				members++
				assert.Equal(t, []any{"jedis-ms", 30_000.0, false}, []any{row.Dialect, row.LeaseMS, row.LeaseVaries})
				assert.Nil(t, row.SkewMS)
			case row.Name == "java":
				java = row
			}
		}
		if member {
			assert.Equal(t, len(services), members)
			assert.Equal(t, observe.Legacy, java.Kind)
			assert.Equal(t, 1000.0, java.LeaseMS)
			assert.InDelta(t, 0, value(java.SkewMS), 100)
			continue
		}
		assert.Zero(t, members)
		assert.Contains(t, []float64{1000, 30_000}, java.LeaseMS)
		assert.Equal(t, java.LeaseMS == 30_000, java.LeaseDoubt == "it is 1s if its clock is right", java.LeaseDoubt)
	}
}
