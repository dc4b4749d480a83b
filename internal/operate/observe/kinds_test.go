package observe_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

// TestOwnKinds lets this project's own lockers contend, each kind on its key and all that may share one on
// one key, and wants each recognised, every acquisition counted, and nothing reported.
func TestOwnKinds(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	type lock interface{ Release(context.Context) error }
	type acquire func(ctx context.Context, key string) (lock, error)
	var lockers []acquire
	var keys []string
	add := func(key string, a acquire) { lockers, keys = append(lockers, a), append(keys, key) }
	// A pool of one connection each, so that the rows of the report are the lockers.
	for range 2 {
		old, err := legacy.New(s.Pool(), legacy.Options{Lease: 30 * time.Second})
		require.NoError(t, err)
		defer old.Close()
		add("lock:legacy", func(ctx context.Context, k string) (lock, error) { return old.Acquire(ctx, k) })
		bridge, err := compat.New(s.Pool(), compat.Options{})
		require.NoError(t, err)
		defer bridge.Close()
		add("lock:bridge", func(ctx context.Context, k string) (lock, error) { return bridge.Acquire(ctx, k) })
		token, err := modern.New(s.Pool(), modern.Options{FenceTTL: time.Minute})
		require.NoError(t, err)
		defer token.Close()
		add("lock:modern", func(ctx context.Context, k string) (lock, error) { return token.Acquire(ctx, k) })
	}
	const turns = 12
	report := watch(t, s, observe.Options{Group: observe.ByHost}, func() {
		var group sync.WaitGroup
		for i, a := range lockers {
			group.Go(func() {
				for range turns {
					l, err := a(t.Context(), keys[i])
					if assert.NoError(t, err) {
						time.Sleep(2 * time.Millisecond) // the work
						assert.NoError(t, l.Release(context.Background()))
					}
				}
			})
		}
		group.Wait()
		// One after the other on one key, so that each follows each.
		for n := range 6 {
			l, err := lockers[n](t.Context(), "lock:shared")
			require.NoError(t, err)
			require.NoError(t, l.Release(context.Background()))
		}
	})
	byHost := fmt.Sprint(report.Hazards, report.Overlaps)
	require.Len(t, report.Clients, 3, "one host, three kinds")
	for _, row := range report.Clients {
		assert.EqualValues(t, 2*turns+2, row.Acquired, "all acquisitions of %s are seen", row.Kind)
		assert.EqualValues(t, 2*turns+2, row.Released, row.Kind)
	}
	assert.Empty(t, report.Hazards, byHost)
	assert.Empty(t, report.Overlaps, byHost)

	report = watch(t, s, observe.Options{}, func() {
		for n := range 3 {
			l, err := lockers[n](t.Context(), keys[n])
			require.NoError(t, err)
			require.NoError(t, l.Release(context.Background()))
		}
	})
	found := map[string]int64{}
	for _, row := range report.Clients {
		found[row.Kind+" "+row.Dialect] += row.Acquired
	}
	assert.Equal(t, map[string]int64{"legacy jedis-ms": 1, "bridge lockmigrate": 1, "modern lockmigrate": 1}, found)
}
