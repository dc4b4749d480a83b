package redisson_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "orders"

func newLocker(t *testing.T, pool lockmigrate.Pool, opts modern.Options) lockmigrate.Locker {
	t.Helper()
	locker, err := redisson.New(pool, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

// What stands on the key is what RLock writes: one field, "<uuid>:<number>", with the hold count, and a TTL of 30 s. An
// owner's Locks are one hold there, and only the last release deletes the key.
func TestLeasesOfRedissonsFormat(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		locker := newLocker(t, s.Pool(), modern.Options{})
		owner := modern.WithOwner(t.Context(), "me")
		first, err := locker.Acquire(owner, key)
		require.NoError(t, err)
		assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}:1$`, first.Token())
		holds := func() map[string]string {
			fields, err := redis.StringMap(s.Do("HGETALL", key), nil)
			require.NoError(t, err)
			return fields
		}
		assert.Equal(t, map[string]string{first.Token(): "1"}, holds())
		assert.InDelta(t, 29_500, s.Do("PTTL", key), 1_000)
		assert.WithinDuration(t, time.Now().Add(30*time.Second), first.Expiry(), time.Second)
		second, err := locker.TryAcquire(owner, key)
		require.NoError(t, err)
		assert.Equal(t, map[string]string{first.Token(): "1"}, holds())

		_, err = newLocker(t, s.Pool(), modern.Options{}).TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		require.NoError(t, first.Release(t.Context()))
		assert.Equal(t, map[string]string{first.Token(): "1"}, holds())
		require.NoError(t, second.Release(t.Context()))
		assert.Empty(t, holds())
		assert.Zero(t, first.Fence())
	})
}

func TestValidate(t *testing.T) {
	for want, o := range map[string]modern.Options{
		"TTL 1ms":                    {TTL: time.Millisecond},
		"more than half of TTL":      {TTL: time.Second, RenewEvery: time.Second},
		"MaxHold 1m0s: without":      {RenewEvery: -1, MaxHold: time.Minute},
		"not less than TTL":          {TTL: time.Second, ReplyTimeout: time.Second},
		"Wait -1s: must not":         {Wait: -time.Second},
		"Poll 1µs: at least":         {Poll: time.Microsecond},
		"ReplyTimeout 1ns: at least": {ReplyTimeout: 1},
		"leave them zero":            {FenceTTL: time.Minute}, "only package modern has them": {Replicas: 1}, "FenceTTL, Unfair": {Unfair: true}, "Yield": {Yield: time.Second},
	} {
		_, err := redisson.New(redistest.Mini(t).Pool(), o)
		require.ErrorContains(t, err, want)
		assert.True(t, strings.HasPrefix(err.Error(), "redisson: "), err)
	}
}
