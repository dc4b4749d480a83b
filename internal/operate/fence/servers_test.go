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
	for _, c := range []struct {
		what, words string
		want        string // what the rules exclude on the lock keys
	}{
		{"all is allowed", "+@all ~*", ""},
		{"no keys", "+@all", all},
		{"other keys", "+@all ~cache:* ~app:*", all},
		{"a key pattern that overlaps", "+@all ~cache:* ~*.order.*", ""},
		{"a class that overlaps", "+@all ~[xl]ock.*", ""},
		{"a class that does not", "+@all ~[xy]ock.*", all},
		{"lock keys to read", "+@all ~cache:* %R~lock.*", all},
		{"lock keys to write", "+@all %W~lock.*", "getset renamenx"},
		{"lock keys to write, others to read and write", "+@all ~cache:* %W~lock.*", "getset"},
		{"readable by one pattern, writable by another", "+@all %R~lock.a* %W~*b", ""},
		{"a fence", "+@all -setnx -getset ~*", "setnx getset"},
		{"a fence that is open again", "+@all -setnx -getset +setnx ~*", "getset"},
		{"words that a later rule overrules", "+@all -setnx -getset +@write ~*", ""},
		{"nothing but reads", "-@all +@read +get ~*", all},
		{"writes, but no strings", "+@all -@string ~*", "setnx getset set setex psetex mset msetnx"},
		{"no writes", "+@all -@write +set ~*", "setnx getset setex psetex mset msetnx renamenx"},
		{"in a selector", "+@all -@write ~* (+setex ~lock.1*)", "setnx getset set psetex mset msetnx renamenx"},
		{"a selector for other keys", "+@all -@write ~* (+@all ~cache:*)", all},
		{"a first argument", "-@all +set|lock.x ~*", "setnx getset setex psetex mset msetnx renamenx"},
	} {
		make := func(user string, words ...string) {
			args := []any{"SETUSER", user, "reset", "on", ">pw"}
			for _, w := range words {
				args = append(args, w)
			}
			_, err := conn.Do("ACL", args...)
			require.NoError(t, err, c.what)
		}
		words := strings.Fields(c.words)
		if i := strings.Index(c.words, "("); i >= 0 { // a selector is one word
			words = append(strings.Fields(c.words[:i]), c.words[i:])
		}
		make("old", words...)
		assert.Equal(t, c.want, ask(lock), c.what)
		assert.Equal(t, all, ask(lock, "old"), "%s: the user is trusted", c.what)
		assert.Empty(t, ask(nil), "%s: every key is a lock key", c.what)
		make("second", "+@all", "~cache:*")
		assert.Equal(t, c.want, ask(lock), "%s: beside a user of other keys", c.what)
		_, err := conn.Do("ACL", "SETUSER", "old", "off")
		require.NoError(t, err)
		assert.Equal(t, all, ask(lock), "%s: the user is off", c.what)
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
			s.Do("ACL", "SETUSER", "old", "on", ">pw", "~*", "+@all", "-flushall")
			before := rules(t, s, "old")
			g := newGate(t, s)
			assert.Contains(t, g.plan(fence.Options{Keep: []string{"cache:*"}}).Error, "7.0")
			assert.Equal(t, fence.Unknown, g.up(fence.Options{}).Verdict)
			assert.Equal(t, fence.Unknown, g.up(fence.Options{All: true}).Verdict)
			legacy := dialAs(t, s, "old")
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
