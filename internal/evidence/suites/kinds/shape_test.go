package kinds

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

// shape is one kind of Locker.
type shape struct {
	options any
	most    int // options
	ttl     time.Duration
	open    func(pool lockmigrate.Pool) (lockmigrate.Locker, error)
	refused func() error // what New says to options that cannot work
}

func refusal[L any](_ L, err error) error { return err }

var shapes = map[string]shape{
	"legacy": {
		legacy.Options{}, 9, 5 * time.Minute,
		func(p lockmigrate.Pool) (lockmigrate.Locker, error) { return legacy.New(p, legacy.Options{}) },
		func() error { return refusal(legacy.New(nil, legacy.Options{})) },
	},
	"modern": {
		modern.Options{}, 12, 30 * time.Second,
		func(p lockmigrate.Pool) (lockmigrate.Locker, error) { return modern.New(p, modern.Options{}) },
		func() error { return refusal(modern.New(nil, modern.Options{})) },
	},
	"redisson": {
		modern.Options{}, 12, 30 * time.Second,
		func(p lockmigrate.Pool) (lockmigrate.Locker, error) { return redisson.New(p, modern.Options{}) },
		func() error { return refusal(redisson.New(nil, modern.Options{})) },
	},
	"quorum": {
		modern.Options{}, 12, 30 * time.Second,
		func(p lockmigrate.Pool) (lockmigrate.Locker, error) {
			return quorum.New([]lockmigrate.Pool{p}, modern.Options{})
		},
		func() error { return refusal(quorum.New(nil, modern.Options{})) },
	},
	"compat": {
		compat.Options{}, 14, 30 * time.Second,
		func(p lockmigrate.Pool) (lockmigrate.Locker, error) { return compat.New(p, compat.Options{}) },
		func() error { return refusal(compat.New(nil, compat.Options{})) },
	},
}

// TestOneShape: all Lockers, and all locks, have the same methods, the same defaults, and the same words for what they refuse.
func TestOneShape(t *testing.T) {
	for name, k := range shapes {
		t.Run(name, func(t *testing.T) {
			assert.LessOrEqual(t, exported(reflect.TypeOf(k.options)), k.most, "options")
			assert.True(t, strings.HasPrefix(k.refused().Error(), name+": "), "%v", k.refused())

			l, err := k.open(redistest.Mini(t).Pool())
			require.NoError(t, err)

			for _, acquire := range []func(context.Context, string) (lockmigrate.Lock, error){l.TryAcquire, l.Acquire} {
				_, err = acquire(t.Context(), "")
				var e *lockmigrate.Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, `acquire "": the key is empty`, err.Error())
			}
			assert.ErrorContains(t, l.Do(t.Context(), "", nil), "the key is empty")

			lock, err := l.Acquire(t.Context(), "orders")
			require.NoError(t, err)
			handovers := reflect.TypeFor[interface { // WhenLost is for package handover
				lockmigrate.Lock
				WhenLost(func(cause error))
			}]()
			assert.Equal(t, methods(handovers), methods(reflect.TypeOf(lock)))
			assert.InDelta(t, k.ttl, time.Until(lock.Expiry()), float64(2*time.Second), "the default")
			assert.Zero(t, lock.Fence(), "fencing tokens are drawn where FenceTTL is set")

			err = l.Close()
			assert.ErrorContains(t, err, name+": closed with locks held: 1")
			assert.Equal(t, err, l.Close(), "the second time too")
			assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrLost)
			_, err = l.Acquire(t.Context(), "orders")
			assert.ErrorContains(t, err, "the Locker is closed")
		})
	}
}

