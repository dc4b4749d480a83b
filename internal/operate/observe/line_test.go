package observe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func TestMain(m *testing.M) {
	holders.ServeIfAsked(nil)
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Line{
		`1795230743.893122 [0 127.0.0.1:47182] "set" "k" "v"`:             {At: 1795230743893122000, Addr: "127.0.0.1:47182", Words: []string{"SET", "k", "v"}},
		"+1795230743.000001 [3 lua] \"get\" \"k\"\r\n":                    {At: 1795230743000001000, DB: 3, Addr: "lua", Words: []string{"GET", "k"}},
		`1.000000 [0 unix:/tmp/r.sock] "set" "a\"b\\\nc" "\x01\x80\xff "`: {At: 1e9, Addr: "unix:/tmp/r.sock", Words: []string{"SET", "a\"b\\\nc", "\x01\x80\xff "}},
		`1.000000 [15 [::1]:5] "SETNX" "] \"" ""`:                         {At: 1e9, DB: 15, Addr: "[::1]:5", Words: []string{"SETNX", `] "`, ""}},
		`1.000000 [0 127.0.0.1:1] "AUTH" "(redacted)"`:                    {At: 1e9, Addr: "127.0.0.1:1", Words: []string{"AUTH", "(redacted)"}},
	} {
		var l Line
		require.NoError(t, l.Parse(text), text)
		assert.Equal(t, want, l, text)
	}
	for _, text := range []string{
		"", "OK", "+OK", "1.1 [0 a] \"x\"", "1.000000 [0 a]", "1.000000 [x a] \"get\"", `1.000000 [0 a] "get`, `1.000000 [0 a] "get" k`,
		`1.000000 [0 a] "get" "\x0"`, `1.000000 [0 a] ""`, `-1.000000 [0 a] "get"`, `1.000000 [0 a] "get" `,
	} {
		assert.Error(t, new(Line).Parse(text), text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`1795230743.893122 [0 127.0.0.1:47182] "set" "k\x00" "v\"\\"`)
	f.Add(`1.000000 [0 lua] "evalsha" "" "1"`)
	f.Fuzz(func(t *testing.T, text string) {
		var l, again Line
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
		o := New(Options{})
		o.Take(&l)
		o.Take(&again)
		o.Report()
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
	var line Line
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

// TestFromFile reads a recorded stream whose keys are not known at the start.
func TestFromFile(t *testing.T) {
	recorded := `OK
1700000000.000000 [0 10.0.0.1:1] "SETNX" "lock:a" "1700000030001"
1700000000.000400 [0 10.0.0.1:1] "GET" "lock:a"
1700000000.100000 [0 10.0.0.1:1] "SETNX" "lock:a" "1700000030101"
1700000000.100400 [0 10.0.0.1:1] "GET" "lock:a"
1700000000.150000 [0 10.0.0.2:1] "DEL" "lock:a"
1700000000.200000 [0 10.0.0.1:1] "SETNX" "lock:a" "1700000030201"
1700000000.210000 [0 10.0.0.3:1] "SETNX" "lock:a" "1700000035211"
1700000000.210300 [0 10.0.0.3:1] "GET" "lock:a"
1700000000.300000 [0 10.0.0.1:1] "DEL" "lock:a"
garbage
1700000000.310000 [0 10.0.0.3:1] "SETNX" "lock:a" "1700000035311"
1700000000.320000 [0 10.0.0.4:1] "DEL" "lock:a"
1700000000.330000 [0 10.0.0.4:1] "SETNX" "lock:a" "1700000030331"
1700000000.340000 [0 10.0.0.3:1] "DEL" "lock:a"
`
	o := New(Options{})
	require.NoError(t, ReadFile(context.Background(), strings.NewReader(recorded), o))
	r := o.Report()
	assert.EqualValues(t, 1, r.Garbled)
	assert.EqualValues(t, 13, r.Commands)
	rows := map[string]Row{}
	for _, row := range r.Clients {
		rows[row.Addr] = row
	}
	assert.EqualValues(t, 1, rows["10.0.0.1:1"].Acquired, "the first outcomes are settled by its own GET")
	assert.EqualValues(t, 30_000, *rows["10.0.0.3:1"].LeaseMS)
	assert.InDelta(t, 5000, *rows["10.0.0.3:1"].SkewMS, 5)
	assert.Equal(t, map[string]int64{"stale-delete": 2}, r.Hazards)
	require.Len(t, r.Overlaps, 1)
	assert.Equal(t, "10.0.0.3:1", r.Overlaps[0].First.Addr)
	assert.Equal(t, "10.0.0.4:1", r.Overlaps[0].Second.Addr)
	assert.NoError(t, o.Profile().Validate())
}

func TestRoundLease(t *testing.T) {
	s := time.Second
	for _, c := range []struct {
		sums []time.Duration
		want time.Duration
		from string
	}{
		{[]time.Duration{-60 * s, 25 * s, 30 * s, 35 * s, 120 * s}, 30 * s, "fleet"},
		{[]time.Duration{30*s + 3*time.Millisecond}, 30 * s, "round"},
		{[]time.Duration{60 * s, 60*s + 8*time.Millisecond, 72 * s}, 60 * s, "fleet"},
		{[]time.Duration{300 * time.Millisecond, 301 * time.Millisecond}, 300 * time.Millisecond, "fleet"},
		// A lease of 4.5 s, or three clocks that are wrong by the same half a second: nobody can tell.
		{[]time.Duration{4500 * time.Millisecond, 4501 * time.Millisecond, 4502 * time.Millisecond, 7 * s}, 5 * s, "round"},
	} {
		var fleet []*party
		for _, sum := range c.sums {
			fleet = append(fleet, &party{sum: sum, sums: &sums{quantum: time.Millisecond}})
		}
		assert.Equal(t, c.want, roundLease(fleet, within{}), c.sums)
		seen := map[pair]*sums{}
		for i, sum := range c.sums {
			one := &sums{trip: time.Millisecond, of: protocol.JedisMS}
			for range enough {
				one.add(sum, time.Millisecond)
			}
			seen[pair{client: &client{addr: fmt.Sprint("10.0.0.", i)}, family: "f"}] = one
		}
		assert.Equal(t, c.from, solve(seen, nil, 0).source["f"], c.sums)
	}
}

func TestFamilyOf(t *testing.T) {
	for key, want := range map[string]string{
		"lock:order:17": "lock:order:#", "lock:mail": "lock:mail", "job42": "job#", "a1b2c3d4e5": "#",
		"": "", "x\x00y9z": "x\x00y#z", "deadbeef": "deadbeef",
	} {
		assert.Equal(t, want, Family(key), key)
	}
	assert.Equal(t, Family("u:7f9c24e8-3b12-4fe1-91e0-5b7e6c1d2a30"), Family("u:aa9c24e8-3c12-4fe2-91f0-5b7e6c1d2a31"))
}
