package scripts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

func eval(t *testing.T, s *redistest.Server, script *scripts.Script, values scripts.Values) any {
	t.Helper()
	args, err := script.Call(values)
	require.NoError(t, err)
	reply, err := s.Conn().Do("EVAL", append([]any{script.Source}, args...)...)
	require.NoError(t, err)
	return reply
}

func TestCompareDel(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s.Do("SET", "k", "mine")
		assert.EqualValues(t, 0, eval(t, s, scripts.CompareDel, scripts.Values{"key": "k", "value": "theirs"}))
		assert.Equal(t, "mine", s.Value("k"))
		assert.EqualValues(t, 1, eval(t, s, scripts.CompareDel, scripts.Values{"key": "k", "value": "mine"}))
		assert.EqualValues(t, 0, eval(t, s, scripts.CompareDel, scripts.Values{"key": "k", "value": "mine"}), "absent")
		s.Do("HSET", "k", "f", "mine")
		assert.EqualValues(t, 0, eval(t, s, scripts.CompareDel, scripts.Values{"key": "k", "value": "mine"}), "another type is not ours, and no error")
	})
}

func TestCompareSet(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		assert.EqualValues(t, 0, eval(t, s, scripts.CompareSet, scripts.Values{"key": "k", "old": "old", "value": "new"}))
		assert.EqualValues(t, 0, s.Do("EXISTS", "k"), "an absent key is not created")
		s.Do("SET", "k", "old")
		assert.EqualValues(t, 0, eval(t, s, scripts.CompareSet, scripts.Values{"key": "k", "old": "other", "value": "new"}))
		assert.EqualValues(t, 1, eval(t, s, scripts.CompareSet, scripts.Values{"key": "k", "old": "old", "value": "new"}))
		assert.Equal(t, "new", s.Value("k"))
		assert.EqualValues(t, -1, s.Do("PTTL", "k"), "no TTL appears")
		s.Do("SET", "k", "old", "PX", 60_000)
		assert.EqualValues(t, 1, eval(t, s, scripts.CompareSet, scripts.Values{"key": "k", "old": "old", "value": "new"}))
		ttl, err := redis.Int64(s.Do("PTTL", "k"), nil)
		require.NoError(t, err)
		assert.Positive(t, ttl, "a TTL stays")
		s.Do("DEL", "k")
		s.Do("SADD", "k", "old")
		assert.EqualValues(t, 0, eval(t, s, scripts.CompareSet, scripts.Values{"key": "k", "old": "old", "value": "new"}))
	})
}

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
		if strings.Contains(strings.ReplaceAll(text, "\n-- ", " "), "It stands before each of them.") {
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
