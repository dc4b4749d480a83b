package scripts_test

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

func init() { redistest.Handmade = true }

// TestExamples runs testdata/NAME.txt for each script NAME.lua. It is a list of commands to the server and calls of the
// script, with the replies that are to come:
//
//	with key=lock value=$ours        the values of each call from here on
//	call ttl=100 => [1 * >0]         a call, with further values; NAME= leaves one out
//	GET lock => $ours                a command
//
//	listens wake:1 => ...            another connection subscribes to a channel
//	hears wake:1 => 7%20token        the next message on it
//
// In a reply, * is anything, also within a word, >0 a positive number, ~N up to five seconds less than N. $later and $past are milliseconds of the clock, an hour
// from now; $+300 and $-300 are 300 ms from now, $s-60 is in seconds. %20 is a blank. Every reply that the header documents has to come.
func TestExamples(t *testing.T) {
	for _, s := range scripts.All() {
		t.Run(strings.TrimSuffix(s.Name, ".lua"), func(t *testing.T) {
			text, err := os.ReadFile("testdata/" + strings.TrimSuffix(s.Name, ".lua") + ".txt")
			require.NoError(t, err, "each script has its examples")
			redistest.Each(t, func(t *testing.T, server *redistest.Server) { examples(t, s, string(text), server.Conn) })
			world.Run(t, 1, func(w *world.World) { examples(w.T, s, string(text), w.Server().Conn) })
		})
	}
}

// examples runs the examples of a script.
func examples(t *testing.T, s *scripts.Script, text string, dial func() redis.Conn) {
	met, now := map[string]bool{}, time.Now()
	conn, with, listeners := dial(), scripts.Values{}, map[string]redis.PubSubConn{}
	for n, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		command, want, _ := strings.Cut(line, "=>")
		words := wordsOf(command, now)
		if len(words) == 0 {
			continue
		}
		var reply any
		var err error
		switch words[0] {
		case "with":
			with = values(with, words[1:])
			continue
		case "call":
			var args []any
			args, err = s.Call(values(with, words[1:]))
			require.NoError(t, err, "line %d", n+1)
			reply, err = conn.Do("EVAL", append([]any{s.Source}, args...)...)
			if err != nil {
				reply = err
			}
			met[code(reply)] = true
		case "listens":
			listener := redis.PubSubConn{Conn: dial()}
			require.NoError(t, listener.Subscribe(words[1]))
			reply, listeners[words[1]] = "listens", listener
			_ = listener.ReceiveWithTimeout(time.Minute)
		case "hears":
			message, _ := listeners[words[1]].ReceiveWithTimeout(time.Minute).(redis.Message)
			reply = message.Data
		default:
			if reply, err = conn.Do(words[0], boxedWords(words[1:])...); err != nil {
				reply = err
			}
		}
		require.True(t, matches(wordsOf(want, now), flatten(reply)), "line %d: %s\ngot %v", n+1, line, flatten(reply))
	}
	for _, c := range documented(s) {
		require.True(t, met[c], "no example has the reply %s", c)
	}
}

var relative = regexp.MustCompile(`\$(s?)([+-]\d+)`)

// wordsOf splits a line and puts in what the clock and the tests' values are.
func wordsOf(line string, now time.Time) []string {
	at := func(d time.Duration) string { return strconv.FormatInt(now.Add(d).UnixMilli(), 10) }
	line = strings.NewReplacer("$ours", "5123456789012345678", "$theirs", "6123456789012345678", "$later", at(time.Hour), "$past", at(-time.Hour)).Replace(line)
	line = relative.ReplaceAllStringFunc(line, func(text string) string {
		m := relative.FindStringSubmatch(text)
		n, _ := strconv.Atoi(m[2])
		if m[1] == "s" {
			return strconv.FormatInt(now.Unix()+int64(n), 10)
		}
		return at(time.Duration(n) * time.Millisecond)
	})
	words := strings.Fields(line)
	for i, w := range words {
		words[i], _ = url.PathUnescape(w)
	}
	return words
}

func boxedWords(words []string) (all []any) {
	for _, w := range words {
		all = append(all, strings.ReplaceAll(w, "''", ""))
	}
	return all
}

func values(with scripts.Values, words []string) scripts.Values {
	all := scripts.Values{}
	for name, v := range with {
		all[name] = v
	}
	for _, w := range words {
		switch name, v, _ := strings.Cut(w, "="); {
		case name == "contents" || name == "keys":
			all[name] = boxedWords(strings.Split(v, ","))
		case v == "":
			delete(all, name)
		default:
			all[name] = strings.ReplaceAll(v, "''", "")
		}
	}
	return all
}

// flatten writes a reply in the words of a file.
func flatten(reply any) []string {
	switch v := reply.(type) {
	case nil:
		return []string{"nil"}
	case error:
		return append([]string{"error"}, strings.Fields(v.Error())...)
	case []byte:
		return []string{string(v)}
	case []any:
		words := []string{"["}
		for _, element := range v {
			words = append(words, flatten(element)...)
		}
		return append(words, "]")
	}
	return []string{fmt.Sprint(reply)}
}

func matches(want, got []string) bool {
	if len(want) == 0 {
		return len(got) == 0 || got[0] != "error"
	}
	if want[len(want)-1] == "..." {
		want = want[:len(want)-1]
		got = got[:min(len(got), len(want))]
	}
	return slices.EqualFunc(want, got, func(w, g string) bool {
		n, err := strconv.ParseInt(g, 10, 64)
		switch most, approximate := strings.CutPrefix(w, "~"); {
		case strings.Contains(w, "*"):
			match, _ := path.Match(w, g)
			return match
		case w == ">0":
			return err == nil && n > 0
		case approximate:
			m, _ := strconv.ParseInt(most, 10, 64)
			return err == nil && n <= m && n > m-5000
		case w == "''":
			return g == ""
		}
		return w == g
	})
}

// code is what a reply begins with.
func code(reply any) string {
	words := flatten(reply)
	switch {
	case words[0] == "[" && len(words) > 1:
		return words[1]
	case words[0] == "error":
		return "error " + words[1]
	}
	return words[0]
}

// documented are the codes that the header's part about the reply names.
func documented(s *scripts.Script) (codes []string) {
	_, text, _ := strings.Cut(s.Source, "-- Reply")
	text, _, _ = strings.Cut(text, "\n--\n")
	pattern := regexp.MustCompile(`\{(-?\d+)[,}]|(error [A-Z]+)`)
	if !strings.Contains(text, "{") {
		pattern = regexp.MustCompile(`(?:^ +|, |; )(-?\d+|nil|OK) |(error [A-Z]+)`)
	}
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		codes = append(codes, m[1]+m[2])
	}
	return codes
}
