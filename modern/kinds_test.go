package modern_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// kind is a way to lock that a behaviour must hold for: some options of modern, or modern/redisson, and what the pool can do.
type kind struct {
	TTL, Wait, ReplyTimeout, Poll, FenceTTL time.Duration
	Unfair                                  bool
	Replicas                                int
	Observer                                lockmigrate.Observer

	Redisson  bool
	Pooled    bool // the pool only hands out connections
	Untracked bool // without the right to client tracking
}

// locker is what the Lockers of both packages can do.
type locker interface {
	TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error)
	Acquire(ctx context.Context, key string) (lockmigrate.Lock, error)
	Do(ctx context.Context, key string, work func(ctx context.Context) error) error
	Waiting() lockmigrate.Mode
	Close() error
}

// open returns a Locker of a kind over a server.
func open(t testing.TB, s *redistest.Server, k kind) locker {
	t.Helper()
	if k.Untracked {
		return openOver(t, s.Untracked(), k)
	}
	return openOver(t, s.Pool(), k)
}

func openOver(t testing.TB, pool lockmigrate.Pool, k kind) locker {
	t.Helper()
	if k.Pooled {
		pool = struct{ lockmigrate.Pool }{pool}
	}
	if k.Redisson {
		l, err := redisson.New(pool, redisson.Options{TTL: k.TTL, Wait: k.Wait, ReplyTimeout: k.ReplyTimeout, Poll: k.Poll, Observer: k.Observer})
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	return newLocker(t, pool, modern.Options{
		TTL: k.TTL, Wait: k.Wait, ReplyTimeout: k.ReplyTimeout, Poll: k.Poll, FenceTTL: k.FenceTTL, Unfair: k.Unfair, Replicas: k.Replicas,
		Observer: k.Observer,
	})
}
