package modern_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// The listening connection breaks in the moment in which a waiter's context ends: the line beside it is given up, and waited
// for, while the waiter's question is still to be brought to its end. With a WaitGroup, the race detector saw it in two of
// three runs.
func TestTheListenerBreaksAsAWaiterLeaves(t *testing.T) {
	const rounds, delay = 200, time.Millisecond
	s := redistest.Real(t)
	link := redistest.NewLink(t, s.Addr)
	pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", link.Addr)
	}}
	t.Cleanup(func() { _ = pool.Close() })
	var mode redistest.Mode
	locker := newLocker(t, pool, modern.Options{Unfair: true, TTL: time.Minute, ReplyTimeout: 10 * time.Second, Observer: mode.Observe})
	s.Do("SET", key, "another's", "PX", 60_000)
	for range redistest.Rounds(4, 15) {
		link.Heal()
		ctx, leave := context.WithCancel(t.Context())
		waiter := make(chan error)
		go func() {
			_, err := locker.Acquire(ctx, key)
			waiter <- err
		}()
		redistest.Await(t, "the waiter to listen", time.Minute, func() bool { return mode.Is() == "tracking" })
		link.Slow(delay, 0)
		s.Do("PEXPIRE", key, 60_000)  // wakes the waiter: it asks again, and has its reply after two delays
		time.Sleep(rand.N(3 * delay)) // the subject
		s.Do("CLIENT", "KILL", "TYPE", "pubsub")
		time.Sleep(rand.N(2 * delay)) // the subject
		leave()
		assert.ErrorIs(t, <-waiter, lockmigrate.ErrNotAcquired)
	}
}

// A waiter without a place in a queue whose questions stay without answers, and whose context ends before an answer comes,
// does not leave the key taken for a TTL.
func TestAWaiterLeavesWhileItsQuestionsAreUnanswered(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		var losing atomic.Bool
		var lost atomic.Int32
		pool := &redistest.Faulty{Pool: s.Pool(), Fate: func(int, string) redistest.Fate {
			if losing.Load() {
				lost.Add(1)
				return redistest.LosesReply
			}
			return redistest.Passes
		}}
		var mode redistest.Mode
		locker := newLocker(t, pool, modern.Options{Unfair: true, Poll: 5 * time.Millisecond, Observer: mode.Observe})
		lock, err := locker.Acquire(t.Context(), "other") // the server knows the scripts from now on
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		s.Do("SET", key, "another's")
		ctx, leave := context.WithCancel(t.Context())
		waiter := make(chan error)
		go func() {
			_, err := locker.Acquire(ctx, key)
			waiter <- err
		}()
		redistest.Await(t, "the waiter to poll", time.Minute, func() bool { return mode.Is() == "polling" })
		losing.Store(true)
		redistest.Await(t, "a lost answer", time.Minute, func() bool { return lost.Load() > 0 })
		s.Do("DEL", key)
		before := lost.Load()
		redistest.Await(t, "the key to be taken without an answer", time.Minute, func() bool { return s.Value(key) != "" && lost.Load() > before+2 })
		leave()
		err = <-waiter
		assert.ErrorIs(t, err, lockmigrate.ErrUnknownOutcome, "it is on the key, or may be")
		assert.ErrorIs(t, err, context.Canceled)
		redistest.Await(t, "the key to be given back", 10*time.Second, func() bool { return s.Value(key) == "" })
	})
}
