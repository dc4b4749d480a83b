package cluster_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
)

// A lock of any package on a Redis Cluster, with TLS and a password where Dial says so.
func Example() {
	node := miniredis.NewMiniRedis() // stands for a node of your cluster: it says that it has all slots
	if err := node.Start(); err != nil {
		panic(err)
	}
	defer node.Close()

	pool, err := cluster.New(cluster.Options{
		Addrs: []string{node.Addr()}, // two or three nodes are enough: they name the others
		Dial: func(ctx context.Context, addr string) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", addr) // redis.DialUsername, redis.DialPassword, redis.DialUseTLS(true) ...
		},
		Patience: 10 * time.Second, // longer than a failover takes
	})
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	locker, err := modern.New(pool, modern.Options{})
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	err = locker.Do(context.Background(), "orders", func(context.Context) error {
		fmt.Println("shipping")
		return nil
	})
	fmt.Println(err)
	// Output:
	// shipping
	// <nil>
}
