package sidecar_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// written is a log that is read while it is written.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// Keys that the sidecar's user may not look at take nothing away from the others: these are renewed. What may be held on them is
// told once a key, and counts as held: nobody has seen that it is not.
func TestKeysWithoutTheRight(t *testing.T) {
	b := newBed(t, stages.Bridge, "jedis-ms")
	b.redis.Do("ACL", "SETUSER", "side", "on", "nopass", "+@all", "~lock:yes", "~{lock:yes}:*", "~lockmigrate:*", "&*")
	pool := &redis.Pool{MaxIdle: 4, Dial: func() (redis.Conn, error) {
		return redis.Dial("tcp", b.redis.Addr, redis.DialUsername("side"), redis.DialPassword("x"))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	log := &written{}
	s := b.sidecar("one", "none", func(o *sidecar.Options) { o.Pool, o.Log = pool, slog.New(slog.NewTextHandler(log, nil)) })
	c := b.client(s)
	const dark = 60
	for i := range dark {
		says(t, c, "1", "SETNX", fmt.Sprint("lock:no", i), "one")
	}
	says(t, c, "1", "SETNX", "lock:yes", "one")
	until := time.Now().Add(5 * time.Second)
	for time.Now().Before(until) {
		require.Equal(t, int64(1), b.redis.Do("EXISTS", "lock:yes"), "a lock that can be renewed has ended")
		time.Sleep(20 * time.Millisecond)
	}
	assert.Equal(t, dark, strings.Count(log.String(), "could not be looked after"))
	view, err := b.store.Show(t.Context())
	require.NoError(t, err)
	require.Len(t, view.Members, 1)
	assert.Equal(t, stages.Bridge, view.Members[0].Lowest)
	assert.Contains(t, view.Members[0].Info.Note, fmt.Sprintf("may not look at keys of locks (%d)", dark))
	says(t, c, "1", "DEL", "lock:yes")
	time.Sleep(3 * time.Second) // more than the member's lease
	view, err = b.store.Show(t.Context())
	require.NoError(t, err)
	require.Len(t, view.Members, 1)
	assert.Equal(t, stages.Bridge, view.Members[0].Lowest, "nobody has seen that nothing is held")
}

// A server that has lost the sidecar's functions costs the service the commands that were under way, and no more.
func TestFunctionFlush(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-ms")
	c := b.client(b.sidecar("one", ""))
	library := func() bool { return len(b.redis.Do("FUNCTION", "LIST").([]any)) == 1 }
	redistest.Await(t, "the functions", 5*time.Second, library)
	called := func() bool {
		says(t, c, "0", "DEL", "lock:a")
		return strings.Contains(fmt.Sprintf("%s", b.redis.Do("INFO", "commandstats")), "cmdstat_fcall:")
	}
	redistest.Await(t, "a function that is called", 5*time.Second, called)
	for range 3 {
		b.redis.Do("FUNCTION", "FLUSH")
		_, err := c.Do("SETNX", "lock:a", ends(time.Minute))
		require.ErrorContains(t, err, "Function not found")
		says(t, c, "1", "SETNX", "lock:a", ends(time.Minute))
		says(t, c, "1", "DEL", "lock:a")
		b.redis.Do("CONFIG", "RESETSTAT")
		redistest.Await(t, "the functions again", 2*time.Second, library)
		redistest.Await(t, "a function that is called again", 2*time.Second, called)
	}
}
