// Command member holds locks as a service of one build does. The suite beside it compiles this file in the source of each build.
package main

import (
	"context"
	"crypto/sha1" // as EVALSHA's
	"fmt"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "scripts" {
		for _, s := range scripts.All() {
			for _, text := range []string{s.Source, s.Bare()} {
				fmt.Printf("%x %s\n", sha1.Sum([]byte(text)), s.Name)
			}
		}
		return
	}
	holders.Serve(map[string]holders.Maker{"member": member, "modern": token, "client": client})
}

func lease(args map[string]string) time.Duration { return holders.Millis(args, "lease", 3*time.Second) }

// member is a service of the namespace.
func member(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
	locker, err := compat.New(pool, compat.Options{Namespace: "orders", TTL: lease(args), Lease: lease(args), ReplyTimeout: lease(args) * 2 / 3, FenceTTL: time.Minute})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return holders.TakerOf(locker.Acquire), locker.Ready(ctx)
}

// token is a service whose keys no old client ever touched.
func token(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
	locker, err := modern.New(pool, modern.Options{TTL: lease(args), FenceTTL: time.Minute})
	if err != nil {
		return nil, err
	}
	return holders.TakerOf(locker.Acquire), nil
}

// client is an old client, which knows nothing of namespaces.
func client(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
	locker, err := legacy.New(pool, legacy.Options{Lease: lease(args), ReplyTimeout: lease(args) * 2 / 3, Release: legacy.ReleaseAsDialect, Poll: 5 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	return holders.TakerOf(locker.Acquire), nil
}
