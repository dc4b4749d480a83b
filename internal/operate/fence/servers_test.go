package fence_test

import (
	"context"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// onEach runs a test on each server that has ACL DRYRUN.
func onEach(t *testing.T, test func(t *testing.T, s *redistest.Server)) {
	redistest.EachVersion(t, []string{"redis-8.10.2", "valkey-8.1.8", "valkey-9.0.0"}, test)
}

// TestExcluded asks the server which commands no user may run on a lock's key, for rules of many forms.
func TestExcluded(t *testing.T) { onEach(t, excluded) }

func excluded(t *testing.T, s *redistest.Server) {
	ctx, conn := context.Background(), s.Conn()
	s.Do("ACL", "SETUSER", "ops", "on", "nopass", "~*", "&*", "+@all")
	_, err := conn.Do("AUTH", "ops", "any")
	require.NoError(t, err)
	_, err = conn.Do("ACL", "SETUSER", "default", "off") // the user of the test's other connection
	require.NoError(t, err)
	defer func() { _, _ = conn.Do("ACL", "SETUSER", "default", "on") }()
	lock := []string{"lock.*"}
	all := strings.Join(fence.Taking, " ")
	table, err := traffic.ReadTable(ctx, conn)
	require.NoError(t, err)
	ask := func(locks []string, trusted ...string) string {
		commands, err := fence.Excluded(ctx, conn, locks, append(trusted, "ops"), fence.Taking, table.Forms)
		require.NoError(t, err)
		return strings.Join(commands, " ")
	}
	make := func(user string, words ...string) {
		args := redis.Args{"SETUSER", user, "reset", "on", ">pw"}
		_, err := conn.Do("ACL", args.AddFlat(words)...)
		require.NoError(t, err, words)
	}
	for _, row := range redistest.Rows(t, "testdata/excluded.txt") {
		want := strings.ReplaceAll(row[0], ",", " ")
		switch row[0] {
		case "all":
			want = all
		case "nothing":
			want = ""
		}
		make("old", ruleOf(t, row[1:])...)
		assert.Equal(t, want, ask(lock), row)
		assert.Equal(t, all, ask(lock, "old"), "%v: the user is trusted", row)
		assert.Empty(t, ask(nil), "%v: every key is a lock key", row)
		make("second", "+@all", "~cache:*")
		assert.Equal(t, want, ask(lock), "%v: beside a user of other keys", row)
		_, err := conn.Do("ACL", "SETUSER", "old", "off")
		require.NoError(t, err)
		assert.Equal(t, all, ask(lock), "%v: the user is off", row)
		_, err = redis.Int(conn.Do("ACL", "DELUSER", "second"))
		require.NoError(t, err)
	}
}

// TestFenceBeforeDryrun puts fences up on servers that cannot be asked. None of them is called fenced, and each can be taken away again.
func TestFenceBeforeDryrun(t *testing.T) {
	for _, name := range []string{"redis-6.0.16", "redis-6.2.11"} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Of(t, name)
			ctx, conn := context.Background(), s.Conn()
			s.Grant("old", "~*", "+@all", "-flushall")
			before := rules(t, s, "old")
			g := newGate(t, s)
			assert.Contains(t, g.plan(fence.Options{Keep: []string{"cache:*"}}).Error, "7.0")
			assert.Equal(t, fence.Unknown, g.up(fence.Options{}).Verdict)
			assert.Equal(t, fence.Unknown, g.up(fence.Options{All: true}).Verdict)
			legacy := s.ConnAs("old")
			_, err := legacy.Do("SETNX", "lock:1", "1")
			assert.ErrorContains(t, err, "NOPERM")
			commands, err := fence.DeniedTo(ctx, conn, "old", []string{"lock:*"})
			require.NoError(t, err)
			assert.Equal(t, []string{"SETNX", "GETSET"}, commands)
			g.down()
			assert.Equal(t, before, rules(t, s, "old"))
			_, err = legacy.Do("SETNX", "lock:1", "1")
			assert.NoError(t, err)
			excluded, err := fence.Excluded(ctx, conn, []string{"lock:*"}, nil, fence.Taking, func(command, key, _ string) [][]string { return [][]string{{command, key, "1"}} })
			assert.NoError(t, err)
			assert.Empty(t, excluded)
		})
	}
}
