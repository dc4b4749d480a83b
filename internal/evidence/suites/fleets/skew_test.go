package fleets

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func locker(t *testing.T, s *redistest.Server, o compat.Options) compat.Locker {
	t.Helper()
	l, err := compat.New(s.Pool(), o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestJavaClockBehind (G2): what a Java holder whose clock is behind writes looks expired before it is.
// The grace covers it; without enough of it the bridge would take the key from under its holder.
func TestJavaClockBehind(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	behind := 10 * time.Second
	for i, java := range []*holders.Holder{
		holders.Start(t, holders.JedisLock, server.URL(), holders.Clock(t, -behind), holders.Arg("lease", lease)),
		holders.Start(t, holders.Article, server.URL(), holders.Arg("clock", -behind), holders.Arg("lease", lease)),
	} {
		key := fmt.Sprint("lock.", i)
		if e := java.Do("acquire %s", key); e.Event != "acquired" {
			t.Fatalf("%+v", e)
		}
		careful := locker(t, server, compat.Options{ClockLag: behind + time.Second, TTL: time.Second})
		_, err := careful.TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired, "%s: a bridge client with a ClockLag that covers the lag", java)
		careless := locker(t, server, compat.Options{ClockLag: time.Second, TTL: time.Second})
		lock, err := careless.TryAcquire(t.Context(), key)
		if err != nil {
			t.Errorf("%s: with too small a ClockLag the bridge still waited: %v; nothing was shown about the grace", java, err)
			continue
		}
		_ = lock.Release(t.Context())
	}
}
