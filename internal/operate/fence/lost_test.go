package fence_test

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

// A change whose reply is lost may be done: the plan says that nobody knows. What was not sent, or is refused, is not done.
func TestALostReplyIsNotKnown(t *testing.T) {
	s := redistest.Real(t)
	for _, c := range []struct {
		command string
		sent    bool
	}{{"LIST", false}, {"SETUSER", true}, {"DRYRUN", true}} {
		s.Do("ACL", "SETUSER", "old", "reset", "on", ">pw", "~*", "&*", "+@all")
		link := redistest.NewProxy(t, s)
		conn, err := redis.Dial("tcp", link.Addr, redis.DialReadTimeout(300*time.Millisecond))
		require.NoError(t, err)
		defer conn.Close()
		plans, err := fence.Make(t.Context(), conn, link.Addr, fence.Options{Users: []string{"old"}, Locks: []string{"lock:*"}})
		require.NoError(t, err)
		link.Before(func(words []string) {
			if len(words) > 1 && words[0] == "ACL" && words[1] == c.command {
				link.HalfOpen()
			}
		})
		require.Error(t, plans[0].Execute(t.Context(), conn, nil), c.command)
		assert.Equal(t, c.sent, plans[0].Unsure, "%s: the server has it, and the tool does not know", c.command)
	}

	s.Do("ACL", "SETUSER", "mere", "on", ">pw", "~*", "+@all", "-acl|setuser")
	s.Do("ACL", "SETUSER", "old", "reset", "on", ">pw", "~*", "&*", "+@all")
	conn, err := redis.Dial("tcp", s.Addr, redis.DialUsername("mere"), redis.DialPassword("pw"))
	require.NoError(t, err)
	defer conn.Close()
	plans, err := fence.Make(t.Context(), conn, s.Addr, fence.Options{Users: []string{"old"}, Locks: []string{"lock:*"}})
	require.NoError(t, err)
	require.ErrorContains(t, plans[0].Execute(t.Context(), conn, nil), "NOPERM")
	assert.False(t, plans[0].Unsure)
}
