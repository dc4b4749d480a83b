package compat_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// A service that shares its locks with unmodified Java clients and with token clients.
func Example() {
	server, err := fleet.StartServer() // stands for your Redis
	if err != nil {
		panic(err)
	}
	defer server.Close()
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", server.Addr())
	}}
	defer pool.Close()

	locker, err := compat.New(pool, compat.Options{ShortestLease: 30 * time.Second})
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	java, err := legacy.New(pool, legacy.Options{Lease: 30 * time.Second})
	if err != nil {
		panic(err)
	}
	defer java.Close()

	err = locker.Do(context.Background(), "lock.order.17", func(ctx context.Context) error {
		_, err := java.TryAcquire(ctx, "lock.order.17")
		fmt.Println(err)
		return nil
	})
	fmt.Println(err)
	// Output:
	// acquire "lock.order.17": lock not acquired
	// <nil>
}
