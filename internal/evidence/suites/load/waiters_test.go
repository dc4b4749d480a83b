// This file bounds what waiting costs where many wait for one key: memory of the process, and round trips of the server.

package load

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

const key = "lock.orders"

// acquire is a Locker's Acquire, whatever kind it is.
type acquire func(ctx context.Context) (lockmigrate.Lock, error)

var kinds = map[string]func(pool lockmigrate.Pool) (acquire, func()){
	"modern": func(pool lockmigrate.Pool) (acquire, func()) {
		l, err := modern.New(pool, modern.Options{})
		if err != nil {
			log.Fatal(err)
		}
		return func(ctx context.Context) (lockmigrate.Lock, error) { return l.Acquire(ctx, key) }, func() { l.Close() }
	},
	"compat": func(pool lockmigrate.Pool) (acquire, func()) {
		l, err := compat.New(pool, compat.Options{})
		if err != nil {
			log.Fatal(err)
		}
		return func(ctx context.Context) (lockmigrate.Lock, error) { return l.Acquire(ctx, key) }, func() { l.Close() }
	},
}

const child = "LOCKMIGRATE_CROWD" // in the environment of a process of waiters: a kind and an address

// TestMain is a process of waiters too: what they take of the system is measured in a process that does nothing else.
func TestMain(m *testing.M) {
	if kind, addr, ok := strings.Cut(os.Getenv(child), " "); ok {
		wait(kind, addr)
		os.Exit(0)
	}
	redistest.Main(m, redistest.Redis)
}

const waiters = 5000

// wait has many goroutines wait for the key, which the first of them holds.
func wait(kind, addr string) {
	pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr) }}
	get, _ := kinds[kind](pool)
	if _, err := get(context.Background()); err != nil {
		log.Fatal(err)
	}
	before := fromSystem()
	ctx, cancel := context.WithCancel(context.Background()) // as callers have it
	defer cancel()
	for range waiters {
		go func() {
			if _, err := get(ctx); err == nil {
				log.Fatal("a waiter got the key that another one holds")
			}
		}()
	}
	time.Sleep(3 * time.Second) // the subject
	fmt.Printf("%d goroutines, %d bytes\n", runtime.NumGoroutine(), fromSystem()-before)
}

func fromSystem() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Sys
}

// TestMemoryOfWaiters: who waits in a queue of his own process costs a stack and little else.
func TestMemoryOfWaiters(t *testing.T) {
	const most = 100 << 20 // bytes
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			s := redistest.Real(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), child+"="+kind+" "+s.Addr)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			found := regexp.MustCompile(`(\d+) goroutines, (\d+) bytes`).FindSubmatch(out)
			require.NotNil(t, found, "%s", out)
			goroutines, _ := strconv.Atoi(string(found[1]))
			bytes, _ := strconv.Atoi(string(found[2]))
			require.Greater(t, goroutines, waiters, "all of them wait")
			assert.LessOrEqual(t, bytes, most)
			t.Logf("%.1f MiB", float64(bytes)/(1<<20))
		})
	}
}
