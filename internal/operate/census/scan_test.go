package census

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func dialled(t *testing.T, url, addr string) net.Conn {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	conn, err := end.DialRaw(context.Background(), addr)
	require.NoError(t, err)
	return conn
}

// scan takes a census and returns the reported keys with their formats, sorted.
func scan(t *testing.T, s *redistest.Server, opts Options) ([]string, Summary, error) {
	t.Helper()
	var rows []string
	opts.Emit = func(r *Row) error {
		rows = append(rows, fmt.Sprintf("%s %s %s %s", r.Key, r.Type, r.Format, r.State))
		return nil
	}
	if opts.GhostAfter == 0 {
		opts.GhostAfter = time.Hour
	}
	c := New(opts)
	err := c.Scan(context.Background(), dialled(t, s.URL(), s.Addr))
	sort.Strings(rows)
	return rows, c.Summary(), err
}

func fillSome(s *redistest.Server) {
	now := time.Now()
	s.Do("SET", "orders", now.Add(time.Minute).UnixMilli())
	s.Do("SET", "lock:old", now.Add(-48*time.Hour).UnixMilli())
	s.Do("SET", "lock:token", aUUID, "PX", 60_000)
	s.Do("HSET", "redisson", aUUID+":54", 1)
	s.Do("PEXPIRE", "redisson", 60_000)
	s.Do("HSET", "page", "body", strings.Repeat("x", 1<<20), "etag", 7)
	s.Do("HSET", "user", "name", "joe", "mail", "m", "age", 3)
	s.Do("RPUSH", "list", "a")
	s.Do("SET", "session", hex32, "PX", 60_000)
	s.Do("SET", "counter", 42)
	s.Do("SET", "large", strings.Repeat("x", 1<<20))
}

// TestScan plays testdata/scan.txt: commands fill a server, and behind "scan [all] [PATTERN...]" stands what a census reports, and counts.
func TestScan(t *testing.T) {
	text, err := os.ReadFile("testdata/scan.txt")
	require.NoError(t, err)
	redistest.EachTCP(t, func(t *testing.T, s *redistest.Server) {
		var told strings.Builder
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			switch {
			case strings.HasPrefix(line, "  "):
				continue // what was told before
			case len(words) == 0 || words[0] == "#":
			case words[0] == "scan":
				all := slices.Contains(words, "all")
				rows, sum, err := scan(t, s, Options{Confidence: Medium, All: all, Match: slices.DeleteFunc(words[1:], func(w string) bool { return w == "all" })})
				require.NoError(t, err)
				assert.True(t, sum.Complete)
				assert.WithinDuration(t, time.Now(), sum.Clock, time.Minute)
				line += fmt.Sprintf("  %d of %d keys, %d possible: %v %v\n", sum.Locks, sum.Scanned, sum.Possible, sum.ByFormat, sum.ByState)
				for _, row := range rows {
					line += "  " + row + "\n"
				}
			default:
				args := []any{}
				for _, word := range words[1:] {
					args = append(args, written(t, word, time.Now()))
				}
				s.Do(words[0], args...)
			}
			told.WriteString(line)
		}
		assert.Equal(t, string(text), told.String())
	})
}

func TestScanManyPagesOfManyTypes(t *testing.T) {
	redistest.EachTCP(t, func(t *testing.T, s *redistest.Server) {
		conn := s.Conn()
		const keys = 5000
		expiry := time.Now().Add(time.Minute).UnixMilli()
		for i := range keys {
			switch i % 5 {
			case 0:
				require.NoError(t, conn.Send("SET", fmt.Sprintf("lock:%d", i), expiry))
			case 1:
				require.NoError(t, conn.Send("HSET", fmt.Sprintf("held:%d", i), aUUID+":1", 1))
			case 2:
				require.NoError(t, conn.Send("SADD", fmt.Sprintf("set:%d", i), "m"))
			default:
				require.NoError(t, conn.Send("SET", fmt.Sprintf("cache:%d", i), "v"))
			}
		}
		_, err := conn.Do("")
		require.NoError(t, err)

		rows, sum, err := scan(t, s, Options{Confidence: Medium})
		require.NoError(t, err)
		assert.EqualValues(t, keys, sum.Scanned)
		assert.Len(t, rows, 2*keys/5)
		assert.Equal(t, map[State]int64{Held: keys / 5, Ghost: keys / 5}, sum.ByState)
	})
}

