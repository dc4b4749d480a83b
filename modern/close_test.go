package modern_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

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
