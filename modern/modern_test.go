package modern_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "orders"

func newLocker(t testing.TB, pool lockmigrate.Pool, opts modern.Options) lockmigrate.Locker {
	t.Helper()
	locker, err := modern.New(pool, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

// kind is a way to lock that a behaviour must hold for: package modern's or modern/redisson's, and what the pool can do.
type kind struct {
	modern.Options
	Redisson  bool
	Untracked bool // without the right to client tracking
}

// open returns a Locker of a kind over a server.
func open(t testing.TB, s *redistest.Server, k kind) lockmigrate.Locker {
	t.Helper()
	if k.Untracked {
		return openOver(t, s.Untracked(), k)
	}
	return openOver(t, s.Pool(), k)
}

func openOver(t testing.TB, pool lockmigrate.Pool, k kind) lockmigrate.Locker {
	t.Helper()
	if !k.Redisson {
		return newLocker(t, pool, k.Options)
	}
	l, err := redisson.New(pool, k.Options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}
