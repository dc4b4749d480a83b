package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// lasts is for benchmarks of which a number of operations says nothing: they last for a while, and are run once.
func lasts(long time.Duration) time.Duration {
	if testing.Short() {
		return 200 * time.Millisecond
	}
	return long
}

// BenchmarkWaiting holds a lock, for which 8 goroutines of 4 clients wait: what they ask the server.
func BenchmarkWaiting(b *testing.B) {
	each(b, waits, func(t *trial) {
		release, err := t.client().Acquire(context.Background(), t.key)
		check(t, err)
		settles, long := lasts(time.Second), lasts(12*time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), settles+long+time.Second) // a BLPOP hears of no cancel
		var all sync.WaitGroup
		for range 4 {
			c := t.client()
			for range 2 {
				all.Go(func() {
					if release, err := c.Acquire(ctx, t.key); err == nil {
						t.overlaps.Add(1)
						_ = release()
					}
				})
			}
		}
		time.Sleep(settles)
		before, began := t.usage(), time.Now()
		time.Sleep(long)
		t.ReportMetric((t.usage().reads-before.reads-1)/time.Since(began).Seconds(), "reads/s")
		cancel()
		all.Wait()
		check(t, release())
	})
}

// BenchmarkMemory has 5,000 goroutines of a process wait for a lock: what the Go runtime takes from the system for them. A stack and little else:
// what is in use is at most 10 KiB each.
func BenchmarkMemory(b *testing.B) {
	each(b, func(c contestant) bool { return told(c) && !c.list }, func(t *trial) {
		release, err := t.client().Acquire(context.Background(), t.key)
		check(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		system := func() (taken, used float64) {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return float64(m.Sys) / (1 << 20), float64(m.StackInuse+m.HeapInuse) / (1 << 20)
		}
		c := t.client()
		before, usedBefore := system()
		var all sync.WaitGroup
		for range 5000 {
			all.Go(func() { _, _ = c.Acquire(ctx, t.key) })
		}
		time.Sleep(lasts(3 * time.Second))
		after, used := system()
		for began := time.Now(); used-usedBefore > 50 && time.Since(began) < 10*time.Second; after, used = system() {
			time.Sleep(100 * time.Millisecond) // on a busy machine they come late to their places
		}
		t.ReportMetric(after-before, "MiB")
		if runtime.NumGoroutine() < 5000 || used-usedBefore > 50 {
			t.Errorf("%d goroutines, and %.1f MiB in use for those that wait", runtime.NumGoroutine(), used-usedBefore)
		}
		cancel()
		all.Wait()
		check(t, release())
	})
}

// BenchmarkHeld holds 100,000 locks with a TTL of 30 s and renews them.
func BenchmarkHeld(b *testing.B) {
	each(b, func(c contestant) bool { return c.held }, func(t *trial) {
		many := 100_000
		if testing.Short() {
			many = 500
		}
		c := t.client()
		releases, failures := make([]func() error, many), make([]error, 64)
		forEach := func(do func(i int) error) {
			var all sync.WaitGroup
			for g := range failures {
				all.Go(func() {
					for i := g; i < many && failures[g] == nil; i += len(failures) {
						failures[g] = do(i)
					}
				})
			}
			all.Wait()
			check(t, errors.Join(failures...))
		}
		forEach(func(i int) (err error) {
			releases[i], err = c.Acquire(context.Background(), fmt.Sprint(t.key, i))
			return err
		})
		before, began := t.usage(), time.Now()
		time.Sleep(lasts(12 * time.Second))
		after, took := t.usage(), time.Since(began)
		t.ReportMetric(float64(after.client-before.client)/float64(took), "client-core")
		t.ReportMetric(float64(after.server-before.server)/float64(took), "server-core")
		t.ReportMetric(after.connections, "connections")
		forEach(func(i int) error { return releases[i]() })
	})
}

// BenchmarkLeft takes 10,000 locks once and gives them back: what is left of each on the server a minute later.
func BenchmarkLeft(b *testing.B) {
	each(b, crowd, func(t *trial) {
		many := 10_000
		if testing.Short() {
			many = 100
		}
		c := t.client()
		for i := range many {
			check(t, c.Pair(context.Background(), fmt.Sprint(t.key, "-", i)))
		}
		time.Sleep(lasts(time.Minute))
		keys, err := redis.Strings(t.admin.Do("KEYS", "*"+t.key+"*"))
		check(t, err)
		left := 0
		for _, key := range keys {
			n, err := redis.Int(t.admin.Do("MEMORY", "USAGE", key))
			if !errors.Is(err, redis.ErrNil) {
				check(t, err)
			}
			left += n
		}
		t.ReportMetric(float64(left)/float64(many), "bytes/lock")
	})
}
