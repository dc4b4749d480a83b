package faults

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// holdersServe makes this test binary a holder process where a test has started it as one.
func holdersServe() {
	makers := map[string]holders.Maker{}
	for _, k := range kinds {
		makers[k.name] = func(pool *redis.Pool, _ map[string]string) (holders.Taker, error) {
			acquire, _, err := k.open(pool)
			return taker(acquire), err
		}
	}
	holders.ServeIfAsked(makers)
}

type taker func(context.Context, string) (lock, int64, error)

func (t taker) Acquire(ctx context.Context, key string) (func(context.Context) error, error) {
	k, _, err := t(ctx, key)
	if err != nil {
		return nil, err
	}
	return k.Release, nil
}

// A process is stopped inside its lock for longer than the TTL. Another takes over; the first one, when it
// goes on, hears that it lost the lock, and leaves its successor's alone. Its fencing token is the older.
func TestStoppedProcess(t *testing.T) {
	for _, name := range []string{"bridge", "modern", "unfair"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			stopped := holders.StartGo(t, name, s.URL())
			require.Equal(t, "acquired", stopped.Do("acquire k").Event)
			stopped.Signal(syscall.SIGSTOP)
			late, began := redistest.NewLateness(t), time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var held lock
			if name == "bridge" {
				l, err := compat.New(s.Pool(), compat.Options{TTL: ttl})
				require.NoError(t, err)
				defer l.Close()
				held, err = l.Acquire(ctx, "k")
				require.NoError(t, err)
			} else {
				l, err := modern.New(s.Pool(), modern.Options{TTL: ttl, Unfair: name == "unfair"})
				require.NoError(t, err)
				defer l.Close()
				held, err = l.Acquire(ctx, "k")
				require.NoError(t, err)
			}
			waited := time.Since(began)
			assert.Greater(t, waited, ttl/2, "not before its TTL is over")
			assert.Less(t, waited, ttl+500*time.Millisecond+late.Most(), "and not long after")
			stopped.Signal(syscall.SIGCONT)
			e := stopped.Do("release k")
			assert.Equal(t, "error", e.Event)
			assert.Contains(t, e.Message, "lock lost")
			require.NoError(t, held.Context().Err(), "the successor's lock is untouched")
			require.NoError(t, held.Release(ctx))
		})
	}
}
