package legacy_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "lock.orders"

func newLocker(t *testing.T, pool lockmigrate.Pool, opts legacy.Options) lockmigrate.Locker {
	t.Helper()
	locker, err := legacy.New(pool, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

func ms(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }

func TestEveryDialectExcludesItself(t *testing.T) {
	for _, d := range protocol.Dialects() {
		t.Run(d.String(), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				locker := newLocker(t, s.Pool(), legacy.Options{Dialect: legacy.Dialect{Name: d.Name}, Lease: 10 * time.Second, Release: legacy.ReleaseAsDialect})
				began := time.Now()
				lock, err := locker.TryAcquire(t.Context(), key)
				require.NoError(t, err)
				took := time.Since(began) // the value is computed at some moment of it, the deadline counts from its beginning
				at, ok := d.ExpiresAt(s.Value(key))
				require.True(t, ok, "reads what it writes")
				assert.EqualValues(t, -1, s.Do("PTTL", key), "no TTL, as nearly all old clients")
				assert.WithinRange(t, at.Time(), lock.Expiry(), lock.Expiry().Add(time.Second+time.Millisecond+took), "at most a unit later")
				_, err = locker.TryAcquire(t.Context(), key)
				assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
				require.NoError(t, lock.Renew(t.Context()))
				assert.Equal(t, lock.Token(), s.Value(key))
				require.NoError(t, lock.Release(t.Context()))
				if d != protocol.UnixNano {
					assert.EqualValues(t, 0, s.Do("EXISTS", key))
				}
			})
		})
	}
}

func TestForeignValueIsHeld(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		// The first attempt may take Wait and Poll together; the wait behind it takes Wait.
		locker := newLocker(t, s.Pool(), legacy.Options{Wait: time.Millisecond, Poll: 20 * time.Second, ReplyTimeout: 20 * time.Second})
		for _, value := range []string{"6ba7b810-9dad-11d1-80b4-00c04fd430c8", "", "1795262400.5", " 1", "\x1b[31mred"} {
			s.Do("SET", key, value)
			for name, try := range map[string]func(context.Context, string) (lockmigrate.Lock, error){"Try": locker.TryAcquire, "Acquire": locker.Acquire} {
				_, err := try(t.Context(), key)
				require.ErrorIs(t, err, lockmigrate.ErrForeignFormat, "%s %q", name, value)
				assert.NotErrorIs(t, err, lockmigrate.ErrNotAcquired)
				assert.NotContains(t, err.Error(), "\x1b", "what is printed is safe to print")
				assert.Equal(t, value, s.Value(key), "and nothing was written")
			}
		}
		s.Do("DEL", key)
		s.Do("HSET", key, "field", 1)
		_, err := locker.TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrForeignFormat)
		assert.EqualValues(t, 1, s.Do("HLEN", key))

		waiting, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(time.Second, cancel) // it has looked at the key once at least
		_, err = newLocker(t, s.Pool(), legacy.Options{Poll: time.Millisecond, Jitter: time.Millisecond}).Acquire(waiting, key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, err, lockmigrate.ErrForeignFormat, "a cancelled wait says what it waited for")
	})
}

func TestReleasePolicies(t *testing.T) {
	successor := ms(time.Now().Add(time.Hour))
	for _, c := range []struct {
		policy  legacy.ReleasePolicy
		overrun bool   // the release comes after the lease
		want    string // what stands on the key afterwards; empty for nothing
	}{
		{legacy.ReleaseUnexpired, false, ""}, // a takeover by a clock ahead: deleted, the holder cannot know
		{legacy.ReleaseUnexpired, true, successor},
		{legacy.ReleaseAsDialect, false, ""},
		{legacy.ReleaseAsDialect, true, ""}, // the stale-delete of the old code
		{legacy.ReleaseCompare, false, successor},
		{legacy.ReleaseCompare, true, successor},
	} {
		t.Run(fmt.Sprintf("policy %d overrun %v", c.policy, c.overrun), func(t *testing.T) {
			redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
				lease := time.Hour
				if c.overrun {
					lease = 100 * time.Millisecond
				}
				lock, err := newLocker(t, s.Pool(), legacy.Options{Lease: lease, Release: c.policy}).TryAcquire(t.Context(), key)
				require.NoError(t, err)
				if c.overrun {
					<-lock.Context().Done()
					time.Sleep(time.Until(lock.Expiry()) + time.Millisecond) // the value is up to a unit later than the context
				}
				s.Do("SET", key, successor)
				err = lock.Release(t.Context())
				assert.Equal(t, c.want, s.Value(key))
				if c.want == "" && !c.overrun {
					assert.NoError(t, err)
				} else {
					assert.ErrorIs(t, err, lockmigrate.ErrLost)
				}
			})
		})
	}
}

func TestRenewMovesTheLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		lock, err := newLocker(t, s.Pool(), legacy.Options{Lease: time.Second}).TryAcquire(t.Context(), key)
		require.NoError(t, err)
		first := lock.Expiry()
		for range 5 {
			time.Sleep(300 * time.Millisecond) // the subject is time passing
			require.NoError(t, lock.Renew(t.Context()))
			assert.Equal(t, lock.Token(), s.Value(key))
		}
		assert.Greater(t, lock.Expiry().Sub(first), time.Second)
		assert.NoError(t, lock.Context().Err(), "held for longer than one lease")

		s.Do("SET", key, "1")
		assert.ErrorIs(t, lock.Renew(t.Context()), lockmigrate.ErrLost)
		assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrLost)
		assert.Equal(t, "1", s.Value(key), "a successor's value is not overwritten")
		assert.ErrorIs(t, lock.Release(t.Context()), lockmigrate.ErrLost)
		assert.Equal(t, "1", s.Value(key))
	})
}

// TestFollowServer: a member whose host is ten minutes behind the server writes the expiry that the server would, and takes no
// lock by a clock that it cannot read.
func TestFollowServer(t *testing.T) {
	s := redistest.Mini(t)
	const ahead = 10 * time.Minute
	s.Mini.SetTime(time.Now().Add(ahead))
	pool := s.Pool()
	locker := newLocker(t, pool, legacy.Options{Lease: time.Minute, FollowServer: true})
	lock, err := locker.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	written, err := strconv.ParseInt(s.Value(key), 10, 64)
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now().Add(ahead+time.Minute), time.UnixMilli(written), time.Second)
	assert.NoError(t, lock.Context().Err())
	assert.NoError(t, lock.Release(t.Context()))

	fresh := newLocker(t, pool, legacy.Options{FollowServer: true})
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = fresh.TryAcquire(cancelled, key)
	assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
	assert.ErrorIs(t, err, context.Canceled)
	s.Mini.Close()
	_, err = fresh.TryAcquire(t.Context(), key)
	assert.ErrorContains(t, err, "read the server's clock")
}

// A dialect of one's own: PredisLock (PHP), "<seconds + 1>:<pid>", wins when the old value is expired.
func predis() legacy.Dialect {
	return legacy.Dialect{
		Name: "predis", Unit: time.Second, Extra: 1, TakesAny: true, TakesMissing: true, Form: "number:owner",
	}
}

func TestCustomDialect(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		locker := newLocker(t, s.Pool(), legacy.Options{Dialect: predis(), Lease: time.Minute})
		lock, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		assert.Regexp(t, `^\d{10}:[0-9a-f-]{36}$`, s.Value(key))
		_, err = locker.TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		require.NoError(t, lock.Release(t.Context()))

		s.Do("SET", key, "5:4711")
		_, err = locker.TryAcquire(t.Context(), key)
		assert.NoError(t, err, "takes an expired one over")
		s.Do("SET", key, "no number")
		_, err = locker.TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrForeignFormat)
	})
}

// TestEveryDialectIsDocumented: the type's comment and the readme have a line for each known dialect.
func TestEveryDialectIsDocumented(t *testing.T) {
	for file, line := range map[string]string{"dialect.go": "//\t%s ", "../README.md": "| `%s` |", "../README.zh-CN.md": "| `%s` |"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, d := range protocol.Dialects() {
			assert.Contains(t, string(text), fmt.Sprintf(line, d.Name), file)
		}
	}
}
