package lockmigrate_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

// A service changes the kind of its lock in one line; the code that works under the lock stays as it is.
func ExampleLocker() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Addr()) }}
	defer pool.Close()

	work := func(locker lockmigrate.Locker, err error) {
		if err != nil {
			fmt.Println(err)
			return
		}
		defer locker.Close()
		lock, err := locker.Acquire(context.Background(), "orders")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(lock.Stage(), lock.Release(context.Background()))
	}
	work(legacy.New(pool, legacy.Options{}))
	bridge, err := compat.New(pool, compat.Options{})
	work(bridge, err)
	work(modern.New(pool, modern.Options{}))
	// Output:
	// legacy <nil>
	// bridge <nil>
	// modern <nil>
}
