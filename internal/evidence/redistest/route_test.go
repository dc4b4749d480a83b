package redistest

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestARefusalOvertakesNoReply: over one connection the answers come in the order of the commands, also where a reply is held up
// and the next command is refused here.
func TestARefusalOvertakesNoReply(t *testing.T) {
	s := Mini(t)
	route := NewRoute(s.Addr)
	route.Decide = func(words []string) (h Happening) {
		if words[0] == "SET" {
			h.Refused = "OOM by the test"
		}
		return h
	}
	conn, err := redis.DialContext(t.Context(), "tcp", s.Addr, redis.DialContextFunc(route.Dial))
	require.NoError(t, err)
	defer conn.Close()
	route.HalfOpen()
	require.NoError(t, conn.Send("ECHO", "first"))
	require.NoError(t, conn.Flush())
	time.Sleep(20 * time.Millisecond) // the server has answered, and the route holds that
	require.NoError(t, conn.Send("SET", "key", "value"))
	require.NoError(t, conn.Flush())
	route.Heal()
	first, err := redis.String(conn.Receive())
	require.NoError(t, err)
	assert.Equal(t, "first", first)
	_, err = conn.Receive()
	assert.EqualError(t, err, "OOM by the test")
}