// TestScanKnowsHowFarItIs: the estimate grows steadily to its end, also when a pattern hides most keys.
func TestScanKnowsHowFarItIs(t *testing.T) {
	s := redistest.Real(t)
	conn := s.Conn()
	const keys = 20_000
	for i := range keys {
		require.NoError(t, conn.Send("SET", fmt.Sprint("k", i), "v"))
	}
	_, err := conn.Do("")
	require.NoError(t, err)
	for _, match := range [][]string{nil, {"k1"}} {
		last, steps := 0.0, 0
		_, _, err = scan(t, s, Options{Match: match, Progress: func(p Progress) {
			assert.GreaterOrEqual(t, p.Done, last)
			assert.LessOrEqual(t, p.Done, 1.0)
			if match == nil {
				assert.InDelta(t, float64(p.Scanned)/keys, p.Done, 0.1)
			}
			last, steps = p.Done, steps+1
		}})
		require.NoError(t, err)
		assert.Greater(t, last, 0.9)
		assert.Greater(t, steps, 10)
	}
}

func TestCompanion(t *testing.T) {
	for _, key := range []string{"orders", "a:b", "{7}orders", "x{tag}y", "a}b", "{}a", "a:guard", "lock"} {
		f, ok := companion([]byte(protocol.GuardKey(key)))
		assert.True(t, ok, "guard of %q", key)
		assert.Equal(t, "the guard of "+strconv.Quote(key), f.Note)
		for _, name := range []string{protocol.FenceKey(key), protocol.QueueKey(key), protocol.ShareKey(key)} {
			f, ok := companion([]byte(name))
			assert.True(t, ok && f.Beside, "%q of %q", name, key)
		}
	}
	for _, name := range []string{"", "guard", ":guard", "the:guard", "body:guard", "orders:fence:1", "printer:queue", "{a:guard", "::::"} {
		_, ok := companion([]byte(name))
		assert.False(t, ok, name)
	}
}

func TestScanStopsWithItsContextAndItsReader(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, stopped := range []string{"context", "reader"} {
		ours, theirs := net.Pipe()
		go serveForever(theirs)
		ctx, cancel := context.WithCancel(context.Background())
		full := errors.New("disk full")
		c := New(Options{GhostAfter: time.Hour, All: true, Emit: func(*Row) error {
			if stopped == "reader" {
				return full
			}
			cancel()
			return nil
		}})
		err := c.Scan(ctx, ours)
		if stopped == "reader" {
			assert.ErrorIs(t, err, full)
		} else {
			assert.ErrorIs(t, err, context.Canceled)
		}
		assert.False(t, c.Summary().Complete)
		assert.Positive(t, c.Summary().Scanned)
		cancel()
		_ = theirs.Close()
	}
}

// TestAReaderThatTakesItsTime has rows be taken more slowly than a server may answer: a pager, or a sweep with a low rate.
func TestAReaderThatTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go serveForever(theirs)
		ctx, cancel := context.WithCancel(t.Context())
		rows := 0
		c := New(Options{All: true, Emit: func(*Row) error {
			time.Sleep(2 * replyTimeout)
			if rows++; rows == 2 {
				cancel()
			}
			return nil
		}})
		assert.ErrorIs(t, c.Scan(ctx, ours), context.Canceled)
	})
}

