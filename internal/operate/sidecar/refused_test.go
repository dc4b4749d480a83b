package sidecar_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
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
	pool := poolOf(t, b.redis.Addr, redis.DialUsername("side"), redis.DialPassword("x"))
	log := &written{}
	s := b.sidecar("one", "none", memberFor(2*time.Second), func(o *sidecar.Options) { o.Pool, o.Log = pool, slog.New(slog.NewTextHandler(log, nil)) })
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

// A command that is alone calls its script by the digest, and goes again with the text when the server has forgotten it. Package proxy's tests have pipelines and
// transactions.
func TestScriptFlush(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-ms")
	c := b.client(b.sidecar("one", ""))
	turn := func() {
		says(t, c, "1", "SETNX", "lock:a", ends(time.Minute))
		says(t, c, "1", "DEL", "lock:a")
	}
	turn()
	b.redis.Do("CONFIG", "RESETSTAT")
	turn()
	stats := fmt.Sprintf("%s", b.redis.Do("INFO", "commandstats"))
	assert.Contains(t, stats, "cmdstat_evalsha:")
	assert.NotContains(t, stats, "cmdstat_eval:", "the scripts' texts are sent, though the server has them")
	b.redis.Do("SCRIPT", "FLUSH")
	turn()
}

// A server that takes no writes lets a lock go, and be asked for and renewed, as it does for a script of the service.
func TestServersThatTakeNoWrites(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-ms")
	c := b.client(b.sidecar("one", ""))
	text := ends(time.Minute)
	says(t, c, "1", "SETNX", "lock:a", text)
	b.redis.Do("CONFIG", "SET", "maxmemory", "1")
	says(t, c, text, "GET", "lock:a")
	says(t, c, "1", "PEXPIRE", "lock:a", 70_000)
	says(t, c, "1", "DEL", "lock:a")
	b.redis.Do("CONFIG", "SET", "maxmemory", "0")

	says(t, c, "1", "SETNX", "lock:a", text)
	b.redis.Do("CONFIG", "SET", "save", "3600 1000000")
	folder, err := redis.Strings(b.redis.Do("CONFIG", "GET", "dir"), nil)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(folder[1]+"/dump.rdb", 0o700)) // no snapshot can be put in its place
	b.redis.Do("BGSAVE")
	redistest.Await(t, "a snapshot that fails", func() bool {
		return strings.Contains(fmt.Sprintf("%s", b.redis.Do("INFO", "persistence")), "rdb_last_bgsave_status:err")
	})
	says(t, c, text, "GET", "lock:a")
	_, err = c.Do("SETNX", "lock:b", ends(time.Minute))
	assert.ErrorContains(t, err, "MISCONF ")
	b.redis.Do("CONFIG", "SET", "save", "")

	b.redis.Do("REPLICAOF", "127.0.0.1", "1")
	says(t, c, text, "GET", "lock:a")
	_, err = c.Do("SETNX", "lock:b", ends(time.Minute))
	assert.ErrorContains(t, err, "READONLY ")
}

// TestLeastRights: with the rights of the table, and no others, nothing is refused.
func TestLeastRights(t *testing.T) {
	for _, stage := range []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern} {
		b := newBed(t, stage, "jedis-ms")
		for i, name := range []string{"own", "service"} {
			args := []any{"SETUSER", name, "on", ">" + name}
			for _, rule := range doctor.Sidecars[i].Rules([]string{"lock:*"}, nil) {
				args = append(args, rule)
			}
			b.redis.Do("ACL", args...)
		}
		s := b.sidecar("one", "", func(o *sidecar.Options) {
			o.Pool = poolOf(t, b.redis.Addr, redis.DialUsername("own"), redis.DialPassword("own"))
		})
		c, other := b.client(s), b.client(b.sidecar("two", ""))
		b.redis.Do("ACL", "SETUSER", "service", "+setnx", "+expire") // its own: at stage legacy, and within sidecar_run.lua
		says(t, c, "OK", "AUTH", "service", "service")
		text := ends(20 * time.Second)
		says(t, c, "1", "SETNX", "lock:r", text)
		says(t, c, text, "GET", "lock:r")
		if stage != stages.Legacy {
			says(t, c, "1", "EXPIRE", "lock:r", 10)
			says(t, other, "0", "SETNX", "lock:r", text)
		}
		says(t, c, "1", "DEL", "lock:r")
		if stage == stages.Legacy {
			continue
		}
		says(t, c, "0", "SETNX", "lock:r", text)
		says(t, other, "1", "SETNX", "lock:r", text)
		says(t, other, "1", "DEL", "lock:r")
		says(t, c, "1", "SETNX", "lock:r", text)
		time.Sleep(time.Second) // the keeper looks
		log, err := redis.Values(b.redis.Do("ACL", "LOG"), nil)
		require.NoError(t, err)
		assert.Empty(t, log, "%s", log)
	}
}
