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

// inStage returns a namespace in a stage.
func inStage(t *testing.T, s *redistest.Server, stage lockmigrate.Stage) string {
	t.Helper()
	name, err := redistest.InStage(s.Pool(), stage, "", 10*time.Second)
	require.NoError(t, err)
	return name
}

func hold(t *testing.T, l compat.Locker, key string) lockmigrate.Lock {
	t.Helper()
	lock, err := l.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	return lock
}

// TestJavaClockAhead (G2): a Java holder whose clock is ten minutes ahead never takes a key from a
// bridge holder. It does take it from a legacy holder (early-takeover), whose expiry is a true one.
func TestJavaClockAhead(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	ahead := 10 * time.Minute
	skewed := map[string]*holders.Holder{
		"jedis-lock":          holders.Start(t, holders.JedisLock, server.URL(), holders.Clock(t, ahead), holders.Arg("lease", lease), holders.Arg("wait", 500*time.Millisecond)),
		"article, clock hook": holders.Start(t, holders.Article, server.URL(), holders.Arg("clock", ahead), holders.Arg("lease", lease), holders.Arg("wait", 500*time.Millisecond)),
	}
	bridge := locker(t, server, compat.Options{TTL: 2 * time.Second})
	old := locker(t, server, compat.Options{Namespace: inStage(t, server, lockmigrate.StageLegacy), Lease: time.Minute})
	for name, java := range skewed {
		key := "lock.bridge." + java.Kind.Name
		lock := hold(t, bridge, key)
		for range 3 {
			if e := java.Do("acquire %s", key); e.Event != "busy" {
				t.Errorf("%s beside a bridge holder: %+v", name, e)
			}
		}
		assert.NoError(t, lock.Renew(t.Context()), "%s disturbed the bridge holder:", name)
		assert.NoError(t, lock.Release(t.Context()), "%s disturbed the bridge holder:", name)

		key = "lock.legacy." + java.Kind.Name
		hold(t, old, key)
		if e := java.Do("acquire %s", key); e.Event != "acquired" {
			t.Errorf("%s beside a legacy holder: %+v; nothing was shown about the bridge", name, e)
		}
	}
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
