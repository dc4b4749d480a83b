package quorum_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
)

func Example() {
	var pools []lockmigrate.Pool
	for range 3 {
		server := miniredis.NewMiniRedis() // in a service: three servers that are independent of each other
		if err := server.Start(); err != nil {
			panic(err)
		}
		defer server.Close()
		pools = append(pools, &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Addr()) }})
	}
	locker, err := quorum.New(pools, modern.Options{TTL: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	err = locker.Do(context.Background(), "orders", func(ctx context.Context) error {
		fmt.Println("on a majority")
		return nil
	})
	fmt.Println(err)
	// Output:
	// on a majority
	// <nil>
}
