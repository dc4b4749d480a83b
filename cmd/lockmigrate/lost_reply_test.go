package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// What was sent and has no reply may be done: the tool says that it does not know.
func TestALostReply(t *testing.T) {
	s := redistest.Real(t)
	lose := func(nth int, argument string) string { // the reply to the nth command with an argument
		link := redistest.NewProxy(t, s)
		link.Before(func(words []string) {
			if strings.Contains(strings.Join(words[1:], " "), argument) {
				if nth--; nth == 0 {
					link.HalfOpen()
					time.AfterFunc(100*time.Millisecond, link.Cut)
				}
			}
		})
		return link.URL()
	}
	t.Run("fence", func(t *testing.T) {
		s.Do("ACL", "SETUSER", "old", "on", ">pw", "~*", "&*", "+@all")
		out, stderr := expect(t, exitFailed, "fence", "--user", "old", "--lock", "lock:*", "--execute", "--journal", filepath.Join(t.TempDir(), "fence.jsonl"), "--redis", lose(1, "SETUSER"))
		assert.True(t, fenced(t, s), "the server has it")
		assert.Contains(t, out, "NOT KNOWN")
		assert.Contains(t, stderr, "1 of 1 servers could not be changed, or may be")
	})
	t.Run("stage", func(t *testing.T) {
		expect(t, exitDone, "stage", "init", "--namespace", "orders", "--match", "lock:*", "--dialect", "jedis-ms", "--shortest-lease", "2s", "--execute", "--redis", s.URL())
		for n := 1; ; n++ { // first the attempts that change nothing
			require.Less(t, n, 10, "no reply was lost")
			code, _, stderr := lockmigrateIn(t.Context(), false, "stage", "advance", "--namespace", "orders", "--to", "bridge", "--execute", "--redis", lose(n, "to stage bridge"))
			require.Equal(t, exitFailed, code, stderr)
			if out, _ := expect(t, exitDone, "stage", "--namespace", "orders", "--redis", s.URL()); strings.Contains(out, "stage      bridge") {
				assert.Contains(t, stderr, "no reply came: it may be done")
				break
			}
		}
	})
}
