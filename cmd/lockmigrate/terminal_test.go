package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gomodule/redigo/redis"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func TestSafe(t *testing.T) {
	for text, want := range map[string]string{
		"plain text":      "plain text",
		"ünïcode ✓":       "ünïcode ✓",
		"a\x1b[31mb":      `a\x1b[31mb`,
		"a\r\nb":          `a\r\nb`,
		"\u009b31m":       `\u009b31m`,
		"\u202etxt":       `\u202etxt`,
		"\xff\xfe":        `\xff\xfe`,
		"zero\u200bwidth": `zero\u200bwidth`,
	} {
		assert.Equal(t, want, safe(text))
	}
	assert.Equal(t, `""`, quoted(""))
	assert.Equal(t, `"a b"`, quoted("a b"))
	assert.Equal(t, "a:b", quoted("a:b"))
}

func FuzzSafe(f *testing.F) {
	f.Add("plain")
	f.Add("\x1b]0;title\a\u009b\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		for name, out := range map[string]string{"safe": safe(text), "quoted": quoted(text), "JSON": string(printableJSON(encoded))} {
			for _, r := range out {
				if !unicode.IsPrint(r) {
					t.Fatalf("%s(%q) holds %U", name, text, r)
				}
			}
		}
		var back string
		if err := json.Unmarshal(printableJSON(encoded), &back); err != nil {
			t.Fatalf("printableJSON(%q): %v", text, err)
		}
		if utf8.ValidString(text) && back != text {
			t.Fatalf("printableJSON(%q) reads back as %q", text, back)
		}
	})
}

func TestStatus(t *testing.T) {
	var out bytes.Buffer
	s := newStatusLine(&out, func() int { return 12 })
	s.Clear()
	assert.Empty(t, out.String(), "nothing to clear")
	s.Update("a line that is %s", "too long")
	assert.Equal(t, "\ra line tha…\x1b[K", out.String())
	s.Update("%s", nobodysText{t})
	s.Clear()
	assert.True(t, strings.HasSuffix(out.String(), "\r\x1b[K"))

	silent := newStatusLine(nil, nil)
	silent.Update("%s", nobodysText{t})
	silent.Clear()
}

// nobodysText is an argument of a text that nobody may make.
type nobodysText struct{ t *testing.T }

func (m nobodysText) String() string {
	m.t.Error("too soon, or for nobody, and yet made")
	return ""
}

func sampleTable() *textTable {
	t := newTable("NAME", "N|right", "WHY|wrap", "SPARE|spare")
	t.Row("alpha", "7", "a reason of several words that does not fit into a narrow column", "0123456789")
	t.Row("b", "1,234", "short", "x")
	return t
}

// TestTableFits: broken between words, the spare column left out and named, and nothing wider than the screen.
func TestTableFits(t *testing.T) {
	for _, width := range []int{54, 60, 80, 120, 200} {
		out := sampleTable().Render(width, true)
		for line := range strings.Lines(out) {
			assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(strings.TrimSuffix(line, "\n")), width, "at %d columns: %q", width, line)
		}
		flat := strings.Join(strings.Fields(text.StripEscape(out)), " ")
		assert.Contains(t, flat, "alpha")
		for _, word := range []string{"reason", "several", "narrow", "column", "1,234"} {
			assert.Contains(t, flat, word, "at %d columns", width)
		}
	}
	narrow := sampleTable().Render(54, false)
	require.NotContains(t, narrow, "\x1b")
	assert.Equal(t, `NAME       N  WHY                           SPARE
alpha      7  a reason of several words     0123456789
              that does not fit into a
              narrow column
b      1,234  short                         x
`, narrow)
	assert.Contains(t, sampleTable().Render(49, false), "(no room for SPARE: ", "words are worth more than a spare column")
}

// TestTableInAPipe: one line a row, whatever the words.
func TestTableInAPipe(t *testing.T) {
	out := sampleTable().Render(0, false)
	assert.Equal(t, "NAME       N  WHY                                                               SPARE\n"+
		"alpha      7  a reason of several words that does not fit into a narrow column  0123456789\n"+
		"b      1,234  short                                                             x\n", out)
	assert.Equal(t, "HEAD\n", newTable("HEAD").Render(0, false))
}

func TestInk(t *testing.T) {
	assert.Equal(t, "broken", palette(false).Bad("broken"))
	assert.Equal(t, "\x1b[1;31mbroken\x1b[0m", palette(true).Bad("broken"))
	assert.Equal(t, "", palette(true).Good(""))
}

