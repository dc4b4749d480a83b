package fence_test

import (
	"context"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/fence"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
)

func rules(t *testing.T, s *redistest.Server, user string) string {
	t.Helper()
	list, err := redis.Strings(s.Do("ACL", "LIST"), nil)
	require.NoError(t, err)
	for _, r := range list {
		if strings.HasPrefix(r, "user "+user+" ") {
			return r
		}
	}
	return ""
}

// TestFence puts a fence up and takes it away, and wants every other right as it was.
func TestFence(t *testing.T) {
	ctx := context.Background()
	s := redistest.Real(t)
	s.Do("ACL", "SETUSER", "old", "on", ">pw", "~*", "&*", "+@all", "-flushall", "(+get ~extra:*)")
	before := rules(t, s, "old")
	conn := s.Conn()
	make := func(o fence.Options) *fence.Plan {
		o.Users, o.Lock = []string{"old"}, "lock:orders"
		plans, err := fence.Make(ctx, conn, s.Addr, o)
		require.NoError(t, err)
		assert.NotContains(t, plans[0].Now, "#", "no password hash is shown")
		return &plans[0]
	}
	preview := make(fence.Options{Keep: []string{"cache:*"}})
	assert.Equal(t, before, rules(t, s, "old"), "a preview changes nothing")
	require.NoError(t, preview.Execute(ctx, conn))
	for _, c := range preview.Checks {
		assert.Equal(t, c.After, c.Did, c.Command)
	}

	legacy, err := redis.Dial("tcp", s.Addr, redis.DialUsername("old"), redis.DialPassword("pw"))
	require.NoError(t, err)
	defer legacy.Close()
	log := fence.Log{Server: s.Addr}
	_, err = log.Poll(ctx, conn)
	require.NoError(t, err)
	_, err = legacy.Do("SETNX", "lock:orders", "1")
	assert.ErrorContains(t, err, "NOPERM")
	_, err = legacy.Do("EVAL", "return redis.call('GETSET', KEYS[1], '1')", 1, "lock:orders")
	assert.Error(t, err)
	_, err = legacy.Do("SETNX", "cache:x", "1")
	assert.NoError(t, err, "kept")
	_, err = legacy.Do("DEL", "lock:orders")
	assert.NoError(t, err, "what a fence cannot do")
	hits, err := log.Poll(ctx, conn)
	require.NoError(t, err)
	require.Len(t, hits, 2)
	for _, h := range hits {
		assert.Equal(t, "old", h.User)
		assert.Equal(t, legacyAddr(t, legacy), h.Addr)
		assert.EqualValues(t, 1, h.Count)
	}
	hits, err = log.Poll(ctx, conn)
	require.NoError(t, err)
	assert.Empty(t, hits, "none counts twice")
	for range 3 {
		_, _ = legacy.Do("SETNX", "lock:orders", "1")
	}
	hits, err = log.Poll(ctx, conn)
	require.NoError(t, err)
	require.Len(t, hits, 1)
	assert.EqualValues(t, 3, hits[0].Count)

	again := make(fence.Options{Keep: []string{"cache:*", "tmp:*"}}) // another set of patterns replaces the first
	require.NoError(t, again.Execute(ctx, conn))
	assert.Equal(t, 1, strings.Count(rules(t, s, "old"), "+setnx"))

	remove := make(fence.Options{Remove: true})
	require.NoError(t, remove.Execute(ctx, conn))
	after := rules(t, s, "old")
	assert.NotContains(t, after, "-setnx")
	assert.Contains(t, after, "~extra:*", "the user's own selector stays")
	assert.Contains(t, after, "-flushall")
	_, err = legacy.Do("SETNX", "lock:orders", "1")
	assert.NoError(t, err)
	assert.Equal(t, "not fenced", make(fence.Options{Remove: true}).Note)

	_, err = fence.Make(ctx, conn, s.Addr, fence.Options{Users: []string{"nobody"}})
	assert.ErrorContains(t, err, "nobody")
}

// TestExecuteTakesBack fences a user for whom the fence does not hold, and wants its rules as before.
func TestExecuteTakesBack(t *testing.T) {
	ctx := context.Background()
	s := redistest.Real(t)
	s.Do("ACL", "SETUSER", "old", "on", ">pw", "~*", "+@all", "(+setnx +get ~*)")
	before := rules(t, s, "old")
	conn := s.Conn()
	plans, err := fence.Make(ctx, conn, s.Addr, fence.Options{Users: []string{"old"}, Lock: "lock:x"})
	require.NoError(t, err)
	assert.ErrorContains(t, plans[0].Execute(ctx, conn), "taken back")
	after := strings.Replace(rules(t, s, "old"), "sanitize-payload ", "", 1) // the default, now written out
	assert.Equal(t, before, after)
}

func legacyAddr(t *testing.T, conn redis.Conn) string {
	t.Helper()
	info, err := redis.String(conn.Do("CLIENT", "INFO"))
	require.NoError(t, err)
	for _, word := range strings.Fields(info) {
		if addr, ok := strings.CutPrefix(word, "addr="); ok {
			return addr
		}
	}
	return ""
}
