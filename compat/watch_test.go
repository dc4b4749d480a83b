package compat_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestLegacyHolderIsWatchedAtOnce: a legacy client may work for a millisecond only, and nobody but the server
// tells of its DEL. Behind a bridge holder, which tells of its release itself, there is no such hurry.
func TestLegacyHolderIsWatchedAtOnce(t *testing.T) {
	s := redistest.Real(t)
	l := newLocker(t, s, quick())
	watched := func(hold func() (release func())) (shortest time.Duration) {
		shortest = time.Hour
		for range 8 {
			release := hold()
			monitor := s.Monitor()
			done := make(chan error, 1)
			go func() {
				k, err := l.Acquire(t.Context(), "orders")
				if err == nil {
					err = k.Release(t.Context())
				}
				done <- err
			}()
			shortest = min(shortest, monitor.Watched(t))
			release()
			require.NoError(t, <-done)
		}
		return shortest
	}

	ends := time.Now().Add(time.Minute).UnixMilli()
	if d := watched(func() func() {
		s.Do("SET", "orders", ends)
		return func() { s.Do("DEL", "orders") }
	}); d > 5*time.Millisecond {
		t.Errorf("a legacy holder's key was watched after %v", d)
	}
	other := newLocker(t, s, quick(func(o *compat.Options) { o.TTL = time.Minute }))
	if d := watched(func() func() {
		k, err := other.Acquire(t.Context(), "orders")
		require.NoError(t, err)
		return func() { _ = k.Release(t.Context()) }
	}); d < 9*time.Millisecond {
		t.Errorf("a bridge holder's key was watched after %v: for nothing", d)
	}
}
