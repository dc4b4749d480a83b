package servers_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// TestMatchesAsTheServerDoes compares Match with KEYS on a real server: random keys and patterns of a small alphabet, in
// which all that is special in a pattern comes up often. The empty key is left out: for the server only "*" and "" match
// it, and not "**". So are bytes above ASCII in a pattern's range: their order is that of C's char, which differs by machine.
func TestMatchesAsTheServerDoes(t *testing.T) {
	s := redistest.Real(t)
	conn := s.Conn()
	random := rand.New(rand.NewPCG(1, 2))
	text := func(alphabet string, most int) string {
		b := make([]byte, random.IntN(most+1))
		for i := range b {
			b[i] = alphabet[random.IntN(len(alphabet))]
		}
		return string(b)
	}
	keys := map[string]bool{"\xff\x00": true}
	for len(keys) < 400 {
		if key := text("ab*?[]^-\\c\xff", 5); key != "" {
			keys[key] = true
		}
	}
	for key := range keys {
		_, err := conn.Do("SET", key, 1)
		require.NoError(t, err)
	}
	matched := 0
	for range 3000 {
		pattern := text("aab**??[]^-\\c", 7)
		want, err := redis.Strings(conn.Do("KEYS", pattern))
		require.NoError(t, err)
		var got []string
		for key := range keys {
			if servers.Match(pattern, []byte(key)) {
				got = append(got, key)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		require.Equal(t, want, append([]string{}, got...), "pattern %q", pattern)
		matched += len(got)
	}
	require.Greater(t, matched, 10_000, "patterns that match something")
}
