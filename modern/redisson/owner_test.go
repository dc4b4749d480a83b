package redisson_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// A second goroutine of an owner gives up while the server still counts its hold, after the first one has released: the
// key is given back, and nobody hears of a loss.
func TestReentryThatGivesUpAfterTheRelease(t *testing.T) {
	s := redistest.Real(t)
	route := redistest.NewRoute(s.Addr)
	var mu sync.Mutex
	takes, second := 0, make(chan struct{})
	route.Decide = func(words []string) (h redistest.Happening) {
		mu.Lock()
		defer mu.Unlock()
		if len(words) == 6 && words[0] == "EVALSHA" && words[3] == key { // a take: one key, TTL and holder
			if takes++; takes == 2 {
				h.LateReply = 300 * time.Millisecond
				close(second)
			}
		}
		return h
	}
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.Addr, redis.DialContextFunc(route.Dial))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	ends := make(chan lockmigrate.EventKind, 10)
	locker := newLocker(t, pool, modern.Options{
		TTL: 2 * time.Second,
		Observer: func(e lockmigrate.Event) {
			if e.Kind == lockmigrate.EventReleased || e.Kind == lockmigrate.EventLost {
				ends <- e.Kind
			}
		},
	})
	var made *lockers.Hold
	redisson.Made(locker, func(h *lockers.Hold) { made = h })
	owner := modern.WithOwner(t.Context(), "owner")
	first, err := locker.Acquire(owner, key)
	require.NoError(t, err)
	ctx, giveUp := context.WithCancel(owner)
	given := make(chan error, 1)
	go func() {
		_, err := locker.Acquire(ctx, key)
		given <- err
	}()
	<-second
	redistest.Await(t, "the server counts two", 5*time.Second, func() bool { // they go over connections of their own
		counts, err := redis.Strings(s.Do("HVALS", key), nil)
		return err == nil && len(counts) == 1 && counts[0] == "2"
	})
	released := make(chan error, 1)
	go func() { released <- first.Release(t.Context()) }()
	redistest.Await(t, "the first has released", 5*time.Second, func() bool { return made.Count() == 1 })
	giveUp()
	require.ErrorIs(t, <-given, lockmigrate.ErrNotAcquired)
	require.NoError(t, <-released)
	select {
	case kind := <-ends:
		assert.Equal(t, lockmigrate.EventReleased, kind)
	case <-time.After(10 * time.Second):
		t.Error("the hold never ends")
	}
	redistest.Await(t, "the key is free", 5*time.Second, func() bool { return s.Do("EXISTS", key) == int64(0) })
	assert.ErrorIs(t, context.Cause(first.Context()), lockmigrate.ErrReleased)
}

// An owner that was stopped past the deadline comes back, and acquires again before anybody has told it of the loss. It must not get
// what it does not hold any more.
func TestNobodyReentersPastTheDeadline(t *testing.T) {
	s := redistest.Real(t)
	locker := newLocker(t, s.Pool(), modern.Options{TTL: time.Minute})
	var made *lockers.Hold
	redisson.Made(locker, func(h *lockers.Hold) { made = h })
	owner := modern.WithOwner(t.Context(), "owner")
	_, err := locker.TryAcquire(owner, key)
	require.NoError(t, err)
	hold := made
	hold.Lease.Begin(hold.Lease.Began, hold.Lease.Began) // the watch looks at it in some seconds
	_, err = locker.TryAcquire(owner, key)
	assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
	assert.Equal(t, 1, hold.Count())
}
