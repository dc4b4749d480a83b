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
	"sync"
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

// TestATurnCostsTheSameHoweverManyWait: each Locker is a process to the server. A round trip is a read of a socket by the server.
func TestATurnCostsTheSameHoweverManyWait(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			few, many := roundTrips(t, kind, 4), roundTrips(t, kind, 100)
			t.Logf("round trips a turn: %.1f with 4, %.1f with 100", few, many)
			assert.Less(t, many, few*1.3+0.5)
		})
	}
}

// roundTrips returns how many of them a turn costs when Lockers pass the key on. A turn is long enough that each waits for half a
// second where there are a hundred.
func roundTrips(t *testing.T, kind string, lockers int) float64 {
	s := redistest.Real(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	turns := 0
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return turns
	}
	for range lockers {
		get, end := kinds[kind](s.Pool())
		all.Go(func() {
			defer end()
			for ctx.Err() == nil {
				k, err := get(ctx)
				if err != nil {
					continue
				}
				mu.Lock()
				turns++
				mu.Unlock()
				time.Sleep(5 * time.Millisecond)
				assert.NoError(t, k.Release(context.Background()))
			}
		})
	}
	redistest.Await(t, "everybody had a turn, or could have", time.Minute, func() bool { return count() > 2*lockers })
	reads := func() int {
		info, err := redis.String(s.Do("INFO", "stats"), nil)
		require.NoError(t, err)
		n := regexp.MustCompile(`total_reads_processed:(\d+)`).FindStringSubmatch(info)
		require.NotNil(t, n)
		v, _ := strconv.Atoi(n[1])
		return v
	}
	from, before := count(), reads()
	redistest.Await(t, "enough turns", time.Minute, func() bool { return count() >= from+400 })
	to, after := count(), reads()
	cancel()
	all.Wait()
	return float64(after-before) / float64(to-from)
}
