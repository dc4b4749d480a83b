package traffic

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Command{
		`1795230743.893122 [0 127.0.0.1:47182] "set" "k" "v"`:             {At: 1795230743893122000, Addr: "127.0.0.1:47182", Words: []string{"SET", "k", "v"}},
		"+1795230743.000001 [3 lua] \"get\" \"k\"\r\n":                    {At: 1795230743000001000, DB: 3, Addr: "lua", Words: []string{"GET", "k"}},
		`1.000000 [0 unix:/tmp/r.sock] "set" "a\"b\\\nc" "\x01\x80\xff "`: {At: 1e9, Addr: "unix:/tmp/r.sock", Words: []string{"SET", "a\"b\\\nc", "\x01\x80\xff "}},
		`1.000000 [15 [::1]:5] "SETNX" "] \"" ""`:                         {At: 1e9, DB: 15, Addr: "[::1]:5", Words: []string{"SETNX", `] "`, ""}},
		`1.000000 [0 127.0.0.1:1] "AUTH" "(redacted)"`:                    {At: 1e9, Addr: "127.0.0.1:1", Words: []string{"AUTH", "(redacted)"}},
	} {
		var l Command
		require.NoError(t, l.Parse(text), text)
		assert.Equal(t, want, l, text)
	}
	for _, text := range []string{
		"", "OK", "+OK", "1.1 [0 a] \"x\"", "1.000000 [0 a]", "1.000000 [x a] \"get\"", `1.000000 [0 a] "get`, `1.000000 [0 a] "get" k`,
		`1.000000 [0 a] "get" "\x0"`, `1.000000 [0 a] ""`, `-1.000000 [0 a] "get"`, `1.000000 [0 a] "get" `,
	} {
		assert.Error(t, new(Command).Parse(text), text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`1795230743.893122 [0 127.0.0.1:47182] "set" "k\x00" "v\"\\"`)
	f.Add(`1.000000 [0 lua] "evalsha" "" "1"`)
	f.Fuzz(func(t *testing.T, text string) {
		var l, again Command
		if l.Parse(text) != nil {
			return
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%d.%06d [%d %s]", l.At/1e9, l.At/1e3%1e6, l.DB, l.Addr)
		for _, w := range l.Words {
			fmt.Fprintf(&b, ` "%s"`, escaped(w))
		}
		require.NoError(t, again.Parse(b.String()), b.String())
		assert.Equal(t, l, again)
		keys := NewKeys(10)
		keys.Apply(&l)
		keys.Apply(&again)
	})
}

// escaped writes a string as the server does.
func escaped(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c == '"' || c == '\\' || c < ' ' || c > '~' {
			fmt.Fprintf(&b, `\x%02x`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// TestReplayAgreesWithTheServer runs random commands on a real server, in transactions and scripts too, and
// compares the replies with what the replay says, and the keys at the end.
func TestReplayAgreesWithTheServer(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	s := redistest.Real(t)
	monitor := s.Conn()
	_, err := monitor.Do("MONITOR")
	require.NoError(t, err)
	conn := s.Conn()
	keys := NewKeys(1000)
	keys.Scanning(0)
	keys.Complete()
	random := rand.New(rand.NewPCG(1, 2))
	key := func() string { return fmt.Sprint("k", random.IntN(4)) }
	var line Command
	next := func() []Effect {
		for {
			text, err := redis.String(redis.ReceiveWithTimeout(monitor, 5*time.Second))
			require.NoError(t, err)
			require.NoError(t, line.Parse(text), text)
			if line.Words[0] != "EVAL" {
				return keys.Apply(&line)
			}
		}
	}
	forms := []string{
		"SETNX K V", "SETNX K V", "SETNX K V", "GETSET K V", "SET K V NX PX 20", "SET K V XX", "GET K", "DEL K", "DEL K", "PEXPIRE K T", "HSET K f V",
		"EVAL S 1 K V", "SET K V EX 100 GET", "PERSIST K", "SET K V KEEPTTL", "GETDEL K",
	}
	settled := 0
	for n := range 4000 {
		k, v := key(), fmt.Sprint(random.IntN(3), "\x00\"é")
		words := strings.Fields(forms[random.IntN(len(forms))])
		command, args := words[0], []any{}
		for _, w := range words[1:] {
			switch w {
			case "K":
				args = append(args, k)
			case "V":
				args = append(args, v)
			case "S":
				args = append(args, "return redis.pcall('SETNX', KEYS[1], ARGV[1])")
			case "T":
				args = append(args, 1000*random.IntN(2))
			default:
				args = append(args, w)
			}
		}
		began := time.Now()
		reply, err := conn.Do(command, args...)
		stood := time.Since(began) > (vague-1)*time.Millisecond
		effects := next()
		if stood { // the stamp may be later than the command by more than the replay allows for: when a TTL ends is not known
			_, err = conn.Do("DEL", k)
			require.NoError(t, err)
			next()
			continue
		}
		if err != nil || len(effects) == 0 {
			continue // WRONGTYPE: the keys at the end tell
		}
		e := effects[len(effects)-1]
		where := fmt.Sprintf("%d: %s %v: %v", n, command, args, reply)
		switch command {
		case "SETNX", "DEL", "EVAL":
			want := map[int64]Answer{0: No, 1: Yes}[reply.(int64)]
			if e.Done != Unsettled {
				require.Equal(t, want, e.Done, where)
			}
		case "GETSET", "GET":
			if !e.OldKnown {
				break
			}
			require.Equal(t, reply != nil, e.There, where)
			settled++
			if reply != nil {
				require.Equal(t, string(reply.([]byte)), e.Old, where)
			}
		}
	}
	assert.Greater(t, settled, 300)
	now := line.At
	for i := range 4 {
		k := fmt.Sprint("k", i)
		kind, _ := redis.String(s.Do("TYPE", k), nil)
		if kind == "string" {
			value, _, ok := keys.Value(Key{Name: k}, now)
			assert.True(t, ok, k)
			assert.Equal(t, s.Value(k), value, k)
		}
	}
}

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
		if _, s, _ := table.of(c); !s.movable || c.Script != nil {
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

// TestRepliesInAnotherOrder: replies of several connections may come in another order than their commands ran in. A GET that was asked before
// another's SETNX and is answered after it says nothing of the key; asked after it, or beside a write of its own connection, it does. Who was given
// a lock comes after the one that gives it back, also where that one's reply comes last.
func TestRepliesInAnotherOrder(t *testing.T) {
	for name, c := range map[string]struct {
		steps string // a and b are connections, > a request, < a reply
		told  string
		there bool
	}{
		"another's write, asked before":  {"a>GET k, b>SETNX k 5, b<:1, a<$-1", "b SETNX, a GET", true},
		"another's write, asked after":   {"b>SETNX k 5, b<:1, a>GET k, a<$-1", "b SETNX, a GET", false},
		"its own write, in one pipeline": {"a>SETNX k 5, a>GET k, a<:1, a<$-1", "a SETNX, a GET", false},
		"a lock is given back":           {"a>SETNX k 5, a<:1, a>DEL k, b>SETNX k 6, b<:1, a<:1", "a SETNX, a DEL, b SETNX", true},
		"a release that found nothing":   {"b>SETNX k 6, a>DEL k, b<:1, a<:0", "b SETNX", true},
	} {
		keys := NewKeys(100)
		var told []string
		d := newDialogues(keys, func(c *Command) { keys.Apply(c); told = append(told, c.Addr+" "+c.Words[0]) })
		conns := map[byte]*dialogue{'a': d.begin("a", false), 'b': d.begin("b", false)}
		for step := range strings.SplitSeq(c.steps, ", ") {
			side := &conns[step[0]].requests
			if step[1] == '<' {
				side = &conns[step[0]].replies
			}
			require.True(t, side.feed([]byte(step[2:]+"\r\n")), step)
		}
		_, _, there := d.keys.Value(Key{Name: "k"}, 0)
		assert.Equal(t, c.there, there, name)
		assert.Equal(t, c.told, strings.Join(told, ", "), name)
	}
}
