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
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

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
