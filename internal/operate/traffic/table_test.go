package traffic

import (
	"slices"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// examples has a key, k1 and so on, at every place where Redis's commands have keys.
const examples = `
SETNX k1 v
SET k1 v NX PX 5 GET
GETSET k1 v
MSETNX k1 v k2 w k3 x
DEL k1 k2 k3
RENAMENX k1 k2
COPY k1 k2 DB 3
MOVE k1 1
SETRANGE k1 0 v
BITOP AND k1 k2 k3
BITFIELD k1 SET u8 0 1
SORT k1 BY nosort STORE k2
LMOVE k1 k2 LEFT RIGHT
BLPOP k1 k2 0
LMPOP 2 k1 k2 LEFT
SMOVE k1 k2 m
SINTERSTORE k1 k2 k3
ZUNIONSTORE k1 2 k2 k3 WEIGHTS 1 2
ZRANGESTORE k1 k2 0 -1
ZMPOP 1 k1 MIN
GEOSEARCHSTORE k1 k2 FROMMEMBER m BYRADIUS 1 km
GEORADIUS k1 0 0 1 km STORE k2
PFMERGE k1 k2 k3
XGROUP CREATE k1 g 0
XREADGROUP GROUP g c STREAMS k1 k2 > >
RESTORE k1 0 x REPLACE
MIGRATE h 1 "" 0 5 KEYS k1 k2
OBJECT ENCODING k1
EVAL return 1 2 k1 k2 v
FCALL f 1 k1 v
`

// openEnded are the commands whose keys may go on behind any word.
const openEnded = " MSETNX DEL BITOP SORT BLPOP LMPOP SINTERSTORE ZUNIONSTORE ZMPOP GEORADIUS PFMERGE XREADGROUP MIGRATE EVAL FCALL "

// TestTouchedHasEveryKey compares the places of the keys with what the server itself says of each example: none is forgotten, and where the places are
// fixed none is added.
func TestTouchedHasEveryKey(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	conn := redistest.Real(t).Conn()
	table, err := ReadTable(t.Context(), conn)
	require.NoError(t, err)
	asked := 0
	for line := range strings.Lines(strings.TrimSpace(examples)) {
		c := &Command{Addr: "1.1.1.1:1", Words: strings.Fields(line)}
		if i := slices.Index(c.Words, `""`); i >= 0 {
			c.Words[i] = ""
		}
		new(Scripts).Attribute(c)
		want, err := redis.Strings(conn.Do("COMMAND", redis.Args{"GETKEYS"}.AddFlat(c.Words)...))
		if err != nil && strings.Contains(err.Error(), "Invalid command") {
			continue // an older server
		}
		require.NoError(t, err, line)
		asked++
		got, all := table.Touched(c)
		assert.True(t, all, line)
		assert.Subset(t, got, want, line)
		if s, _ := table.of(c); !s.movable || c.Script != nil {
			assert.ElementsMatch(t, want, got, line)
		}
		c.Cut = true // its last word may be half of one, and there may be more
		_, all = table.Touched(c)
		assert.Equal(t, !slices.Contains(want, c.Words[len(c.Words)-1]) && !strings.Contains(openEnded, " "+c.Words[0]+" "), all, line)
	}
	assert.Greater(t, asked, 20)
	renamed := &Command{Words: []string{"SECRET", "a", "b"}}
	keys, all := table.Touched(renamed)
	assert.Equal(t, []string{"a", "b"}, keys, "each word may be a key of a command that was renamed")
	assert.True(t, all && table.Writes(renamed))
	assert.False(t, table.Writes(&Command{Words: []string{"GET", "k"}}))
	assert.False(t, table.Writes(&Command{Words: []string{"EVALSHA", "x", "0"}}), "what a script does is in the lines that follow")
	assert.Subset(t, table.Writers(), []string{"set", "setnx", "getset", "msetnx", "renamenx", "restore", "setrange", "append", "hsetnx", "incr", "bitfield", "move", "sort"})
	assert.NotContains(t, table.Writers(), "get")
}