func TestBar(t *testing.T) {
	assert.Equal(t, "[....................]", bar(-1))
	assert.Equal(t, "[##########..........]", bar(0.5))
	assert.Equal(t, "[####################]", bar(2))
}

// Nothing that stands on a server reaches a terminal raw: not in names, not in values, not in errors.
func TestHostileNamesAreNeverPrintedRaw(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	for _, name := range []string{
		"\x1b]0;owned\x07\x1b[2J", "a\r\nb", "\x00", "\xff\xfe", "\u202eexe.lock", "\u0085", "<script>alert(1)</script>", strings.Repeat("k", 60000),
	} {
		s.Do("SET", name, "1700000000000")
		s.Do("HSET", "h"+name, "\x1b[31m", "\x1b[2J")
	}
	for _, args := range [][]string{
		{"scan", "--all"}, {"scan", "--json", "--all"}, {"scan", "--match", "*"}, {"sweep", "--match", "*"}, {"doctor"}, {"doctor", "--json"},
		{"stage", "--namespace", "\x1b[2J"}, {"scan", "--match", "\x1b[2J*"},
	} {
		for _, terminal := range []bool{false, true} {
			_, out, diagnostics := lockmigrateIn(t.Context(), terminal, append(args, "--redis", s.URL())...)
			for stream, text := range map[string]string{"stdout": out, "stderr": diagnostics} {
				assert.True(t, utf8.ValidString(text), "%v %s", args, stream)
				for _, r := range text {
					// The status line of a terminal is ours: carriage return, and CSI K to clear it.
					ours := r == '\n' || terminal && (r == '\r' || r == '\x1b')
					if (r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e') && !ours {
						t.Errorf("%v prints %q raw on %s", args, r, stream)
						break
					}
				}
				assert.NotContains(t, text, "\x1b]", "%v: no title", args)
				assert.NotContains(t, text, "\x1b[2J", "%v: no clearing", args)
			}
			if args[len(args)-1] == "--json" || strings.Contains(strings.Join(args, " "), "--json") {
				for line := range strings.Lines(out) {
					if strings.HasPrefix(line, "{") && strings.HasSuffix(line, "}\n") {
						require.True(t, json.Valid([]byte(line)), line)
					}
				}
			}
		}
	}
}

// oldClient takes turns on a key until ctx ends, as jedis-lock does, with a clock that is off. Each connection has an address of
// its own, by which --group host tells it from the others.
func oldClient(ctx context.Context, t *testing.T, s *redistest.Server, key string, lease, off, hold, think time.Duration) {
	conn := s.Conn()
	defer conn.Close()
	now := func() int64 { return time.Now().Add(off).UnixMilli() }
	value := func() string { return strconv.FormatInt(now()+lease.Milliseconds()+1, 10) }
	sleep := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for ctx.Err() == nil {
		won, err := redis.Int(conn.Do("SETNX", key, value()))
		require.NoError(t, err)
		if won == 0 {
			read, _ := redis.String(conn.Do("GET", key))
			if expires, err := strconv.ParseInt(read, 10, 64); err == nil && expires < now() {
				before, _ := redis.String(conn.Do("GETSET", key, value()))
				won = map[bool]int{true: 1}[before == read]
			}
		}
		if won == 0 {
			sleep(50 * time.Millisecond)
			continue
		}
		time.Sleep(hold)
		_, err = conn.Do("DEL", key)
		require.NoError(t, err)
		sleep(think)
	}
}

// TestObserveSaysHowFarItIs: on a terminal, and nowhere else. What it sees in a database names that.
func TestObserveSaysHowFarItIs(t *testing.T) {
	t.Chdir(t.TempDir())
	lines := strings.Repeat(`1700000000.000001 [5 10.0.0.1:1] "SETNX" "lock:a" "1700000030001"`+"\n"+`1700000000.000002 [5 10.0.0.2:1] "DEL" "lock:a"`+"\n", 3)
	require.NoError(t, os.WriteFile("traffic.txt", []byte(lines), 0o600))
	for _, terminal := range []bool{true, false} {
		code, out, errs := lockmigrateIn(t.Context(), terminal, "observe", "--from", "traffic.txt")
		require.Equal(t, exitDone, code, errs)
		assert.Equal(t, terminal, strings.Contains(errs, "observe: 0.0 MiB read [####################]"), errs)
		assert.Contains(t, out, "in database 5")
		assert.Contains(t, out, "stale-delete    lock:a in database 5 by 10.0.0.2:1")
	}
}
