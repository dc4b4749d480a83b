package modern_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// New connections hang while those that are there work: the waiters wait for that once, and not one after the other.
func TestWaitersBesideADialThatHangs(t *testing.T) {
	const waiters, turns = 4, 15
	s := redistest.Real(t)
	route := redistest.NewRoute(s.Addr)
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.Addr, redis.DialContextFunc(route.Dial))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	locker := newLocker(t, pool, modern.Options{ReplyTimeout: 20 * time.Second})
	do := func() error {
		return locker.Do(t.Context(), key, func(context.Context) error { return nil })
	}
	require.NoError(t, do())
	route.Refuse(true)
	began := time.Now()
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() {
			for range turns {
				assert.NoError(t, do())
			}
		})
	}
	all.Wait()
	assert.Less(t, time.Since(began), 6*time.Second)
}
