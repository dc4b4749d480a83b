package quorum_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
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
		require.Eventually(t, func() bool { return s.Do("EXISTS", key) == int64(0) }, time.Minute, time.Millisecond)
	}
	assert.Equal(t, "another's", all[0].Value(key))
	assert.ErrorIs(t, lock.Release(t.Context()), lockmigrate.ErrReleased)

	all[2].Do("SET", key, "another's")
	_, err = q.TryAcquire(t.Context(), key)
	assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired, "two of five")
	for _, s := range all[3:] {
		require.Eventually(t, func() bool { return s.Do("EXISTS", key) == int64(0) }, time.Minute, time.Millisecond, "undone everywhere")
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
	ctx := redistest.Bounded(t, 300*time.Millisecond)
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

// TestQuorumNeedsServersThatAreIndependent. testdata/options.txt of the module's root has what is refused of the options.
func TestQuorumNeedsServersThatAreIndependent(t *testing.T) {
	pool := redistest.Mini(t).Pool()
	for want, pools := range map[string][]lockmigrate.Pool{
		"a Locker needs pools":                                  nil,
		"pool 1: a Locker needs a pool: the *redis.Pool is nil": {pool, (*redis.Pool)(nil)},
		"pools 0 and 2 are one and the same":                    {pool, redistest.Mini(t).Pool(), pool},
	} {
		_, err := quorum.New(pools, modern.Options{})
		assert.ErrorContains(t, err, want)
	}
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
				require.Eventually(t, func() bool { return s.Value(key) != "" }, time.Minute, time.Millisecond)
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
			require.Eventually(t, func() bool { return lock.Context().Err() != nil }, time.Minute, time.Millisecond)
			assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrReleased)
			time.Sleep(100 * time.Millisecond) // and it is refused once more
			assert.NotEmpty(t, all[2].Value(key))
			all[2].Do("CONFIG", "SET", "min-replicas-to-write", "0")
			for _, s := range all {
				assert.Eventually(t, func() bool { return s.Value(key) == "" }, time.Minute, time.Millisecond)
			}
		})
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Renewals to a server that does not answer do not pile up: the release and Close wait for none of them.
func TestRenewalsDoNotPileUp(t *testing.T) {
	const renewals, patience = 50, 100 * time.Millisecond
	var pools []lockmigrate.Pool
	var silent *redistest.Server
	for range 3 {
		silent = redistest.Real(t)
		pools = append(pools, silent.Pool())
	}
	q, err := quorum.New(pools, modern.Options{TTL: time.Minute, ReplyTimeout: patience})
	require.NoError(t, err)
	lock, err := q.Acquire(t.Context(), "k")
	require.NoError(t, err)
	thaw := silent.Freeze()
	defer thaw()
	for range renewals {
		require.NoError(t, lock.Renew(t.Context()))
	}
	require.NoError(t, lock.Release(t.Context()))
	began := time.Now()
	q.Close()
	assert.Less(t, time.Since(began), renewals*patience/2)
}

// three returns a Locker over three servers of a world, after its first lock, with a reply timeout of 60 ms.
func three(w *world.World, observer lockmigrate.Observer) (q lockmigrate.Locker, servers []*world.Server, routes []*world.Route) {
	var pools []lockmigrate.Pool
	p := w.Process("quorum")
	for i := range 3 {
		servers = append(servers, w.Server())
		routes = append(routes, p.Route(servers[i]))
		pools = append(pools, routes[i].Pool())
	}
	q, err := quorum.New(pools, modern.Options{TTL: time.Minute, ReplyTimeout: 60 * time.Millisecond, Observer: observer})
	require.NoError(w, err)
	w.Cleanup(func() { _ = q.Close() })
	first, err := q.Acquire(w.Context(), "before")
	require.NoError(w, err)
	require.NoError(w, first.Release(w.Context()))
	return q, servers, routes
}

// TestAQuorumTellsWhatItCouldNotUndo: whoever left before the replies is told that the lock was not acquired; that its
// token may stay on most servers for a TTL must not be kept from the observer.
func TestAQuorumTellsWhatItCouldNotUndo(t *testing.T) {
	world.Run(t, 1, func(w *world.World) {
		var told atomic.Int32
		seen := &redistest.Told{}
		q, _, routes := three(w, func(e lockmigrate.Event) {
			seen.Observe(e)
			if e.Op == "give back" {
				told.Add(1)
			}
		})
		for _, r := range routes {
			r.HalfOpen() // commands run, and nobody hears of it
		}
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := q.TryAcquire(ctx, "orders")
		require.ErrorIs(w, err, lockmigrate.ErrNotAcquired)
		time.Sleep(time.Second)
		require.EqualValues(w, 1, told.Load())
		require.True(w, seen.Of("orders"))
		for _, r := range routes {
			r.Heal()
		}
	})
}

// TestALateVoteIsUndone: the servers answer again about when an attempt gives up. What it goes on to do without its caller must not
// take the key behind the release that undoes the attempt. The key stayed taken for a TTL, and nobody was told.
func TestALateVoteIsUndone(t *testing.T) {
	for after := 110 * time.Millisecond; after < 140*time.Millisecond; after += time.Millisecond {
		world.Run(t, uint64(after), func(w *world.World) {
			q, servers, routes := three(w, nil)
			for _, r := range routes {
				r.HalfOpen()
				time.AfterFunc(after, r.Heal)
			}
			ctx, cancel := context.WithTimeout(w.Context(), 280*time.Millisecond)
			defer cancel()
			k, err := q.Acquire(ctx, "orders")
			if err == nil {
				require.NoError(w, k.Release(w.Context()))
			}
			time.Sleep(2 * time.Second)
			for _, s := range servers {
				require.Equal(w, int64(0), s.Do("EXISTS", "orders"), "healed after %v", after)
			}
		})
	}
}
