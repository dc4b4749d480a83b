package fence_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

// TestBlanksOfUnicodeInPatterns has a user whose key pattern holds a blank that the server does not take for one.
func TestBlanksOfUnicodeInPatterns(t *testing.T) {
	ctx := context.Background()
	s := redistest.Real(t)
	s.Do("ACL", "SETUSER", "old", "on", ">pw", "~lock:\u00a0*", "~lock:\u2003x", "+@all")
	conn := s.Conn()
	plans, err := fence.Make(ctx, conn, s.Addr, fence.Options{Users: []string{"old"}, Locks: []string{"lock:*"}})
	require.NoError(t, err)
	assert.Equal(t, fence.Open, plans[0].Verdict, plans[0].Obligations)
	before := rules(t, s, "old")
	require.NoError(t, plans[0].Execute(ctx, conn))
	plans, err = fence.Make(ctx, conn, s.Addr, fence.Options{Users: []string{"old"}, Remove: true})
	require.NoError(t, err)
	require.NoError(t, plans[0].Execute(ctx, conn))
	assert.Equal(t, before, rules(t, s, "old"))
}
