package modern_test

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// The faults that were found in other libraries, by the numbers that the documentation gives them. Each
// test is one that a library with the fault fails.

// Fault 1: a deadline from the client's clock (SET PXAT) lets a second holder in when the clocks differ.
// Here the server's clock is ten seconds off, either way, and the lease is three seconds: nothing of it
// is lost or won by that, and fencing tokens still rise.
func TestFault01ServersClockDiffers(t *testing.T) {
	opts := modern.Options{TTL: 3 * time.Second, FenceTTL: time.Minute}
	for _, off := range []time.Duration{10 * time.Second, -10 * time.Second} {
		s := redistest.Mini(t)
		s.Mini.SetTime(time.Now().Add(off))
		lock, err := newLocker(t, s.Pool(), opts).TryAcquire(t.Context(), key)
		require.NoError(t, err)
		assert.InDelta(t, 3*time.Second, s.Mini.TTL(key), float64(time.Millisecond), "the server counts the whole lease")
		_, err = newLocker(t, s.Pool(), opts).TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		require.NoError(t, lock.Renew(t.Context()))
		assert.InDelta(t, 3*time.Second, s.Mini.TTL(key), float64(time.Millisecond))
		s.Mini.SetTime(time.Now().Add(-2 * off))
		s.Mini.FastForward(4 * time.Second)
		second, err := newLocker(t, s.Pool(), opts).TryAcquire(t.Context(), key)
		require.NoError(t, err)
		assert.Greater(t, second.Fence(), lock.Fence(), "though the server's clock was set back")
	}
}

// And on the wire there is no absolute time at all, in none of the layouts and ways of waiting.
func TestFault01OnlyRelativeTimesOnTheWire(t *testing.T) {
	for name, opts := range map[string]kind{
		"fenced": {Options: modern.Options{FenceTTL: time.Minute}}, "unfair": {Options: modern.Options{Unfair: true}}, "redisson": {Redisson: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t)
			monitor := s.Monitor()
			var mode redistest.Mode
			a := open(t, s, opts)
			opts.Observer = mode.Observe
			b := open(t, s, opts)
			lock, err := a.Acquire(t.Context(), key)
			require.NoError(t, err)
			second := make(chan error, 1)
			go func() { second <- b.Do(t.Context(), key, func(context.Context) error { return nil }) }()
			require.Eventually(t, func() bool { return mode.Is() == "tracking" }, time.Minute, time.Millisecond)
			require.NoError(t, lock.Renew(t.Context()))
			require.NoError(t, lock.Release(t.Context()))
			require.NoError(t, <-second)
			now := time.Now().Unix()
			for _, command := range monitor.Commands() {
				for _, word := range command.Words {
					assert.NotContains(t, []string{"PXAT", "EXAT", "PEXPIREAT", "EXPIREAT"}, strings.ToUpper(word), "%v", command)
					assert.NotContains(t, word, strconv.FormatInt(now/1000, 10), "a time of the day: %v", command)
				}
			}
		})
	}
}

// Fault 3: a release script on every failed try. Ten tries are ten commands.
func TestFault03FailedTryIsOneCommand(t *testing.T) {
	for name, opts := range map[string]kind{
		"token": {}, "fenced": {Options: modern.Options{FenceTTL: time.Minute}}, "redisson": {Redisson: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t)
			_, err := open(t, s, opts).TryAcquire(t.Context(), key)
			require.NoError(t, err)
			locker := open(t, s, opts)
			_, err = locker.TryAcquire(t.Context(), key) // connects
			require.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
			monitor := s.Monitor()
			for range 10 {
				_, err := locker.TryAcquire(t.Context(), key)
				require.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
			}
			commands := monitor.Commands()
			assert.Len(t, commands, 10, "%v", commands)
			if name == "token" {
				for _, c := range commands {
					require.Equal(t, "SET", c.Words[0])
					assert.Equal(t, []string{"NX", "PX", "30000"}, c.Words[3:])
				}
			}
		})
	}
}

// Fault 7: thousands of waiters at the server, herds and deadlocks. One waiter for each key and process
// talks to the server: the connections stay few, and so do the commands of those who only wait.
func TestFault07OneWaiterTalksToTheServer(t *testing.T) {
	s := redistest.Real(t)
	holder := newLocker(t, s.Pool(), modern.Options{})
	lock, err := holder.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	var mode redistest.Mode
	waiter := newLocker(t, s.Pool(), modern.Options{Observer: mode.Observe})
	const n = 1000
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var got atomic.Int32
	for range n {
		all.Go(func() {
			lock, err := waiter.Acquire(ctx, key)
			if err == nil {
				got.Add(1)
				err = lock.Release(t.Context())
			}
			assert.NoError(t, err)
		})
	}
	require.Eventually(t, func() bool { return s.Do("EXISTS", "{"+key+"}:queue") == int64(1) }, time.Minute, time.Millisecond)
	clients := strings.Count(string(s.Do("CLIENT", "LIST").([]byte)), "\n")
	assert.LessOrEqual(t, clients, 10, "connections")
	require.Eventually(t, func() bool { return mode.Is() == "tracking" }, time.Minute, time.Millisecond)
	time.Sleep(100 * time.Millisecond) // until the watch is set
	monitor := s.Monitor()
	time.Sleep(300 * time.Millisecond) // the subject is that nothing happens
	assert.LessOrEqual(t, len(monitor.Commands()), 2, "nobody polls")
	require.NoError(t, lock.Release(t.Context()))
	all.Wait()
	assert.EqualValues(t, n, got.Load())
	cancel()
}

// Fault 8: a wake-up that is lost hangs the waiter. Whatever happens to the messages, the TTL's timer
// wakes it; here the holder has crashed, and then the waiter's connections break as well.
func TestFault08LostWakeUp(t *testing.T) {
	for name, opts := range map[string]kind{
		"queue": {}, "untracked": {Untracked: true, Options: modern.Options{Poll: time.Hour}}, "unfair": {Options: modern.Options{Unfair: true}}, "redisson": {Redisson: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			if opts.Redisson {
				s.Do("HSET", key, "crashed:1", 1)
				s.Do("PEXPIRE", key, 700)
			} else {
				s.Do("SET", key, "crashed", "PX", 700)
			}
			late, start := redistest.NewLateness(t), time.Now()
			locker := open(t, s, opts)
			time.AfterFunc(200*time.Millisecond, func() { s.Do("CLIENT", "KILL", "TYPE", "pubsub") })
			lock, err := locker.Acquire(t.Context(), key)
			require.NoError(t, err)
			assert.WithinRange(t, time.Now(), start.Add(690*time.Millisecond), start.Add(1500*time.Millisecond+late.Most()))
			require.NoError(t, lock.Release(t.Context()))
		})
	}
}

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
