package faults

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// holdersServe makes this test binary a holder process where a test has started it as one.
func holdersServe() {
	makers := map[string]holders.Maker{}
	for _, k := range kinds {
		makers[k.name] = func(pool *redis.Pool, _ map[string]string) (holders.Taker, error) { return holders.Of(k.open(pool)) }
	}
	holders.ServeIfAsked(makers)
}

// A process is stopped inside its lock for longer than the TTL. Another takes over; the first one, when it
// goes on, hears that it lost the lock, and leaves its successor's alone. Its fencing token is the older.
func TestStoppedProcess(t *testing.T) {
	for _, k := range kinds {
		if !k.tells {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			stopped := holders.StartGo(t, k.name, s.URL())
			require.Equal(t, "acquired", stopped.Do("acquire k").Event)
			stopped.Signal(syscall.SIGSTOP)
			late, began := redistest.NewLateness(t), time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			locker, err := k.open(s.Pool())
			require.NoError(t, err)
			defer locker.Close()
			held, err := locker.Acquire(ctx, "k")
			require.NoError(t, err)
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
