package modern_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/modern"
)

// server is an embedded server, so that the examples run; a service has its own pool.
func server() (pool *redis.Pool, stop func()) {
	s := miniredis.NewMiniRedis()
	if err := s.Start(); err != nil {
		panic(err)
	}
	pool = &redis.Pool{
		MaxIdle:     8,
		DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", s.Addr()) },
	}
	return pool, func() { _ = pool.Close(); s.Close() }
}

func Example() {
	pool, stop := server()
	defer stop()
	ctx := context.Background()

	locker, err := modern.New(pool, modern.Options{})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	err = locker.Do(ctx, "orders", func(ctx context.Context) error {
		// ctx ends when the lock is lost.
		fmt.Println("shipping")
		return nil
	})
	fmt.Println(err)
	// Output:
	// shipping
	// <nil>
}

func ExampleLocker_TryAcquire() {
	pool, stop := server()
	defer stop()
	ctx := context.Background()
	locker, err := modern.New(pool, modern.Options{TTL: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	lock, err := locker.TryAcquire(ctx, "orders")
	fmt.Println("first:", err)
	_, err = locker.TryAcquire(ctx, "orders")
	fmt.Println("second:", err)
	fmt.Println("released:", lock.Release(ctx))
	fmt.Println("the holder's context:", errors.Is(context.Cause(lock.Context()), lockmigrate.ErrReleased))
	// Output:
	// first: <nil>
	// second: acquire "orders": lock not acquired
	// released: <nil>
	// the holder's context: true
}

// store is something that locked work writes to. It refuses whoever comes with an older fencing token
// than it has seen: a holder that was overtaken and does not know it yet.
type store struct {
	mu    sync.Mutex
	fence int64
	text  string
}

var errOvertaken = errors.New("a newer holder has written")

func (s *store) write(fence int64, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence < s.fence {
		return errOvertaken
	}
	s.fence, s.text = fence, text
	return nil
}

func ExampleLock_Fence() {
	pool, stop := server()
	defer stop()
	ctx := context.Background()
	locker, err := modern.New(pool, modern.Options{FenceTTL: time.Minute})
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	var s store

	slow, err := locker.Acquire(ctx, "orders")
	if err != nil {
		panic(err)
	}
	// The holder is paused past its lease: here, the key is simply gone.
	conn := pool.Get()
	_, _ = conn.Do("DEL", "orders")
	_ = conn.Close()

	quick, err := locker.Acquire(ctx, "orders")
	if err != nil {
		panic(err)
	}
	fmt.Println("the new holder:", s.write(quick.Fence(), "new"))
	fmt.Println("the old one:", s.write(slow.Fence(), "old"))
	fmt.Println("stored:", s.text)
	fmt.Println("released:", quick.Release(ctx))
	fmt.Println("released:", slow.Release(ctx))
	// Output:
	// the new holder: <nil>
	// the old one: a newer holder has written
	// stored: new
	// released: <nil>
	// released: release "orders": lock lost (the key was not ours any more when it was released)
}

func Example_owner() {
	pool, stop := server()
	defer stop()
	locker, err := modern.New(pool, modern.Options{})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	ctx := modern.WithOwner(context.Background(), "request 42")
	err = locker.Do(ctx, "orders", func(ctx context.Context) error {
		again, err := locker.Acquire(ctx, "orders")
		if err != nil {
			return err
		}
		fmt.Println("the same hold:", again.Key())
		return again.Release(ctx)
	})
	fmt.Println(err)
	// Output:
	// the same hold: orders
	// <nil>
}
