package compat_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// wait starts an acquisition that has to wait, and returns when it does.
func wait(t *testing.T, ctx context.Context, l compat.Locker, mode *redistest.Mode, key string) (<-chan lockmigrate.Lock, <-chan error) {
	t.Helper()
	locks, errs := make(chan lockmigrate.Lock, 1), make(chan error, 1)
	go func() {
		k, err := l.Acquire(ctx, key)
		if err != nil {
			errs <- err
			return
		}
		locks <- k
	}()
	redistest.Await(t, "a waiter", func() bool { return mode.Is() != "idle" })
	return locks, errs
}

// deaf has the waiters of a process look now and then: it may not subscribe.
func deaf(words []string) world.Fault {
	if words[0] == "SUBSCRIBE" {
		return world.Fault{Refused: "NOPERM this user has no permissions to run the 'subscribe' command"}
	}
	return world.Fault{}
}

// watchedBy has a mode follow a Locker.
func watchedBy(mode *redistest.Mode) func(*compat.Options) {
	return func(o *compat.Options) { o.Observer = mode.Observe }
}

// TestAWaitersLostRepliesAreSettled: an attempt of a waiter takes the key, and no reply to it or to its
// release ever comes. The key is given back, and the waiter takes it with another value.
func TestAWaitersLostRepliesAreSettled(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		holder := newLocker(t, s, quick())
		held := acquire(t, holder, "orders")
		var armed atomic.Bool
		var lostTakes atomic.Int64
		route := s.Route("waiter")
		route.Decide = func(words []string) world.Fault {
			if strings.HasPrefix(words[0], "EVAL") && armed.Load() && lostTakes.Add(1) <= 4 {
				return world.Fault{LoseReply: true} // taken, asked again, given back, asked again
			}
			return deaf(words)
		}
		var mode redistest.Mode
		l := opened(t, route.Pool(), quick(func(o *compat.Options) { o.TTL, o.ReplyTimeout = 20*time.Second, time.Second }, watchedBy(&mode)))
		locks, errs := wait(t, redistest.Bounded(t, time.Minute), l, &mode, "orders")
		// Armed while it waits: whichever of its attempts finds the key free loses every reply.
		armed.Store(true)
		release(t, held)
		select {
		case k := <-locks:
			assert.True(t, lostTakes.Load() >= 4, "only %d replies were lost", lostTakes.Load())
			on := s.Value("orders")
			assert.False(t, on == "" || on != s.Value(protocol.GuardKey("orders")), "the key holds %q, the guard %q", on, s.Value(protocol.GuardKey("orders")))
			release(t, k)
		case err := <-errs:
			t.Fatalf("the waiter gave up: %v", err)
		}
		assert.Equal(t, "", s.Value("orders")+s.Value(protocol.GuardKey("orders")), "left behind")
	})
}

// TestAWaitThatEndsInDoubtSaysSo: as above, and nothing is ever answered again. The wait goes on until its
// context ends, and its error says that the key may stay taken.
func TestAWaitThatEndsInDoubtSaysSo(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		held := acquire(t, newLocker(t, s, quick()), "orders")
		var armed atomic.Bool
		route := s.Route("waiter")
		route.Decide = func(words []string) world.Fault {
			if armed.Load() && strings.HasPrefix(words[0], "EVAL") {
				return world.Fault{LoseReply: true}
			}
			return deaf(words)
		}
		var mode redistest.Mode
		l := opened(t, route.Pool(), quick(func(o *compat.Options) { o.TTL, o.ReplyTimeout = time.Minute, time.Second }, watchedBy(&mode)))
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		_, errs := wait(t, ctx, l, &mode, "orders")
		before := strings.Count(route.Commands(), "EVAL")
		armed.Store(true)
		release(t, held)
		redistest.Await(t, "attempts and attempts to give back", func() bool { return strings.Count(route.Commands(), "EVAL") > before+12 || len(errs) > 0 })
		cancel(why)
		select {
		case err := <-errs:
			var e *lockmigrate.Error
			assert.False(t, !errors.As(err, &e) || !errors.Is(err, lockmigrate.ErrUnknownOutcome) || !errors.Is(err, why) || errors.Is(err, lockmigrate.ErrNotAcquired) || time.Until(e.Until) < 0, "%v", err)
		case <-time.After(30 * time.Second):
			t.Fatal("the wait does not end")
		}
	})
}

// TestARefusalEndsAWait: a right that is taken away is an answer.
func TestARefusalEndsAWait(t *testing.T) {
	s := redistest.Real(t)
	acquire(t, newLocker(t, s, quick(func(o *compat.Options) { o.TTL = time.Minute })), "orders")
	var mode redistest.Mode
	l := newLocker(t, s, quick(watchedBy(&mode)))
	_, errs := wait(t, redistest.Bounded(t, time.Minute), l, &mode, "orders")
	s.Do("ACL", "SETUSER", "default", "-eval", "-evalsha")
	s.Do("CLIENT", "KILL", "TYPE", "pubsub")
	select {
	case err := <-errs:
		if err == nil || !strings.Contains(err.Error(), "NOPERM") || errors.Is(err, lockmigrate.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the wait does not end")
	}
}
