package driver

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// A server that is a master no more, behind an address that still means it: its answers reach their callers, and
// few connections are made. When the address means the new master, the line goes there.
func TestAServerThatIsTheWrongOneIsLeft(t *testing.T) {
	servers := redistest.NewReplicated(t)
	name := redistest.NewLink(t, servers.Master.Addr)
	var dials atomic.Int64
	l := open(t, redistest.Dialer(name.Addr), func(o *SharedOptions) {
		o.Dial = func(ctx context.Context) (redis.Conn, error) {
			dials.Add(1)
			return redis.DialContext(ctx, "tcp", name.Addr)
		}
	})
	set := func() error {
		_, err := l.Request(t.Context(), wire.Plain("SET", "k", "v"))
		return err
	}
	require.NoError(t, set())
	servers.Master.Do("REPLICAOF", "127.0.0.1", "1")
	start := time.Now()
	for time.Since(start) < time.Second {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				err := set()
				assert.ErrorContains(t, err, "READONLY")
				assert.NotErrorIs(t, err, ErrNotSent)
				_, err = l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "k"})
				assert.NoError(t, err, "what others have sent gets its reply")
			})
		}
		all.Wait()
	}
	t.Logf("%d connections in %v", dials.Load(), time.Since(start))
	assert.Less(t, dials.Load(), int64(12))
	servers.Promote()
	name.Retarget(servers.Replica.Addr)
	redistest.Await(t, "the new master", 10*time.Second, func() bool { return set() == nil })
}
