package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// oldClient takes turns on a key until ctx ends, as jedis-lock does, with a clock that is off. Each connection has an address of
// its own, by which --group host tells it from the others.
func oldClient(ctx context.Context, t *testing.T, s *redistest.Server, key string, lease, off, hold, think time.Duration) {
	conn := s.Conn()
	defer conn.Close()
	now := func() int64 { return time.Now().Add(off).UnixMilli() }
	value := func() string { return strconv.FormatInt(now()+lease.Milliseconds()+1, 10) }
	sleep := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for ctx.Err() == nil {
		won, err := redis.Int(conn.Do("SETNX", key, value()))
		require.NoError(t, err)
		if won == 0 {
			read, _ := redis.String(conn.Do("GET", key))
			if expires, err := strconv.ParseInt(read, 10, 64); err == nil && expires < now() {
				before, _ := redis.String(conn.Do("GETSET", key, value()))
				won = map[bool]int{true: 1}[before == read]
			}
		}
		if won == 0 {
			sleep(50 * time.Millisecond)
			continue
		}
		time.Sleep(hold)
		_, err = conn.Do("DEL", key)
		require.NoError(t, err)
		sleep(think)
	}
}

// TestObserveSaysHowFarItIs: on a terminal, and nowhere else. What it sees in a database names that.
func TestObserveSaysHowFarItIs(t *testing.T) {
	t.Chdir(t.TempDir())
	lines := strings.Repeat(`1700000000.000001 [5 10.0.0.1:1] "SETNX" "lock:a" "1700000030001"`+"\n"+`1700000000.000002 [5 10.0.0.2:1] "DEL" "lock:a"`+"\n", 3)
	require.NoError(t, os.WriteFile("traffic.txt", []byte(lines), 0o600))
	for _, terminal := range []bool{true, false} {
		code, out, errs := lockmigrateIn(t.Context(), terminal, "observe", "--from", "traffic.txt")
		require.Equal(t, exitDone, code, errs)
		assert.Equal(t, terminal, strings.Contains(errs, "observe: 0.0 MiB read [####################]"), errs)
		assert.Contains(t, out, "in database 5")
		assert.Contains(t, out, "stale-delete    lock:a in database 5 by 10.0.0.2:1")
	}
}
