package modern_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
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
		assert.ErrorIs(t, err, modern.ErrNotAcquired)
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
		"fenced": {FenceTTL: time.Minute}, "unfair": {Unfair: true}, "redisson": {Redisson: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t)
			monitor := s.Monitor()
			a, b := open(t, s, opts), open(t, s, opts)
			lock, err := a.Acquire(t.Context(), key)
			require.NoError(t, err)
			second := make(chan error, 1)
			go func() { second <- b.Do(t.Context(), key, func(context.Context) error { return nil }) }()
			require.Eventually(t, func() bool { return b.Waiting() == lockmigrate.ModeTracking }, 10*time.Second, time.Millisecond)
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

// Fault 2: a command that does not know the context. TryAcquire with 200 ms comes back after 200 ms
// though the server is paused for three seconds, says so, and leaves nothing behind.
func TestFault02ContextIsHonoured(t *testing.T) {
	for name, opts := range map[string]kind{"line": {}, "pool": {Pooled: true}, "redisson": {Redisson: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			locker := open(t, s, opts)
			warm, err := locker.Acquire(t.Context(), "another")
			require.NoError(t, err)
			s.Do("CLIENT", "PAUSE", 3000)
			quick := func(what string, op func(ctx context.Context) error) {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				start := time.Now()
				err := op(ctx)
				assert.Less(t, time.Since(start), 700*time.Millisecond, what)
				assert.ErrorIs(t, err, context.DeadlineExceeded, what)
			}
			quick("TryAcquire", func(ctx context.Context) error {
				_, err := locker.TryAcquire(ctx, key)
				assert.ErrorIs(t, err, modern.ErrNotAcquired)
				return err
			})
			quick("Acquire", func(ctx context.Context) error { _, err := locker.Acquire(ctx, key); return err })
			quick("Renew", warm.Renew)
			quick("Release", warm.Release)
			require.Eventually(t, func() bool { return s.Do("EXISTS", key, "another") == int64(0) }, 20*time.Second, 10*time.Millisecond,
				"given back when the server answers again")
		})
	}
}

// Fault 3: a release script on every failed try. Ten tries are ten commands.
func TestFault03FailedTryIsOneCommand(t *testing.T) {
	for name, opts := range map[string]kind{
		"token": {}, "fenced": {FenceTTL: time.Minute}, "pool": {Pooled: true}, "redisson": {Redisson: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t)
			_, err := open(t, s, opts).TryAcquire(t.Context(), key)
			require.NoError(t, err)
			locker := open(t, s, opts)
			_, err = locker.TryAcquire(t.Context(), key) // connects
			require.ErrorIs(t, err, modern.ErrNotAcquired)
			monitor := s.Monitor()
			for range 10 {
				_, err := locker.TryAcquire(t.Context(), key)
				require.ErrorIs(t, err, modern.ErrNotAcquired)
			}
			commands := monitor.Commands()
			assert.Len(t, commands, 10, "%v", commands)
			if name == "token" || name == "pool" {
				for _, c := range commands {
					require.Equal(t, "SET", c.Words[0])
					assert.Equal(t, []string{"NX", "PX", "30000"}, c.Words[3:])
				}
			}
		})
	}
}

// wire is a way to lose commands and replies on connections that are dialled with it.
type wire struct {
	s *redistest.Server

	mu    sync.Mutex
	fates []fate
}

// fate is what happens to the next write that contains a text.
type fate struct {
	text  string
	loses redistest.Fate
}

func (w *wire) next(f ...fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fates = f
}

func (w *wire) pool(t *testing.T) *redis.Pool {
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", w.s.Addr, redis.DialContextFunc(func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &wiredConn{Conn: conn, wire: w}, err
		}))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

type wiredConn struct {
	net.Conn
	wire    *wire
	swallow atomic.Bool
}

