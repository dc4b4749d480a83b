package legacy_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// A Go service joins a fleet of Java services that lock with jedis-lock.
func Example() {
	server := miniredis.NewMiniRedis() // stands for the fleet's server
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer server.Close()
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", server.Addr())
	}}
	defer pool.Close()

	locker, err := legacy.New(pool, legacy.Options{
		Dialect: legacy.Dialect{Name: "jedis-ms"}, // as on the command line
		Lease:   time.Minute,
		Wait:    300 * time.Millisecond,
	})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	ctx := context.Background()
	err = locker.Do(ctx, "lock.orders", func(ctx context.Context) error {
		fmt.Println("inside")
		_, err := locker.TryAcquire(ctx, "lock.orders")
		fmt.Println("a second holder:", errors.Is(err, lockmigrate.ErrNotAcquired))
		return nil
	})
	fmt.Println("done:", err)
	// Output:
	// inside
	// a second holder: true
	// done: <nil>
}
