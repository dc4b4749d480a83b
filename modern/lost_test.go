package modern_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
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
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		locker.Close()
		assert.EqualValues(t, 0, s.Do("EXISTS", key), "cleaned up by token")
	})
	t.Run("nothing answers", func(t *testing.T) {
		const reply = 500 * time.Millisecond // also the time in which the server has to run the command once it thaws
		s := redistest.Real(t)
		locker := newLocker(t, s.Pool(), modern.Options{TTL: 2 * time.Second, ReplyTimeout: reply})
		_, err := locker.Acquire(t.Context(), "another") // connects
		require.NoError(t, err)
		s.Signal(syscall.SIGSTOP)
		start := time.Now()
		_, err = locker.TryAcquire(t.Context(), key)
		s.Signal(syscall.SIGCONT)
		require.ErrorIs(t, err, lockmigrate.ErrUnknownOutcome)
		var e *lockmigrate.Error
		require.ErrorAs(t, err, &e)
		assert.WithinRange(t, e.Until, start.Add(2*time.Second), time.Now().Add(2*time.Second+reply))
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
			const ttl = 2 * time.Second // a busy machine needs most of a second for a renewal
			var mu sync.Mutex
			var failures []error
			var renewed time.Time // the end of a renewal: its command was sent before
			opts.TTL, opts.ReplyTimeout = ttl, 500*time.Millisecond
			first := make(chan struct{})
			var once sync.Once
			opts.Observer = func(e lockmigrate.Event) {
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
			}
			lock, err := open(t, s, opts).TryAcquire(t.Context(), key)
			require.NoError(t, err)
			select {
			case <-first:
			case <-lock.Context().Done():
				t.Fatalf("no renewal was in time: %v", context.Cause(lock.Context()))
			}
			late := redistest.NewLateness(t)
			s.Signal(syscall.SIGSTOP)
			<-lock.Context().Done()
			ended := time.Now()
			s.Signal(syscall.SIGCONT)
			assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrLost)
			require.Eventually(t, func() bool { // the observer is told after the holder
				mu.Lock()
				defer mu.Unlock()
				return len(failures) > 0 && errors.Is(failures[len(failures)-1], lockmigrate.ErrLost)
			}, 10*time.Second, time.Millisecond)
			mu.Lock() // not for longer: Release tells the observer too
			heard := slices.Clone(failures)
			assert.LessOrEqual(t, ended.Sub(renewed), ttl+50*time.Millisecond+late.Most(), "no later than the deadline")
			assert.GreaterOrEqual(t, ended.Sub(renewed), ttl/2, "and not at the first failure")
			mu.Unlock()
			require.GreaterOrEqual(t, len(heard), 2, "the observer heard of each")
			assert.NotErrorIs(t, heard[0], lockmigrate.ErrLost)
			var lost *lockmigrate.Error
			require.ErrorAs(t, context.Cause(lock.Context()), &lost)
			assert.Equal(t, lockmigrate.ReasonDeadline, lost.Reason)
			assert.Error(t, lost.Cause, "the I/O error behind it")
			assert.ErrorIs(t, lock.Release(t.Context()), lockmigrate.ErrLost)
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
			assert.ErrorIs(t, err, lockmigrate.ErrLost)
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
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		lock, err := newLocker(t, s.Pool(), modern.Options{TTL: 10 * time.Second, RenewEvery: 50 * time.Millisecond}).TryAcquire(t.Context(), key)
		require.NoError(t, err)
		start := time.Now()
		s.Do("SET", key, "another's")
		<-lock.Context().Done()
		assert.Less(t, time.Since(start), 2*time.Second)
		assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrLost)
		assert.ErrorIs(t, lock.Renew(t.Context()), lockmigrate.ErrLost)
		assert.ErrorIs(t, lock.Release(t.Context()), lockmigrate.ErrLost)
		assert.Equal(t, "another's", s.Value(key))
	})
}
