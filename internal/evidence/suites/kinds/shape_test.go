package kinds

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
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

// shape is the Lockers of one package.
type shape struct {
	options reflect.Type
	most    int // options
	servers int
	ttl     time.Duration
	open    func(t *testing.T, pools []lockmigrate.Pool) (lockmigrate.Locker, error) // without options
	try     func(t *testing.T, r *rand.Rand) (accepted bool)                         // with some
}

// shapeOf makes one of a package's New. Acquire is how a Locker of drawn options is tried.
func shapeOf[O any](most, servers int, ttl time.Duration, acquire acquires, open func(t *testing.T, pools []lockmigrate.Pool, o O) (lockmigrate.Locker, error)) shape {
	k := shape{options: reflect.TypeFor[O](), most: most, servers: servers, ttl: ttl}
	k.open = func(t *testing.T, pools []lockmigrate.Pool) (lockmigrate.Locker, error) {
		var none O
		return open(t, pools, none)
	}
	k.try = func(t *testing.T, r *rand.Rand) bool {
		var o O
		fill(reflect.ValueOf(&o).Elem(), r)
		l, err := open(t, k.pools(t), o)
		if err != nil {
			return false
		}
		defer l.Close()
		works(t, o, l, acquire)
		return true
	}
	return k
}

func (k shape) pools(t *testing.T) (pools []lockmigrate.Pool) {
	for range k.servers {
		pools = append(pools, redistest.Mini(t).Pool())
	}
	return pools
}

var shapes = map[string]shape{
	"legacy": shapeOf(9, 1, 5*time.Minute, lockmigrate.Locker.Acquire, func(_ *testing.T, p []lockmigrate.Pool, o legacy.Options) (lockmigrate.Locker, error) {
		return legacy.New(p[0], o)
	}),
	"modern": shapeOf(12, 1, 30*time.Second, lockmigrate.Locker.Acquire, func(_ *testing.T, p []lockmigrate.Pool, o modern.Options) (lockmigrate.Locker, error) {
		return modern.New(p[0], o)
	}),
	"redisson": shapeOf(12, 1, 30*time.Second, lockmigrate.Locker.Acquire, func(_ *testing.T, p []lockmigrate.Pool, o modern.Options) (lockmigrate.Locker, error) {
		return redisson.New(p[0], o)
	}),
	// Acquire would try for ever where every reply is too late.
	"quorum": shapeOf(12, 3, 30*time.Second, lockmigrate.Locker.TryAcquire, func(_ *testing.T, p []lockmigrate.Pool, o modern.Options) (lockmigrate.Locker, error) {
		return quorum.New(p, o)
	}),
	"compat": shapeOf(14, 1, 30*time.Second, lockmigrate.Locker.TryAcquire, func(t *testing.T, p []lockmigrate.Pool, o compat.Options) (lockmigrate.Locker, error) {
		l, err := compat.New(p[0], o)
		refused := o.Validate()
		require.Equal(t, refused == nil, err == nil || p[0] == nil, "%+v: Validate: %v; New: %v", o, refused, err)
		return l, err
	}),
}

// TestOneShape: all Lockers, and all locks, have the same methods, the same defaults, and the same words for what they refuse.
func TestOneShape(t *testing.T) {
	for name, k := range shapes {
		t.Run(name, func(t *testing.T) {
			assert.LessOrEqual(t, exported(k.options), k.most, "options")
			_, err := k.open(t, make([]lockmigrate.Pool, k.servers))
			assert.Regexp(t, "^"+name+": ", err, "no pool")

			l, err := k.open(t, k.pools(t))
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
			modern.Options{TTL: time.Second, ReplyTimeout: 900 * time.Millisecond}, lockmigrate.ReasonDeadline, "(no renewal came through for 1s"},
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
