package modern_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
)

// Options.Wait bounds all of an Acquire, also the first attempt.
func TestWaitBoundsTheWholeAcquire(t *testing.T) {
	for name, opts := range map[string]kind{
		"queue": {}, "unfair": {Unfair: true}, "redisson": {Redisson: true}, "pooled": {Pooled: true},
	} {
		t.Run(name, func(t *testing.T) {
			opts.Wait, opts.ReplyTimeout = 200*time.Millisecond, 10*time.Second
			world.Run(t, 1, func(w *world.World) {
				s := w.Server()
				locker := openOver(w, s.Pool(), opts)
				k, err := locker.Acquire(w.Context(), "other")
				require.NoError(w, err)
				require.NoError(w, k.Release(w.Context()))
				defer s.Freeze()()
				start := time.Now()
				_, err = locker.Acquire(context.Background(), key)
				assert.ErrorContains(w, err, "Options.Wait is over")
				assert.Less(w, time.Since(start), 210*time.Millisecond)
			})
		})
	}
}

// Options.Wait bounds what follows an acquisition: here replicas that never confirm.
func TestWaitBoundsTheReplicas(t *testing.T) {
	locker := open(t, redistest.Real(t), kind{Wait: 200 * time.Millisecond, ReplyTimeout: 10 * time.Second, Replicas: 1, TTL: 27 * time.Second})
	start := time.Now()
	_, err := locker.Acquire(context.Background(), key)
	assert.ErrorContains(t, err, "Options.Wait is over")
	assert.Less(t, time.Since(start), 5*time.Second)
}
