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

// lock and locker are what the locks and Lockers of both packages can do.
type lock interface {
	lockmigrate.Held
	Count() int
}

type locker interface {
	TryAcquire(ctx context.Context, key string) (lock, error)
	Acquire(ctx context.Context, key string) (lock, error)
	Do(ctx context.Context, key string, work func(ctx context.Context) error) error
	Waiting() lockmigrate.Mode
	Close() error
}

// of makes a locker of either Locker.
type of[L lock] struct {
	redistest.Either[lock, L]
	waiting func() lockmigrate.Mode
}

func (o of[L]) Waiting() lockmigrate.Mode { return o.waiting() }

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
		return of[*redisson.Lock]{redistest.Either[lock, *redisson.Lock]{Inner: l}, l.Waiting}
	}
	l := newLocker(t, pool, modern.Options{
		TTL: k.TTL, Wait: k.Wait, ReplyTimeout: k.ReplyTimeout, Poll: k.Poll, FenceTTL: k.FenceTTL, Unfair: k.Unfair, Replicas: k.Replicas,
		Observer: k.Observer,
	})
	return of[*modern.Lock]{redistest.Either[lock, *modern.Lock]{Inner: l}, l.Waiting}
}
