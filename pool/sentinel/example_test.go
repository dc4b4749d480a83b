package sentinel_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

// A lock of any package on the master that Redis Sentinel names.
func Example() {
	sentinelAddr, stop := fakes() // stand for your servers
	defer stop()

	pool, err := sentinel.New(sentinel.Options{
		Addrs:    []string{sentinelAddr}, // name all of them
		Master:   "locks",
		Patience: 20 * time.Second, // longer than a failover takes
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

// fakes are a master and a sentinel that names it.
func fakes() (addr string, stop func()) {
	redis := miniredis.NewMiniRedis()
	if err := redis.Start(); err != nil {
		panic(err)
	}
	host, port, err := net.SplitHostPort(redis.Addr())
	if err != nil {
		panic(err)
	}
	fake, err := server.NewServer("127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	if err := fake.Register("SENTINEL", func(c *server.Peer, _ string, args []string) {
		switch strings.ToUpper(args[0]) {
		case "GET-MASTER-ADDR-BY-NAME":
			c.WriteStrings([]string{host, port})
		case "MASTER", "MASTERS":
			c.WriteStrings([]string{"name", args[1], "ip", host, "port", port, "flags", "master", "config-epoch", "1"})
		default:
			c.WriteLen(0)
		}
	}); err != nil {
		panic(err)
	}
	return fake.Addr().String(), func() { fake.Close(); redis.Close() }
}
