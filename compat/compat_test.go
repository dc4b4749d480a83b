package compat_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "12") // they wait more than they work; the command line still decides
	goleak.VerifyTestMain(m)
}

// quick are options for tests: everything that takes time takes little.
func quick(change ...func(*compat.Options)) compat.Options {
	o := compat.Options{
		TTL: time.Second, Lease: 5 * time.Second, ShortestLease: time.Second,
		ClockLag: 50 * time.Millisecond, CommandDelay: 50 * time.Millisecond, FenceTTL: time.Hour,
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

// inStage changes options to those of a stage: bridge needs no namespace.
func inStage(t testing.TB, s *redistest.Server, stage lockmigrate.Stage) func(*compat.Options) {
	t.Helper()
	if stage == lockmigrate.StageBridge {
		return func(*compat.Options) {}
	}
	return func(o *compat.Options) {
		name, err := redistest.InStage(s.Pool(), stage, o.Dialect.Name, o.ShortestLease)
		require.NoError(t, err)
		o.Namespace = name
	}
}

func newLocker(t testing.TB, s *redistest.Server, o compat.Options) compat.Locker {
	t.Helper()
	return opened(t, s.Pool(), o)
}

func opened(t testing.TB, pool lockmigrate.Pool, o compat.Options) compat.Locker {
	t.Helper()
	l, err := compat.New(pool, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func acquire(t testing.TB, l compat.Locker, key string) lockmigrate.Lock {
	t.Helper()
	ctx := redistest.Bounded(t, time.Minute)
	k, err := l.Acquire(ctx, key)
	require.NoError(t, err, "acquire:")
	return k
}

func release(t testing.TB, k lockmigrate.Lock) {
	t.Helper()
	require.NoError(t, k.Release(context.WithoutCancel(t.Context())), "release:")
}

// lost waits until the holder has been told, and returns how long that took.
func lost(t testing.TB, k lockmigrate.Lock, within time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	select {
	case <-k.Context().Done():
	case <-time.After(within):
		t.Fatalf("the holder was not told within %v", within)
	}
	if cause := context.Cause(k.Context()); !errors.Is(cause, lockmigrate.ErrLost) {
		t.Fatalf("the holder's context ended with %v", cause)
	}
	return time.Since(start)
}

var stagesOf = []lockmigrate.Stage{lockmigrate.StageLegacy, lockmigrate.StageBridge, lockmigrate.StageModern}

// TestOneHolderInEveryStage (G1): whatever neighbours hold and want a key, one has it.
func TestOneHolderInEveryStage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, a := range stagesOf {
			for _, b := range stagesOf {
				func() {
					key := fmt.Sprint("orders:", a, b)
					first := newLocker(t, s, quick(inStage(t, s, a)))
					second := newLocker(t, s, quick(inStage(t, s, b)))
					k := acquire(t, first, key)
					assert.False(t, k.Stage() != a || k.Key() != key || s.Value(key) != k.Token(), "stage %v, key %q, the key holds %q, the token is %q", k.Stage(), k.Key(), s.Value(key), k.Token())
					assert.ErrorIs(t, failed(second.TryAcquire(t.Context(), key)), lockmigrate.ErrNotAcquired, "a second holder beside the first")
					release(t, k)
					assert.ErrorIs(t, k.Release(t.Context()), lockmigrate.ErrReleased, "a second release")
					if cause := context.Cause(k.Context()); !errors.Is(cause, lockmigrate.ErrReleased) {
						t.Errorf("the context ended with %v", cause)
					}
					k = acquire(t, second, key)
					assert.True(t, (k.Fence() > 0) == (b != lockmigrate.StageLegacy), "fence %d in stage %v", k.Fence(), b)
					release(t, k)
					assert.True(t, s.Value(key)+s.Value(protocol.GuardKey(key)) == "", "%v then %v: a release left something behind", a, b)
				}()
			}
		}
	})
}

// TestBridgeTakesOverCrashedLegacyHolders and leaves those alone that are not.
func TestBridgeTakesOverWhatHasExpired(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, quick())
		s.Do("SET", "orders", time.Now().Add(-50*time.Millisecond).UnixMilli())
		assert.ErrorIs(t, failed(l.TryAcquire(t.Context(), "orders")), lockmigrate.ErrNotAcquired, "taken within the grace")
		start := time.Now()
		k := acquire(t, l, "orders")
		assert.LessOrEqual(t, time.Since(start), time.Second, "waited")
		release(t, k)
	})
}

