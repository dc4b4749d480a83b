package compat_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// later returns a legacy value of a client whose lease began now.
func later(lease time.Duration) int64 { return time.Now().Add(lease).UnixMilli() }

const long = time.Hour

// settling are options under which a takeover settles long enough to be interfered with.
func settling(change ...func(*compat.Options)) compat.Options {
	return quick(append([]func(*compat.Options){func(o *compat.Options) {
		o.CommandDelay, o.ShortestLease, o.TTL = 200*time.Millisecond, 2*time.Second, 2*time.Second
	}}, change...)...)
}

// await polls the server until a condition holds: nothing announces what another client sees.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		require.False(t, time.Now().After(deadline), "never came: %s", what)
	}
}

// takeOver starts an acquisition of a key that a crashed legacy client left, and returns when the key is
// taken over and settles.
func takeOver(t *testing.T, s *redistest.Server, l compat.Locker, key string) (bridge string, result chan error, locked chan lockmigrate.Lock) {
	t.Helper()
	s.Do("SET", key, later(-long))
	result, locked = make(chan error, 1), make(chan lockmigrate.Lock, 1)
	go func() {
		k, err := l.TryAcquire(t.Context(), key)
		locked <- k
		result <- err
	}()
	await(t, "the takeover", func() bool { bridge = s.Value(protocol.GuardKey(key)); return bridge != "" })
	require.True(t, s.Value(key) == bridge, "the key holds %q, the guard %q", s.Value(key), bridge)
	return bridge, result, locked
}

// TestClobberWhileSettling (G4): a loser's GETSET after a takeover. The bridge withdraws and waits for the value.
func TestClobberWhileSettling(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, settling())
		bridge, result, locked := takeOver(t, s, l, "orders")
		clobber := later(long)
		require.Equal(t, bridge, string(s.Do("GETSET", "orders", clobber).([]byte)), "GETSET returned")
		<-locked
		assert.ErrorIs(t, <-result, lockmigrate.ErrNotAcquired, "clobbered")
		assert.False(t, s.Value(protocol.GuardKey("orders")) != "" || s.Value("orders") == bridge, "the bridge did not withdraw")
	})
}

// TestWithdrawingIsWhatKeepsTwoHoldersApart: the holder whose expired value was taken over was alive
// after all; its stale DEL lets another legacy client in while we settle. Putting back would make two
// holders, and no renewal would ever tell (the explorer's ablation shows it); withdrawing does not.
func TestWithdrawingIsWhatKeepsTwoHoldersApart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		intrude := func(key string) string {
			s.Do("DEL", key) // the stale DEL
			fleet, err := legacy.New(s.Pool(), legacy.Options{Lease: time.Minute})
			require.NoError(t, err)
			t.Cleanup(func() { _ = fleet.Close() })
			k, err := fleet.TryAcquire(t.Context(), key)
			require.NoError(t, err, "the legacy client did not get in:")
			return k.Token()
		}

		l := newLocker(t, s, settling())
		_, result, locked := takeOver(t, s, l, "orders")
		theirs := intrude("orders")
		<-locked
		if err := <-result; !errors.Is(err, lockmigrate.ErrNotAcquired) || s.Value("orders") != theirs {
			t.Errorf("beside a legacy holder: %v, the key holds %q", err, s.Value("orders"))
		}
	})
}

// TestStaleDeleteWhileSettling: nobody came in; the lock is repaired, settles again and is ours.
func TestStaleDeleteWhileSettling(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, settling())
		bridge, result, locked := takeOver(t, s, l, "orders")
		s.Do("DEL", "orders")
		await(t, "the repair", func() bool { return s.Value("orders") == bridge })
		k := <-locked
		require.NoError(t, <-result)
		release(t, k)
	})
}

// TestLoserOfDialectBComesBackAsWinner (G4): a jedis-uuid client that found the key vanished clobbers
// whatever has come there, and at its next look takes its own value for expired. So in that dialect the
// bridge settles after every acquisition, and withdraws.
func TestLoserOfDialectBComesBackAsWinner(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, settling(func(o *compat.Options) { o.Dialect = legacy.Dialect{Name: "jedis-uuid"} }))
		result := make(chan error, 1)
		go func() {
			_, err := l.TryAcquire(t.Context(), "orders")
			result <- err
		}()
		await(t, "the acquisition", func() bool { return s.Value("orders") != "" })

		// The client is between its GET, which found nothing, and its GETSET.
		rules := protocol.JedisUUID
		value, _ := rules.Expiry(protocol.InstantOf(time.Now()), time.Minute, "0f0e0d0c-0b0a-4908-8706-050403020100")
		s.Do("GETSET", "orders", value)
		require.True(t, rules.Judge(value, protocol.InstantOf(time.Now()), "0f0e0d0c-0b0a-4908-8706-050403020100") == protocol.Expired, "the client no longer takes its own value for expired")
		assert.ErrorIs(t, <-result, lockmigrate.ErrNotAcquired, "beside a client that comes back as the winner")
		assert.True(t, s.Value("orders") == value, "its value was overwritten by %q", s.Value("orders"))
	})
}