func (c *wiredConn) Write(p []byte) (int, error) {
	c.wire.mu.Lock()
	var loses redistest.Fate
	if f := c.wire.fates; len(f) > 0 && bytes.Contains(p, []byte(f[0].text)) {
		loses = f[0].loses
		c.wire.fates = f[1:]
	}
	c.wire.mu.Unlock()
	switch loses {
	case redistest.LosesReply:
		c.swallow.Store(true)
	case redistest.LosesCommand:
		_ = c.Conn.Close()
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *wiredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.swallow.Load() { // the reply has come, so the command has run
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

// Fault 4: a reply that is lost after SET leaves an orphan for a whole TTL. Here it is settled while the
// caller still wants the lock, cleaned up by token when it does not, and reported as unknown, with the
// time, when neither can be confirmed.
func TestFault04LostReplies(t *testing.T) {
	for name, opts := range map[string]kind{"token": {}, "fenced": {FenceTTL: time.Minute}, "redisson": {Redisson: true}} {
		for what, loses := range map[string]redistest.Fate{"reply": redistest.LosesReply, "command": redistest.LosesCommand} {
			t.Run(name+" "+what, func(t *testing.T) {
				s := redistest.Real(t)
				w := &wire{s: s}
				locker := openOver(t, w.pool(t), opts)

				w.next(fate{key, loses})
				lock, err := locker.TryAcquire(t.Context(), key)
				require.NoError(t, err, "settled by asking again")
				w.next(fate{key, loses})
				require.NoError(t, lock.Release(t.Context()))
				assert.EqualValues(t, 0, s.Do("EXISTS", key), "no orphan")

				w.next(fate{key, loses})
				_, err = locker.Acquire(t.Context(), key)
				require.NoError(t, err)
			})
		}
	}
	t.Run("the caller has left", func(t *testing.T) {
		s := redistest.Real(t)
		locker := newLocker(t, s.Pool(), modern.Options{})
		_, err := locker.Acquire(t.Context(), "another") // connects
		require.NoError(t, err)
		s.Do("CLIENT", "PAUSE", 300, "WRITE")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err = locker.TryAcquire(ctx, key)
		assert.ErrorIs(t, err, modern.ErrNotAcquired)
		locker.Close()
		assert.EqualValues(t, 0, s.Do("EXISTS", key), "cleaned up by token")
	})
	t.Run("nothing answers", func(t *testing.T) {
		s := redistest.Real(t)
		locker := newLocker(t, s.Pool(), modern.Options{TTL: 2 * time.Second, ReplyTimeout: 50 * time.Millisecond})
		_, err := locker.Acquire(t.Context(), "another") // connects
		require.NoError(t, err)
		s.Signal(syscall.SIGSTOP)
		start := time.Now()
		_, err = locker.TryAcquire(t.Context(), key)
		s.Signal(syscall.SIGCONT)
		require.ErrorIs(t, err, modern.ErrUnknownOutcome)
		var e *modern.Error
		require.ErrorAs(t, err, &e)
		assert.WithinRange(t, e.Until, start.Add(2*time.Second), time.Now().Add(2*time.Second+50*time.Millisecond))
		// The frozen server runs the command when it thaws: the key is taken, and for no longer than said.
		require.Eventually(t, func() bool {
			return time.Now().After(e.Until.Add(100*time.Millisecond)) || s.Do("EXISTS", key) == int64(1)
		}, 5*time.Second, time.Millisecond)
		time.Sleep(time.Until(e.Until))
		assert.EqualValues(t, 0, s.Do("EXISTS", key))
	})
}

// Fault 5: a renewal that fails only logs, or dies silently. Here the holder's context ends at a local
// deadline that counts from before the last successful renewal was sent, though no reply ever comes.
func TestFault05LossWithoutAReply(t *testing.T) {
	for name, opts := range map[string]kind{"token": {}, "pool": {Pooled: true}, "redisson": {Redisson: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			const ttl = 600 * time.Millisecond
			var mu sync.Mutex
			var failures []error
			var renewed time.Time // the end of a renewal: its command was sent before
			opts.TTL, opts.ReplyTimeout = ttl, 150*time.Millisecond
			first := make(chan struct{})
			var once sync.Once
			opts.Observer = lockmigrate.ObserverFunc(func(e lockmigrate.Event) {
				mu.Lock()
				defer mu.Unlock()
				switch e.Kind {
				case lockmigrate.EventRenewed:
					renewed = time.Now()
					once.Do(func() { close(first) })
				case lockmigrate.EventFailed, lockmigrate.EventLost:
					assert.Equal(t, key, e.Key)
					failures = append(failures, e.Err)
				}
			})
			lock, err := open(t, s, opts).TryAcquire(t.Context(), key)
			require.NoError(t, err)
			<-first
			s.Signal(syscall.SIGSTOP)
			<-lock.Context().Done()
			ended := time.Now()
			s.Signal(syscall.SIGCONT)
			assert.ErrorIs(t, context.Cause(lock.Context()), modern.ErrLost)
			require.Eventually(t, func() bool { // the observer is told after the holder
				mu.Lock()
				defer mu.Unlock()
				return len(failures) > 0 && errors.Is(failures[len(failures)-1], modern.ErrLost)
			}, 10*time.Second, time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			assert.LessOrEqual(t, ended.Sub(renewed), ttl+50*time.Millisecond, "no later than the deadline")
			assert.GreaterOrEqual(t, ended.Sub(renewed), ttl/2, "and not at the first failure")
			require.GreaterOrEqual(t, len(failures), 2, "the observer heard of each")
			assert.NotErrorIs(t, failures[0], modern.ErrLost)
			var lost *modern.Error
			require.ErrorAs(t, context.Cause(lock.Context()), &lost)
			assert.Equal(t, lockmigrate.ReasonDeadline, lost.Reason)
			assert.Error(t, lost.Cause, "the I/O error behind it")
			assert.ErrorIs(t, lock.Release(t.Context()), modern.ErrLost)
		})
	}
}

// An answer that is read after the TTL, as by a process that was stopped meanwhile, is no lock: the caller is told
// instead of being handed one that is over.
func TestAnswerReadAfterTheTTL(t *testing.T) {
	for name, opts := range map[string]kind{"token": {Pooled: true}, "redisson": {Pooled: true, Redisson: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			var late atomic.Bool
			pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
				return redis.DialContext(ctx, "tcp", s.Addr, redis.DialNetDial(func(network, addr string) (net.Conn, error) {
					conn, err := net.Dial(network, addr)
					return &sluggish{conn, &late}, err
				}))
			}}
			t.Cleanup(func() { _ = pool.Close() })
			opts.TTL, opts.ReplyTimeout = 500*time.Millisecond, 400*time.Millisecond
			locker := openOver(t, pool, opts)
			late.Store(true)
			_, err := locker.TryAcquire(t.Context(), key)
			late.Store(false)
			assert.ErrorIs(t, err, modern.ErrLost)
			assert.ErrorContains(t, err, "after the TTL")
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
		time.Sleep(600 * time.Millisecond) // the subject
	}
	return n, err
}

// Fault 5, the other half: when the server says that the key is not ours, the holder hears it with the
// next renewal and not at the deadline.
func TestFault05LossByTheServersWord(t *testing.T) {
	s := redistest.Real(t)
	lock, err := newLocker(t, s.Pool(), modern.Options{TTL: 10 * time.Second, RenewEvery: 50 * time.Millisecond}).TryAcquire(t.Context(), key)
	require.NoError(t, err)
	start := time.Now()
	s.Do("SET", key, "another's")
	<-lock.Context().Done()
	assert.Less(t, time.Since(start), 2*time.Second)
	assert.ErrorIs(t, context.Cause(lock.Context()), modern.ErrLost)
	assert.ErrorIs(t, lock.Renew(t.Context()), modern.ErrLost)
	assert.ErrorIs(t, lock.Release(t.Context()), modern.ErrLost)
	assert.Equal(t, "another's", s.Value(key))
}

// Fault 6: an extension after the expiry reports "taken", and a cancelled wait a bare failure.
func TestFault06SaysWhatHappened(t *testing.T) {
	s := redistest.Real(t)
	locker := newLocker(t, s.Pool(), modern.Options{TTL: 50 * time.Millisecond, RenewEvery: -1})
	lock, err := locker.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	<-lock.Context().Done()
	err = lock.Renew(t.Context())
	assert.ErrorIs(t, err, modern.ErrLost)
	assert.NotErrorIs(t, err, modern.ErrNotAcquired)

	// The same when the server is the first to know.
	long := newLocker(t, s.Pool(), modern.Options{RenewEvery: -1})
	lock, err = long.Acquire(t.Context(), key)
	require.NoError(t, err)
	s.Do("DEL", key)
	assert.ErrorIs(t, lock.Renew(t.Context()), modern.ErrLost)

	s.Do("SET", key, "another's")
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("shutting down")
	time.AfterFunc(20*time.Millisecond, func() { cancel(reason) })
	_, err = long.Acquire(ctx, key)
	assert.ErrorIs(t, err, modern.ErrNotAcquired)
	assert.ErrorIs(t, err, reason)
	assert.ErrorContains(t, err, key)
}

// Fault 7: thousands of waiters at the server, herds and deadlocks. One waiter for each key and process
// talks to the server: the connections stay few, and so do the commands of those who only wait.
func TestFault07OneWaiterTalksToTheServer(t *testing.T) {
	s := redistest.Real(t)
	holder := newLocker(t, s.Pool(), modern.Options{})
	lock, err := holder.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	waiter := newLocker(t, s.Pool(), modern.Options{})
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
	require.Eventually(t, func() bool { return s.Do("EXISTS", "{"+key+"}:queue") == int64(1) }, 10*time.Second, time.Millisecond)
	clients := strings.Count(string(s.Do("CLIENT", "LIST").([]byte)), "\n")
	assert.LessOrEqual(t, clients, 10, "connections")
	require.Eventually(t, func() bool { return waiter.Waiting() == lockmigrate.ModeTracking }, 10*time.Second, time.Millisecond)
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
		"queue": {}, "untracked": {Untracked: true, Poll: time.Hour}, "unfair": {Unfair: true}, "redisson": {Redisson: true},
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
			start := time.Now()
			locker := open(t, s, opts)
			time.AfterFunc(200*time.Millisecond, func() { s.Do("CLIENT", "KILL", "TYPE", "pubsub") })
			lock, err := locker.Acquire(t.Context(), key)
			require.NoError(t, err)
			assert.WithinRange(t, time.Now(), start.Add(690*time.Millisecond), start.Add(1500*time.Millisecond))
			require.NoError(t, lock.Release(t.Context()))
		})
	}
}

