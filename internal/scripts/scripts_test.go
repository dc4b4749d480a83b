package scripts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// Every script tells its keys, arguments and replies, and why it is one.
func TestEveryScriptHasItsHeader(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		text := string(source)
		assert.True(t, strings.HasPrefix(text, "-- "+file+":"), "%s begins with its name", file)
		if strings.Contains(strings.ReplaceAll(text, "\n-- ", " "), "It stands before each of them") {
			continue // a part of others, which tell
		}
		for _, word := range []string{"-- KEYS ", "-- Reply", "tomic"} {
			assert.True(t, strings.Contains(text, word), "%s says %s", file, word)
		}
	}
}

// Servers before Redis 5 take a write after TIME only where a script has asked for its effects to be replicated, and no HSET of
// several fields, ZPOPMIN or KEEPTTL.
func TestScriptsRunOnOldServers(t *testing.T) {
	several := regexp.MustCompile(`'HSET', [^,()]+(, [^,()]+){3}`)
	for _, s := range scripts.All() {
		code := regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(s.Source, "")
		clock, asks := strings.Index(code, "'TIME'"), strings.Index(code, "redis.replicate_commands()")
		reads := s.Name == "stage_show.lua" || s.Name == "stage_list.lua" // they write nothing
		assert.True(t, clock < 0 || reads || asks >= 0 && asks < clock, "%s reads the clock before it asks for replication of its effects", s.Name)
		for _, newer := range []string{"ZPOPMIN", "KEEPTTL", "'UNLINK'", "'GETEX'"} {
			assert.NotContains(t, code, newer, "%s", s.Name)
		}
		assert.NotRegexp(t, several, code, "%s: HMSET is on every server", s.Name)
	}
}
