package modern_test

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/modern"
)

// Fault 4: a reply that is lost after SET leaves an orphan for a whole TTL. Here it is settled while the
// caller still wants the lock, cleaned up by token when it does not (TestLifecycle), and reported as unknown, with the
// time, when neither can be confirmed (TestNothingAnswers in internal/evidence/suites/kinds).
func TestFault04LostReplies(t *testing.T) {
	for name, opts := range map[string]kind{"token": {}, "fenced": {Options: modern.Options{FenceTTL: time.Minute}}, "redisson": {Redisson: true}} {
		for what, fault := range map[string]world.Fault{"reply": {LoseReply: true}, "command": {LoseCommand: true}} {
			t.Run(name+" "+what, func(t *testing.T) {
				redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
					var losing atomic.Bool // the next command for the key
					losing.Store(true)
					route := s.Route("a")
					route.Decide = func(words []string) (f world.Fault) {
						if slices.Contains(words, key) && losing.Swap(false) {
							f = fault
						}
						return f
					}
					locker := openOver(t, route.Pool(), opts)
					for range 2 {
						lock, err := locker.TryAcquire(t.Context(), key)
						require.NoError(t, err, "settled by asking again")
						losing.Store(true)
						require.NoError(t, lock.Release(t.Context()))
						assert.False(t, losing.Load(), "it was lost")
						assert.EqualValues(t, 0, s.Do("EXISTS", key), "no orphan")
						losing.Store(true)
					}
				})
			})
		}
	}
}

// An answer that is read after the TTL, as by a process that was stopped meanwhile, is no lock: the caller is told
// instead of being handed one that is over.
func TestAnswerReadAfterTheTTL(t *testing.T) {
	for name, opts := range map[string]kind{"token": {}, "redisson": {Redisson: true}} {
		t.Run(name, func(t *testing.T) {
			redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
				var late atomic.Bool
				wire := func(ctx context.Context, _, _ string) (net.Conn, error) {
					conn, err := s.Wire(ctx)
					return &sluggish{conn, &late}, err
				}
				pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
					return redis.DialContext(ctx, "tcp", "", redis.DialContextFunc(wire))
				}}
				t.Cleanup(func() { _ = pool.Close() })
				opts.TTL, opts.ReplyTimeout = 500*time.Millisecond, 490*time.Millisecond
				locker := openOver(t, pool, opts)
				late.Store(true)
				_, err := locker.TryAcquire(t.Context(), key)
				late.Store(false)
				assert.ErrorIs(t, err, lockmigrate.ErrLost)
				assert.ErrorContains(t, err, "after the TTL")
			})
		})
	}
}

// sluggish is a connection whose reader is stopped for longer than the TTL, once it has read something.
type sluggish struct {
	net.Conn
	late *atomic.Bool
}

func (c *sluggish) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.late.Load() {
		time.Sleep(520 * time.Millisecond)
	}
	return n, err
}

// Options.Wait bounds what follows an acquisition: here replicas that never confirm.
func TestWaitBoundsTheReplicas(t *testing.T) {
	locker := newLocker(t, redistest.Real(t).Pool(), modern.Options{Wait: 200 * time.Millisecond, ReplyTimeout: 10 * time.Second, Replicas: 1, TTL: 27 * time.Second})
	start := time.Now()
	_, err := locker.Acquire(context.Background(), key)
	assert.ErrorContains(t, err, "Options.Wait is over")
	assert.Less(t, time.Since(start), 5*time.Second)
}