// Fault 9: a worker that hangs is renewed for ever. MaxHold ends that: the worker is told first, and the
// key is free at most one TTL later.
func TestFault09MaxHold(t *testing.T) {
	s := redistest.Real(t)
	opts := modern.Options{TTL: 300 * time.Millisecond, MaxHold: 700 * time.Millisecond}
	start := time.Now()
	lock, err := newLocker(t, s.Pool(), opts).Acquire(t.Context(), key)
	require.NoError(t, err)
	<-lock.Context().Done()
	told := time.Since(start)
	assert.ErrorIs(t, context.Cause(lock.Context()), modern.ErrLost)
	assert.ErrorContains(t, context.Cause(lock.Context()), "MaxHold")
	assert.GreaterOrEqual(t, told, 700*time.Millisecond, "renewed until then")
	_, err = newLocker(t, s.Pool(), opts).Acquire(t.Context(), key)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), 1400*time.Millisecond)
	assert.GreaterOrEqual(t, time.Since(start), told, "told first")
}

// Fault 10: an unlock that is a bare DEL removes another's lock.
func TestFault10ReleaseNeverRemovesAnothers(t *testing.T) {
	for name, opts := range map[string]kind{"queue": {}, "unfair": {Unfair: true}, "redisson": {Redisson: true}} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t)
			a, b := open(t, s, opts), open(t, s, opts)
			lock, err := a.TryAcquire(t.Context(), key)
			require.NoError(t, err)
			s.Do("DEL", key) // its lease is over, it does not know yet
			second, err := b.TryAcquire(t.Context(), key)
			require.NoError(t, err)
			assert.ErrorIs(t, lock.Release(t.Context()), modern.ErrLost)
			assert.EqualValues(t, 1, s.Do("EXISTS", key))
			require.NoError(t, second.Renew(t.Context()))
			require.NoError(t, second.Release(t.Context()))
		})
	}
}

