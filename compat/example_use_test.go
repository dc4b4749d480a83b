package compat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// services returns an embedded server with the record of namespace "orders", at stage bridge. It stands for your Redis, after
// `lockmigrate stage init` and `lockmigrate stage advance`.
func services() (pool *redis.Pool, stop func()) {
	server, err := fleet.StartServer()
	if err != nil {
		panic(err)
	}
	pool = &redis.Pool{MaxIdle: 3, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", server.Addr())
	}}
	record := &stages.Store{Pool: pool, Namespace: "orders", ReplyTimeout: 5 * time.Second}
	if err := record.Init(context.Background(), stages.Record{
		Patterns: []string{"lock.order.*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second, Stage: stages.Bridge,
	}); err != nil {
		panic(err)
	}
	return pool, func() { _ = pool.Close(); server.Close() }
}

// What went wrong, and what a service does about it.
func Example_errors() {
	pool, stop := services()
	defer stop()
	ctx := context.Background()
	locker, err := compat.New(pool, compat.Options{Namespace: "orders", TTL: 3 * time.Second})
	if err != nil {
		panic(err) // options that can never work
	}
	defer locker.Close()
	if err := locker.Ready(ctx); err != nil { // else the first wait would include joining the namespace
		panic(err)
	}

	report := func(err error) {
		var e *lockmigrate.Error
		switch {
		case err == nil:
			fmt.Println("the work is done, and the lock was ours throughout")
		case errors.Is(err, lockmigrate.ErrLost): // the work may have run beside another holder
			fmt.Println("check the order by hand:", errors.Is(err, context.Canceled)) // err has what the work returned, too
		case errors.Is(err, lockmigrate.ErrForeignFormat) && errors.As(err, &e): // a client of another kind is on the key;
			// asked before ErrNotAcquired, which it may be as well
			fmt.Println("tell the operator what is on", e.Key) // err says what it is
		case errors.Is(err, lockmigrate.ErrNotAcquired): // another holder was inside for as long as we waited
			fmt.Println("try again later:", err)
		case errors.Is(err, lockmigrate.ErrUnknownOutcome) && errors.As(err, &e): // no reply; the key may stay taken until then
			fmt.Println("nobody may get the lock before", e.Until)
		case errors.Is(err, lockmigrate.ErrStage): // no such namespace, or options that do not fit its record
			fmt.Println("correct the configuration:", err)
		default:
			fmt.Println("Redis, the network, or the work itself:", err)
		}
	}

	report(locker.Do(ctx, "lock.order.17", func(ctx context.Context) error {
		brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // or Options.Wait, for all of a Locker's waits
		defer cancel()
		report(locker.Do(brief, "lock.order.17", func(context.Context) error { return nil })) // it is held
		return nil
	}))

	conn := pool.Get()
	defer conn.Close()
	_, _ = conn.Do("SET", "lock.order.18", "a word")
	_, err = locker.TryAcquire(ctx, "lock.order.18")
	report(err)

	report(locker.Do(ctx, "lock.order.19", func(ctx context.Context) error {
		_, _ = conn.Do("FLUSHDB") // the server forgets everything
		<-ctx.Done()              // and the work hears of it
		return ctx.Err()
	}))
	// Output:
	// try again later: acquire "lock.order.17": lock not acquired: context deadline exceeded
	// the work is done, and the lock was ours throughout
	// tell the operator what is on lock.order.18
	// check the order by hand: true
}

// A service of a namespace hears of each change of the stage, of losses, and of what it took over from old clients.
func Example_namespace() {
	pool, stop := services()
	defer stop()
	told, joined := context.WithCancel(context.Background())
	var mu sync.Mutex
	locker, err := compat.New(pool, compat.Options{
		Namespace: "orders",
		Member:    "billing 1.4", // the name in `lockmigrate stage`
		Observer: func(e lockmigrate.Event) { // quick, and from any goroutine
			mu.Lock()
			defer mu.Unlock()
			switch e.Kind {
			case lockmigrate.EventStage:
				fmt.Println("stage", e.Stage, "epoch", e.Epoch)
				joined()
			case lockmigrate.EventLost:
				fmt.Println("page somebody:", e.Key, e.Err)
			case lockmigrate.EventAcquired:
				fmt.Println("acquired", e.Key)
			}
		},
	})
	if err != nil {
		panic(err)
	}
	if err := locker.Ready(context.Background()); err != nil { // a misspelt namespace ends the service at its start
		panic(err)
	}
	<-told.Done() // Ready does not wait until the observer was told
	err = locker.Do(context.Background(), "lock.order.17", func(context.Context) error { return nil })
	fmt.Println(err, locker.Close())
	// Output:
	// stage bridge epoch 1
	// acquired lock.order.17
	// <nil> <nil>
}

// A service that is told to stop ends its waits, lets the work finish, and gives its locks back before it closes the pool.
func Example_shutdown() {
	pool, stop := services()
	defer stop() // the pool closes last
	locker, err := compat.New(pool, compat.Options{Namespace: "orders"})
	if err != nil {
		panic(err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()

	inside := make(chan struct{})
	var workers sync.WaitGroup
	workers.Go(func() {
		// The context given to Acquire ends the wait only. The lock stays until it is released.
		lock, err := locker.Acquire(ctx, "lock.order.17")
		if err != nil {
			fmt.Println(err)
			return
		}
		close(inside)
		<-ctx.Done() // the order that is under way is finished, while lock.Context() has not ended
		fmt.Println("the lock is still ours:", lock.Context().Err() == nil)
		// Not ctx: it is over, and the release needs a moment.
		fmt.Println("released:", lock.Release(context.WithoutCancel(ctx)))
	})
	<-inside
	workers.Go(func() {
		err := locker.Do(ctx, "lock.order.17", func(context.Context) error { return nil })
		fmt.Println("the waiter stopped:", errors.Is(err, context.Canceled))
	})
	time.Sleep(20 * time.Millisecond)
	cancel() // what SIGINT does
	workers.Wait()
	fmt.Println("closed:", locker.Close())
	// Unordered output:
	// the lock is still ours: true
	// the waiter stopped: true
	// released: <nil>
	// closed: <nil>
}
