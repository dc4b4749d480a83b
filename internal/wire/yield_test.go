package wire_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// TestGapsWithoutTheRightToCount: where INFO is refused, gaps come without evidence. TestExamples of internal/scripts has the other rules.
func TestGapsWithoutTheRightToCount(t *testing.T) {
	s := redistest.Real(t)
	s.Do("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
	conn, err := redis.DialContext(context.Background(), "tcp", s.Addr, redis.DialUsername("app"), redis.DialPassword("secret"))
	require.NoError(t, err)
	defer conn.Close()
	b := newBench(t, s)
	b.conn = conn
	yields := func(c *protocol.Command) {
		c.Yield, c.Gap, c.Held = protocol.YieldKey(c.Key), time.Minute, 20*time.Second
	}
	for try := 0; !strings.HasPrefix(s.Value(protocol.YieldKey(b.key)), "1 "); try++ {
		require.Less(t, try, 20, "no gap: %q", s.Value(protocol.YieldKey(b.key)))
		b.want(b.send(b.command(protocol.BridgeTake, yields)), protocol.TakeFree, mine, mine)
		b.want(b.send(b.command(protocol.BridgeDrop, yields)), protocol.DropDone, "-", "-")
	}
}
