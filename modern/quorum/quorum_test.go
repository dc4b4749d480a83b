package quorum_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
)

const key = "orders"

func servers(t *testing.T, n int, start func(testing.TB) *redistest.Server) (all []*redistest.Server, pools []lockmigrate.Pool) {
	t.Helper()
	for range n {
		s := start(t)
		all, pools = append(all, s), append(pools, s.Pool())
	}
	return all, pools
}

func mini(t testing.TB) *redistest.Server { return redistest.Mini(t) }
func real(t testing.TB) *redistest.Server { return redistest.Real(t) }

func newQuorum(t *testing.T, pools []lockmigrate.Pool, opts modern.Options) lockmigrate.Locker {
	t.Helper()
	q, err := quorum.New(pools, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = q.Close() })
	return q
}

func TestQuorumIsAMajority(t *testing.T) {
	all, pools := servers(t, 5, mini)
	q := newQuorum(t, pools, modern.Options{TTL: 10 * time.Second})
	all[0].Do("SET", key, "another's")
	all[1].Do("SET", key, "another's")
	lock, err := q.TryAcquire(t.Context(), key)
	require.NoError(t, err, "three of five")
	validity := time.Until(lock.Expiry())
	assert.Less(t, validity, 10*time.Second-100*time.Millisecond, "the drift is taken off")
	assert.Greater(t, validity, 9*time.Second)
	require.NoError(t, lock.Renew(t.Context()))
	require.NoError(t, lock.Release(t.Context()))
	for _, s := range all[2:] {
		require.Eventually(t, func() bool { return s.Do("EXISTS", key) == int64(0) }, 10*time.Second, time.Millisecond)
	}
	assert.Equal(t, "another's", all[0].Value(key))
	assert.ErrorIs(t, lock.Release(t.Context()), lockmigrate.ErrReleased)

	all[2].Do("SET", key, "another's")
	_, err = q.TryAcquire(t.Context(), key)
	assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired, "two of five")
	for _, s := range all[3:] {
		require.Eventually(t, func() bool { return s.Do("EXISTS", key) == int64(0) }, 10*time.Second, time.Millisecond, "undone everywhere")
	}
}

func TestQuorumSurvivesAMinority(t *testing.T) {
	all, pools := servers(t, 3, mini)
	q := newQuorum(t, pools, modern.Options{})
	all[0].Mini.Close()
	require.NoError(t, q.Do(t.Context(), key, func(context.Context) error { return nil }))
	all[1].Mini.Close()
	_, err := q.TryAcquire(t.Context(), key)
	require.Error(t, err)
	assert.NotErrorIs(t, err, lockmigrate.ErrNotAcquired, "nobody holds it: too few answered")
}

// TestQuorumWaitsForItsServers: Acquire tries until the majority is back, or until its time is over; what the servers refuse
// ends it at once.
func TestQuorumWaitsForItsServers(t *testing.T) {
	all, pools := servers(t, 3, real)
	q := newQuorum(t, pools, modern.Options{Poll: 10 * time.Millisecond})
	all[0].Kill()
	all[1].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := q.Acquire(ctx, key)
	assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "connection refused", "why it lasted")
	assert.Greater(t, time.Since(start), 250*time.Millisecond)

	acquired := make(chan error, 1)
	go func() { acquired <- q.Do(t.Context(), key, func(context.Context) error { return nil }) }()
	all[0].Start()
	assert.NoError(t, <-acquired)

	for _, s := range all[1:] {
		if s == all[1] {
			s.Start()
		}
		s.Do("ACL", "SETUSER", "default", "-set")
	}
	start = time.Now()
	_, err = q.Acquire(t.Context(), key)
	assert.ErrorContains(t, err, "NOPERM")
	assert.NotErrorIs(t, err, lockmigrate.ErrNotAcquired)
	assert.Less(t, time.Since(start), 30*time.Second)
}

func TestQuorumValidates(t *testing.T) {
	_, err := quorum.New(nil, modern.Options{})
	assert.Error(t, err)
	pool := redistest.Mini(t).Pool()
	for want, o := range map[string]modern.Options{
		"TTL 1µs:": {TTL: time.Microsecond}, "Poll -1s:": {Poll: -time.Second}, "Wait -1s:": {Wait: -time.Second},
		"leave them zero": {FenceTTL: time.Minute}, "only package modern has them": {Replicas: 1}, "FenceTTL, Unfair": {Unfair: true}, "Yield": {Yield: time.Second},
	} {
		_, err := quorum.New([]lockmigrate.Pool{pool}, o)
		assert.ErrorContains(t, err, want)
	}
	_, err = quorum.New([]lockmigrate.Pool{pool, (*redis.Pool)(nil)}, modern.Options{})
	assert.ErrorContains(t, err, "pool 1: a Locker needs a pool: the *redis.Pool is nil")
	_, err = quorum.New([]lockmigrate.Pool{pool, redistest.Mini(t).Pool(), pool}, modern.Options{})
	assert.ErrorContains(t, err, "pools 0 and 2 are one and the same")
}

// TestAMinorityThatRefusesIsAskedAgain: one server refuses the release that the majority confirms. When it would run it, it has: the key
// does not stay for the TTL.
func TestAMinorityThatRefusesIsAskedAgain(t *testing.T) {
	for _, first := range []bool{true, false} { // refused by all at first, or by one only
		t.Run(strconv.FormatBool(first), func(t *testing.T) {
			all, pools := servers(t, 3, real)
			q := newQuorum(t, pools, modern.Options{TTL: time.Minute})
			lock, err := q.TryAcquire(t.Context(), key)
			require.NoError(t, err)
			for _, s := range all {
				require.Eventually(t, func() bool { return s.Value(key) != "" }, 10*time.Second, time.Millisecond)
			}
			refuse := all[2:]
			if first {
				refuse = all
			}
			for _, s := range refuse {
				s.Do("CONFIG", "SET", "min-replicas-to-write", "1")
			}
			err = lock.Release(t.Context())
			assert.Equal(t, first, err != nil, "%v", err)
			for _, s := range refuse[:len(refuse)-1] {
				s.Do("CONFIG", "SET", "min-replicas-to-write", "0")
			}
			require.Eventually(t, func() bool { return lock.Context().Err() != nil }, 10*time.Second, time.Millisecond)
			assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrReleased)
			time.Sleep(100 * time.Millisecond) // and it is refused once more
			assert.NotEmpty(t, all[2].Value(key))
			all[2].Do("CONFIG", "SET", "min-replicas-to-write", "0")
			for _, s := range all {
				assert.Eventually(t, func() bool { return s.Value(key) == "" }, 10*time.Second, time.Millisecond)
			}
		})
	}
}
