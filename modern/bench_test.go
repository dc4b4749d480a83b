package modern_test

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/modern"
)

// BenchmarkAcquireRelease is the cost of a lock that nobody else wants, beside the same commands sent by
// hand over a pool.
func BenchmarkAcquireRelease(b *testing.B) {
	for name, opts := range map[string]kind{
		"queue": {}, "unfair": {Unfair: true}, "fenced": {FenceTTL: time.Minute}, "pooled": {Pooled: true},
	} {
		b.Run(name, func(b *testing.B) {
			locker := open(b, redistest.Real(b), opts)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				lock, err := locker.TryAcquire(ctx, key)
				if err != nil {
					b.Fatal(err)
				}
				if err := lock.Release(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("raw", func(b *testing.B) {
		pool := redistest.Real(b).Pool()
		b.ReportAllocs()
		for b.Loop() {
			raw(b, pool, key)
		}
	})
}

// BenchmarkManyKeys is 64 goroutines, each with a key of its own.
func BenchmarkManyKeys(b *testing.B) {
	b.Run("modern", func(b *testing.B) {
		locker := newLocker(b, redistest.Real(b).Pool(), modern.Options{})
		var n atomic.Int64
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			mine := key + strconv.FormatInt(n.Add(1), 10)
			for pb.Next() {
				lock, err := locker.TryAcquire(context.Background(), mine)
				if err != nil {
					b.Error(err)
					return
				}
				if err := lock.Release(context.Background()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	b.Run("raw", func(b *testing.B) {
		pool := redistest.Real(b).Pool()
		pool.MaxIdle = 128
		var n atomic.Int64
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			mine := key + strconv.FormatInt(n.Add(1), 10)
			for pb.Next() {
				raw(b, pool, mine)
			}
		})
	})
}

func raw(b *testing.B, pool *redis.Pool, key string) {
	conn := pool.Get()
	if _, err := redis.String(conn.Do("SET", key, "5123456789012345678", "NX", "PX", 30000)); err != nil {
		b.Fatal(err)
	}
	_ = conn.Close()
	conn = pool.Get()
	if _, err := conn.Do("EVALSHA", scripts.CompareDel.Digest, 1, key, "5123456789012345678"); err != nil {
		if _, err := conn.Do("EVAL", scripts.CompareDel.Source, 1, key, "5123456789012345678"); err != nil {
			b.Fatal(err)
		}
	}
	_ = conn.Close()
}

// TestAcquireReleaseAllocations holds what docs/benchmarks.md says: an uncontended lock costs no more
// than twelve allocations. The line's test of the same kind has five for the commands alone.
func TestAcquireReleaseAllocations(t *testing.T) {
	locker := newLocker(t, redistest.Real(t).Pool(), modern.Options{})
	pair := func() {
		lock, err := locker.TryAcquire(t.Context(), key)
		if err == nil {
			err = lock.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pair()
	most := 12.0
	if build, ok := debug.ReadBuildInfo(); ok && slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		most = 16 // the race detector has pools forget at random
	}
	if n := testing.AllocsPerRun(2000, pair); n > most {
		t.Errorf("%v allocations, at most %v are agreed", n, most)
	}
}

// echo answers at once, in memory: OK to a SET, 1 to everything else.
type echo struct {
	replies chan any
	sent    []any
}

func (e *echo) Send(name string, _ ...any) error {
	var reply any = int64(1)
	if name == "SET" {
		reply = "OK"
	}
	e.sent = append(e.sent, reply)
	return nil
}

func (e *echo) Flush() error {
	for _, reply := range e.sent {
		e.replies <- reply
	}
	e.sent = e.sent[:0]
	return nil
}

func (e *echo) Receive() (any, error) { return e.ReceiveWithTimeout(0) }

func (e *echo) ReceiveWithTimeout(time.Duration) (any, error) {
	reply, ok := <-e.replies
	if !ok {
		return nil, io.EOF
	}
	return reply, nil
}

func (e *echo) Do(string, ...any) (any, error) { return nil, errors.New("a line sends and receives") }

func (e *echo) DoWithTimeout(time.Duration, string, ...any) (any, error) { return e.Do("") }

func (e *echo) Err() error { return nil }

func (e *echo) Close() error { close(e.replies); return nil }

// BenchmarkInMemory is what acquire and release cost in this process itself, without a system call.
func BenchmarkInMemory(b *testing.B) {
	dial := func(context.Context) (redis.Conn, error) { return &echo{replies: make(chan any, 16)}, nil }
	locker := newLocker(b, &redis.Pool{DialContext: dial}, modern.Options{})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		lock, err := locker.TryAcquire(ctx, key)
		if err != nil {
			b.Fatal(err)
		}
		if err := lock.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
