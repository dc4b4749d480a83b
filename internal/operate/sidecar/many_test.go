package sidecar_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// A service that holds many locks over a slow network keeps them all: they are looked at together, and not one for each round trip.
func TestManyLocksOverASlowNetwork(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-ms")
	link := redistest.NewLink(t, b.redis.Addr)
	link.Slow(2*time.Millisecond, 0)
	pool := &redis.Pool{MaxIdle: 8, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", link.Addr) }}
	t.Cleanup(func() { _ = pool.Close() })
	s := b.sidecar("one", sidecar.DialectNone, func(o *sidecar.Options) { o.Pool, o.Lease = pool, 3*time.Second })
	c := b.client(s)
	const locks = 2000 // 4 ms each are 8 s
	for i := range locks {
		require.NoError(t, c.Send("SETNX", fmt.Sprint("lock:", i), "held"))
	}
	require.NoError(t, c.Flush())
	for range locks {
		taken, err := redis.Int(c.Receive())
		require.NoError(t, err)
		require.Equal(t, 1, taken)
	}
	for until := time.Now().Add(8 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		held := len(b.redis.Do("KEYS", "lock:*").([]any))
		require.Equal(t, locks, held, "locks have ended under their holder")
	}
	s.stop()
	assert.Equal(t, int64(locks), b.redis.Do("HLEN", sidecar.ListKey("orders", "one")))
}