// TestForeignValuesAreHeld: whatever cannot be read is never taken, and the error says what it is.
func TestForeignValuesAreHeld(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, quick())
		modern := newLocker(t, s, quick(inStage(t, s, lockmigrate.StageModern)))
		cases := map[string]struct {
			locker compat.Locker
			note   string
		}{
			"token":               {l, "never taken over"},
			"5123456789012345678": {l, "lost its TTL"},
			"1300000000000":       {modern, "ghost, expired since 2011-03-13"},
		}
		for value, c := range cases {
			s.Do("SET", "orders", value)
			_, err := c.locker.TryAcquire(t.Context(), "orders")
			var e *lockmigrate.Error
			if !errors.Is(err, lockmigrate.ErrForeignFormat) || !errors.As(err, &e) || e.Value != value || !strings.Contains(e.Error(), c.note) {
				t.Errorf("%s: %v", value, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, err = c.locker.Acquire(ctx, "orders")
			cancel()
			assert.False(t, !errors.Is(err, lockmigrate.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded), "%s: a cancelled wait ended with %v", value, err)
			assert.True(t, s.Value("orders") == value, "%s was changed to %s", value, s.Value("orders"))
		}
	})
}

// TestCancelledAcquireLeavesNothing: also while it settles.
func TestCancelledAcquireLeavesNothing(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l, err := compat.New(s.Pool(), quick(func(o *compat.Options) {
			o.CommandDelay, o.ShortestLease, o.Lease, o.TTL = 20*time.Second, time.Minute, time.Minute, time.Minute
		}))
		require.NoError(t, err)
		s.Do("SET", "orders", time.Now().Add(-time.Hour).UnixMilli())
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("no time"))
		defer cancel()
		start := time.Now()
		_, err = l.Acquire(ctx, "orders")
		assert.LessOrEqual(t, time.Since(start), 15*time.Second, "came back after")
		assert.False(t, !errors.Is(err, lockmigrate.ErrNotAcquired) || !strings.Contains(fmt.Sprint(err), "no time"), "cancelled while settling: %v", err)
		l.Close() // waits for what is given back
		assert.True(t, s.Value("orders")+s.Value(protocol.GuardKey("orders")) == "", "a cancelled wait left the keys behind")
	})
}

func TestEveryDialect(t *testing.T) {
	for _, d := range protocol.Dialects() {
		t.Run(d.String(), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				key := "orders:" + d.String()
				dialect := legacy.Dialect{Name: d.Name}
				o := quick(func(o *compat.Options) { o.Dialect = dialect; o.Lease = 5 * time.Second })
				bridge := newLocker(t, s, o)
				inStage(t, s, lockmigrate.StageLegacy)(&o)
				old := newLocker(t, s, o)
				plain, err := legacy.New(s.Pool(), legacy.Options{Dialect: dialect, Lease: 5 * time.Second})
				require.NoError(t, err)
				k := acquire(t, bridge, key)
				for _, year := range []int{1, 100} {
					if ends, ok := d.ExpiresAt(k.Token()); !ok || ends.Time().Before(time.Now().AddDate(year, 0, 0)) {
						t.Errorf("%s reads the token %q as expiring at %v (%v)", d, k.Token(), ends, ok)
					}
				}
				assert.ErrorIs(t, failed(plain.TryAcquire(t.Context(), key)), lockmigrate.ErrNotAcquired, "a legacy client beside a bridge holder")
				release(t, k)
				k = acquire(t, old, key)
				if _, err := bridge.TryAcquire(t.Context(), key); !errors.Is(err, lockmigrate.ErrNotAcquired) || errors.Is(err, lockmigrate.ErrForeignFormat) {
					t.Errorf("a bridge client beside a legacy holder: %v", err)
				}
				assert.NoError(t, k.Renew(t.Context()), "renew:")
				release(t, k)
				dead, _ := d.Expiry(protocol.InstantOf(time.Now().Add(-time.Minute)), time.Second, map[protocol.Layout]string{
					protocol.UUIDColonNumber: "0f0e0d0c-0b0a-4908-8706-050403020100", protocol.NumberDashOwner: "12-34"}[d.Layout])
				s.Do("SET", key, dead) // of a client that has crashed
				release(t, acquire(t, bridge, key))
				release(t, acquire(t, bridge, key))
				plain.Close()
			})
		})
	}
}

// TestObserverHearsALocksLife: also what only the bridge knows, takeovers and repairs.
func TestObserverHearsALocksLife(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		var mu sync.Mutex
		var heard []string
		l := newLocker(t, s, quick(func(o *compat.Options) {
			o.Observer = func(e lockmigrate.Event) {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, strings.TrimSpace(string(e.Kind)+" "+e.Note))
			}
		}))
		hears := func(what string) {
			t.Helper()
			redistest.Await(t, what, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return slices.ContainsFunc(heard, func(h string) bool { return strings.Contains(h, what) })
			})
		}
		s.Do("SET", "orders", later(-long))
		k := acquire(t, l, "orders")
		hears("acquired taken over")
		assert.Error(t, failed(l.TryAcquire(t.Context(), "orders")), "acquired twice")
		hears("waited")
		s.Do("DEL", "orders")
		hears("renewed repaired")
		release(t, k)
		hears("released")
		k = acquire(t, l, "orders")
		s.Do("SET", "orders", later(long))
		hears("lost")
		_ = k.Release(t.Context())
	})
}

// failed is the error of a call that returns something beside it.
func failed[T any](_ T, err error) error { return err }
