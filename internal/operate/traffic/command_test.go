package traffic

import (
	"fmt"
	"math/rand/v2"
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
	settled := 0
	for n := range 4000 {
		k, v := key(), fmt.Sprint(random.IntN(3), "\x00\"é")
		command, args := "", []any{k}
		switch random.IntN(16) {
		case 0, 1, 2:
			command, args = "SETNX", append(args, v)
		case 3:
			command, args = "GETSET", append(args, v)
		case 4:
			command, args = "SET", append(args, v, "NX", "PX", 20)
		case 5:
			command, args = "SET", append(args, v, "XX")
		case 6:
			command = "GET"
		case 7, 8:
			command = "DEL"
		case 9:
			command, args = "PEXPIRE", append(args, 1000*random.IntN(2))
		case 10:
			command, args = "HSET", append(args, "f", v)
		case 11:
			command, args = "EVAL", []any{"return redis.pcall('SETNX', KEYS[1], ARGV[1])", 1, k, v}
		case 12:
			command, args = "SET", append(args, v, "EX", 100, "GET")
		case 13:
			command = "PERSIST"
		case 14:
			command, args = "SET", append(args, v, "KEEPTTL")
		case 15:
			command = "GETDEL"
		}
		reply, err := conn.Do(command, args...)
		effects := next()
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
			value, _, ok := keys.Value(0, k, now)
			assert.True(t, ok, k)
			assert.Equal(t, s.Value(k), value, k)
		}
	}
}