// TestALossSaysWhyInOneLine: the reason and its details, no matter who finds the loss.
func TestALossSaysWhyInOneLine(t *testing.T) {
	for name, c := range map[string]struct {
		lose   func(t *testing.T, s *redistest.Server, k lockmigrate.Lock, l lockmigrate.Locker)
		opts   modern.Options
		reason lockmigrate.Reason
		says   string
	}{
		"taken, found by a renewal": {func(t *testing.T, s *redistest.Server, k lockmigrate.Lock, _ lockmigrate.Locker) {
			s.Do("SET", "orders", "another's")
			assert.Error(t, k.Renew(t.Context()))
		}, modern.Options{}, lockmigrate.ReasonTaken, `renew "orders": lock lost (the key is not ours any more; it holds "another's")`},
		"taken, found by the Locker's own renewal": {func(_ *testing.T, s *redistest.Server, _ lockmigrate.Lock, _ lockmigrate.Locker) {
			s.Do("SET", "orders", "another's")
		}, modern.Options{RenewEvery: 20 * time.Millisecond}, lockmigrate.ReasonTaken, `hold "orders": lock lost (the key is not ours any more; it holds "another's")`},
		"taken, found by the release": {func(t *testing.T, s *redistest.Server, k lockmigrate.Lock, _ lockmigrate.Locker) {
			s.Do("DEL", "orders")
			assert.Error(t, k.Release(t.Context()))
		}, modern.Options{}, lockmigrate.ReasonTaken, `release "orders": lock lost (the key was not ours any more when it was released)`},
		"max hold": {func(*testing.T, *redistest.Server, lockmigrate.Lock, lockmigrate.Locker) {},
			modern.Options{MaxHold: 50 * time.Millisecond}, lockmigrate.ReasonMaxHold, `hold "orders": lock lost (held for longer than MaxHold 50ms)`},
		"closed": {func(t *testing.T, _ *redistest.Server, _ lockmigrate.Lock, l lockmigrate.Locker) {
			assert.Error(t, l.Close())
		},
			modern.Options{}, lockmigrate.ReasonClosed, `hold "orders": lock lost (the Locker was closed; the key stays until its TTL or lease is over)`},
		"deadline after an I/O error": {func(t *testing.T, s *redistest.Server, _ lockmigrate.Lock, _ lockmigrate.Locker) { s.Mini.Close() },
			modern.Options{TTL: time.Second, ReplyTimeout: 900 * time.Millisecond}, lockmigrate.ReasonDeadline, "(no renewal came through for 1s)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Mini(t)
			l, err := modern.New(s.Pool(), c.opts)
			require.NoError(t, err)
			defer func() { _ = l.Close() }()
			k, err := l.Acquire(t.Context(), "orders")
			require.NoError(t, err)
			c.lose(t, s, k, l)
			<-k.Context().Done()
			cause := context.Cause(k.Context())
			var lost *lockmigrate.Error
			require.ErrorAs(t, cause, &lost)
			assert.Equal(t, c.reason, lost.Reason)
			assert.Contains(t, cause.Error(), c.says)
			assert.NotContains(t, cause.Error(), "\n")
			if c.reason == lockmigrate.ReasonDeadline {
				assert.ErrorContains(t, lost.Cause, "connect", "the error of the connection")
			}
		})
	}
}

// TestAnErrorIsOneLine: whatever stands behind it.
func TestAnErrorIsOneLine(t *testing.T) {
	err := &lockmigrate.Error{Op: "release", Key: "a\nb", Kind: lockmigrate.ErrLost, Cause: errors.Join(errors.New("one"), errors.New("two\r\nthree"))}
	assert.Equal(t, `release "a\nb": lock lost: one; two; three`, err.Error())
}

func exported(options reflect.Type) (n int) {
	for i := range options.NumField() {
		if options.Field(i).IsExported() {
			n++
		}
	}
	return n
}

// TestPoolsShowWhatAUserCalls: what the lock packages need of a pool besides is not in its users' sight.
func TestPoolsShowWhatAUserCalls(t *testing.T) {
	for _, pool := range []reflect.Type{reflect.TypeFor[*cluster.Pool](), reflect.TypeFor[*sentinel.Pool]()} {
		assert.Equal(t, []string{"Close", "GetContext"}, methods(pool), pool)
	}
}

func methods(of reflect.Type) (names []string) {
	for i := range of.NumMethod() {
		names = append(names, of.Method(i).Name)
	}
	return names
}