// TestScanCountsDuplicatesOnce: SCAN may return a key again.
func TestScanCountsDuplicatesOnce(t *testing.T) {
	ours, theirs := net.Pipe()
	go serveForever(theirs)
	pages := 0
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := New(Options{GhostAfter: time.Hour, All: true, Emit: func(*Row) error { return nil }, Progress: func(Progress) {
		if pages++; pages == 50 {
			cancel()
		}
	}})
	_ = c.Scan(ctx, ours)
	assert.EqualValues(t, 2, c.Summary().Scanned)
	_ = theirs.Close()

	again := 0 // of 20,000 keys, which go from the map to the slots: one of fifty may have been overwritten
	for i := range 40000 {
		if c.again(strconv.AppendInt(nil, int64(i%20000), 10)) {
			require.GreaterOrEqual(t, i, 20000)
			again++
		}
	}
	assert.Greater(t, again, 19300)
	assert.Len(t, c.seen, remembered)
}

// serveForever is a server whose SCAN never ends and returns the same two keys.
func serveForever(conn net.Conn) {
	defer conn.Close()
	requests := redis.NewConn(conn, 0, 0) // a request looks like a reply
	for {
		words, err := redis.Strings(requests.Receive())
		if err != nil {
			return
		}
		reply := "+OK\r\n"
		switch words[0] {
		case "TIME":
			reply = "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n"
		case "SCAN":
			reply = "*2\r\n$1\r\n7\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"
		case "GETRANGE":
			reply = "$1\r\nx\r\n"
		case "PTTL":
			reply = ":-1\r\n"
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

func TestScanOfABrokenServer(t *testing.T) {
	defer goleak.VerifyNone(t)
	for reply, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n":  "unexpected response line",
		"*2\r\n$10\r\n1700000000\r\n$1": "EOF",
		"":                              "EOF",
		"-NOPERM no permissions to run the 'scan' command\r\n": "NOPERM no permissions to run the 'scan' command",
		"*2\r\n$9999999999999999999\r\n":                       "EOF",
		strings.Repeat("x", 70_000) + "\r\n":                   "unexpected response line",
		"*2\r\n$-1\r\n$-1\r\n":                                 "nil returned",
	} {
		ours, theirs := net.Pipe()
		go func() {
			buf := make([]byte, 1000)
			const clock = "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n"
			for _, answer := range []string{clock, clock, clock, "+OK\r\n", "$0\r\n\r\n", reply} { // the last one is that of SCAN
				_, _ = theirs.Read(buf)
				_, _ = io.WriteString(theirs, answer)
			}
			_ = theirs.Close()
		}()
		err := New(Options{}).Scan(context.Background(), ours)
		assert.ErrorContains(t, err, want, "%.40q", reply)
	}
}

func TestScanWithoutRights(t *testing.T) {
	s := redistest.Real(t)
	fillSome(s)
	s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~lock:*", "+@all")
	s.Do("ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all", "-getrange")
	some := New(Options{GhostAfter: time.Hour, Emit: func(*Row) error { return nil }})
	require.NoError(t, some.Scan(context.Background(), dialled(t, s.URLOf("joe"), s.Addr)))
	assert.EqualValues(t, 8, some.Summary().Unread)
	assert.EqualValues(t, 2, some.Summary().Locks)

	none := New(Options{GhostAfter: time.Hour})
	err := none.Scan(context.Background(), dialled(t, s.URLOf("ann"), s.Addr))
	var refused redis.Error
	require.ErrorAs(t, err, &refused)
	assert.Contains(t, string(refused), "getrange")
}

// TestScanLeavesTheServerAsItWas: a census writes nothing.
func TestScanLeavesTheServerAsItWas(t *testing.T) {
	s := redistest.Real(t, "--enable-debug-command", "local")
	fillSome(s)
	before := s.Do("DEBUG", "DIGEST")
	monitor := s.Monitor()
	_, _, err := scan(t, s, Options{All: true})
	require.NoError(t, err)
	allowed := map[string]bool{
		"PING": true, "CLIENT": true, "TIME": true, "INFO": true, "SCAN": true, "GETRANGE": true, "PTTL": true,
		"TYPE": true, "HLEN": true, "HKEYS": true, "HGETALL": true,
	}
	for _, c := range monitor.Commands() {
		assert.True(t, allowed[c.Words[0]], "%q", c.Words)
		assert.NotEqual(t, []string{"HGETALL", "page"}, c.Words, "a large value was asked for")
	}
	assert.Equal(t, before, s.Do("DEBUG", "DIGEST"))
}
