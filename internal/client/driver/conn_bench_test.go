package driver

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// BenchmarkDo is a SET NX PX and a compare-and-delete, the commands of an uncontended lock: over the
// shared connection, and over a pool.
func BenchmarkDo(b *testing.B) {
	s := redistest.Real(b)
	pool := s.Pool()
	pool.MaxIdle = 256
	l := open(b, s.Dial, nil)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	release := redis.NewScript(1, scripts.CompareDel.Source)

	overPool := func(key, token string) error {
		conn := pool.Get()
		defer conn.Close()
		if _, err := conn.Do("SET", key, token, "NX", "PX", 30000); err != nil {
			return err
		}
		_, err := release.Do(conn, key, token)
		return err
	}
	overShared := func(key, token string) error {
		if _, err := l.Do(ctx, protocol.Command{Op: protocol.SetToken, Key: key, Value: token, TTL: 30 * time.Second}); err != nil {
			return err
		}
		_, err := l.Do(ctx, protocol.Command{Op: protocol.CompareDel, Key: key, Value: token})
		return err
	}
	for _, callers := range []int{1, 2, 4, 8, 16, 32, 64} {
		for _, way := range []struct {
			name string
			pair func(key, token string) error
		}{{"pool", overPool}, {"shared", overShared}} {
			b.Run(fmt.Sprintf("%s-%d", way.name, callers), func(b *testing.B) {
				b.ReportAllocs()
				var all sync.WaitGroup
				for g := range callers {
					key := fmt.Sprint("k", g)
					all.Go(func() {
						for i := g; i < b.N; i += callers {
							if err := way.pair(key, "5123456789012345678"); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
			})
		}
	}
}