// A server that restarts ends no wait, for any kind of waiter: the connections are made again, and the first waiter then
// gets the lock.
func TestWaitersOutliveARestart(t *testing.T) {
	for name, opts := range map[string]kind{
		"queue": {}, "unfair": {Unfair: true}, "redisson": {Redisson: true}, "pooled": {Pooled: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			holder := open(t, s, opts)
			_, err := holder.Acquire(t.Context(), key)
			require.NoError(t, err)
			waiter := open(t, s, opts)
			const n = 3
			done := make(chan error, n)
			for range n {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					k, err := waiter.Acquire(ctx, key)
					if err == nil {
						err = k.Release(ctx)
					}
					done <- err
				}()
			}
			redistest.Await(t, "they wait", 10*time.Second, func() bool { return waiter.Waiting() != lockmigrate.ModeIdle })
			time.Sleep(500 * time.Millisecond) // a first attempt that is under way may end in an error
			s.Kill()
			time.Sleep(500 * time.Millisecond) // it is away for so long
			s.Start()
			for range n {
				assert.NoError(t, <-done)
			}
		})
	}
}

// Options.Wait bounds all of an Acquire, also the first attempt, and what follows an acquisition.
func TestWaitBoundsTheWholeAcquire(t *testing.T) {
	for name, opts := range map[string]kind{
		"queue": {}, "unfair": {Unfair: true}, "redisson": {Redisson: true}, "pooled": {Pooled: true},
		"replicas": {Replicas: 1, TTL: 27 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts.Wait, opts.ReplyTimeout = 200*time.Millisecond, 10*time.Second
			s := redistest.Real(t)
			locker := open(t, s, opts)
			if opts.Replicas == 0 {
				k, err := locker.Acquire(t.Context(), "other")
				require.NoError(t, err)
				require.NoError(t, k.Release(t.Context()))
				thaw := s.Freeze()
				defer thaw()
			}
			start := time.Now()
			_, err := locker.Acquire(context.Background(), key)
			took := time.Since(start)
			assert.Error(t, err)
			assert.ErrorContains(t, err, "Options.Wait is over")
			assert.Less(t, took, 5*time.Second)
		})
	}
}