// TestStaleDeleteIsRepaired (G5): within one renewal interval the key is ours again, and meanwhile the
// guard keeps other bridge and modern clients out.
func TestStaleDeleteIsRepaired(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		o := quick()
		l, other := newLocker(t, s, o), newLocker(t, s, o)
		modern := newLocker(t, s, quick(inStage(t, s, lockmigrate.StageModern)))
		k := acquire(t, l, "orders")
		for range 3 {
			s.Do("DEL", "orders")
			deleted := time.Now()
			for _, l := range []compat.Locker{other, modern} {
				assert.ErrorIs(t, failed(l.TryAcquire(t.Context(), "orders")), lockmigrate.ErrNotAcquired, "another came in after a stale DEL")
			}
			await(t, "the repair", func() bool { return s.Value("orders") == k.Token() })
			assert.LessOrEqual(t, time.Since(deleted), time.Second, "repaired after")
		}
		assert.True(t, k.Context().Err() == nil, "the holder was disturbed: %v", context.Cause(k.Context()))
		release(t, k)
	})
}

// TestDisplacedHolderIsTold (G5): a legacy client came in after a stale DEL. The holder is told within
// one renewal interval, its guard stays until it has released, and its release harms nobody.
func TestDisplacedHolderIsTold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		o := quick()
		l, other := newLocker(t, s, o), newLocker(t, s, o)
		k := acquire(t, l, "orders")
		s.Do("DEL", "orders")
		theirs := later(long)
		s.Do("SETNX", "orders", theirs)
		assert.LessOrEqual(t, lost(t, k, 5*time.Second), time.Second, "told after")
		if cause := context.Cause(k.Context()); !strings.Contains(cause.Error(), "displaced") || !strings.Contains(cause.Error(), "or overwrote the key") {
			t.Errorf("cause %v", cause)
		}
		s.Do("DEL", "orders") // the legacy client has finished; the displaced holder may still be at work
		assert.ErrorIs(t, failed(other.TryAcquire(t.Context(), "orders")), lockmigrate.ErrNotAcquired, "another bridge client came in beside the displaced one")
		s.Do("SETNX", "orders", theirs)
		assert.ErrorIs(t, k.Release(t.Context()), lockmigrate.ErrLost, "release of a displaced lock")
		assert.False(t, s.Value("orders") == "" || s.Value(protocol.GuardKey("orders")) != "", "the release took the legacy client's value, or left its own guard")
	})
}

// TestADisplacementBehindItsCallerIsToldInFull: the caller of Release leaves while the server has the command. The holder is
// told, and also whose value stands there.
func TestADisplacementBehindItsCallerIsToldInFull(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("holder")
		k := acquire(t, compat.Tune(opened(t, route.Pool(), quick()), 900*time.Millisecond, 0), "orders")
		theirs := fmt.Sprint(later(long))
		s.Do("SET", "orders", theirs)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		route.Next(1, world.Fault{LateReply: 50 * time.Millisecond}) // Release is back by then
		require.ErrorIs(t, k.Release(ctx), lockmigrate.ErrUnknownOutcome, "release")
		lost(t, k, 5*time.Second)
		var e *lockmigrate.Error
		if err := context.Cause(k.Context()); !errors.As(err, &e) || e.Reason != lockmigrate.ReasonDisplaced || e.Value != theirs {
			t.Errorf("the holder is told %v", err)
		}
	})
}

// TestADisplacementIsToldThoughItsReplyIsLost: the first release runs, and nobody hears its answer. The second one still tells, and
// then nothing of the holder is left.
func TestADisplacementIsToldThoughItsReplyIsLost(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("holder")
		l := compat.Tune(opened(t, route.Pool(), quick()), 900*time.Millisecond, 0)
		if err := acquire(t, l, "orders").Release(t.Context()); err != nil { // the server knows the scripts from here on
			t.Fatal(err)
		}
		k := acquire(t, l, "orders")
		theirs := fmt.Sprint(later(long))
		s.Do("SET", "orders", theirs)
		before := route.Commands()
		route.Next(1, world.Fault{LoseReply: true})
		err := k.Release(t.Context())
		var e *lockmigrate.Error
		assert.False(t, !errors.As(err, &e) || !errors.Is(err, lockmigrate.ErrLost) || e.Reason != lockmigrate.ReasonDisplaced || e.Value != theirs, "release: %v", err)
		assert.Equal(t, " EVALSHA EVALSHA EVALSHA", strings.TrimPrefix(route.Commands(), before), "lost, told, cleared")
		assert.False(t, s.Value("orders") != theirs || s.Value(protocol.GuardKey("orders")) != "", "the release took the legacy client's value, or left its own guard")
	})
}