// Do comes back soon after its context is over, although the server is silent.
func TestDoComesBackWhenItsContextIsOver(t *testing.T) {
	s := redistest.Real(t)
	locker := newLocker(t, s.Pool(), modern.Options{ReplyTimeout: 10 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	var thaw func()
	start := time.Now()
	err := locker.Do(ctx, key, func(ctx context.Context) error {
		thaw = s.Freeze()
		start = time.Now()
		cancel()
		return nil
	})
	took := time.Since(start)
	thaw()
	assert.Error(t, err)
	assert.Less(t, took, 5*time.Second)
}

// The connections for waiting cannot be made, and no attempt ends by itself: who waits asks over the line, which lives.
func TestADialThatHangsHoldsUpNoWaiter(t *testing.T) {
	s := redistest.Real(t)
	pool := s.Pool()
	var dials atomic.Int32
	waiter := newLocker(t, &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		if dials.Add(1) > 1 {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return pool.DialContext(ctx)
	}}, modern.Options{ReplyTimeout: 10 * time.Second})
	holder := newLocker(t, s.Pool(), modern.Options{})
	held, err := holder.Acquire(t.Context(), key)
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		k, err := waiter.Acquire(t.Context(), key)
		if err == nil {
			err = k.Release(t.Context())
		}
		got <- err
	}()
	redistest.Await(t, "a waiter in line", 4*time.Second, func() bool {
		n, _ := redis.Int(s.Try("ZCARD", "{"+key+"}:queue"))
		return n == 1
	})
	released := time.Now()
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, <-got)
	assert.Less(t, time.Since(released), 4*time.Second)
}
