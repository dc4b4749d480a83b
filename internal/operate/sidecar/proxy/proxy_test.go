package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// proxyFor names the server, where this program is to be a proxy for a test.
const proxyFor = "LOCKMIGRATE_PROXY_FOR"

func TestMain(m *testing.M) {
	addr := os.Getenv(proxyFor)
	if addr == "" {
		goleak.VerifyTestMain(m)
		return
	}
	debug.SetGCPercent(50) // as the command does
	s := New(Options{Listeners: []Listener{{Address: "127.0.0.1:0", Rewriter: passing}}, Log: slog.Default(),
		Dial: func(context.Context) (net.Conn, error) { return net.Dial("tcp", addr) }})
	go func() {
		for s.Ready() != nil {
			time.Sleep(time.Millisecond)
		}
		fmt.Println(s.Addresses()[0])
	}()
	fmt.Println(s.Run(context.Background()))
}

// locks is a Rewriter for keys that begin with "lock.".
type locks struct {
	rewrite func(c *Client, args [][]byte, out []byte) (Verdict, []byte)
}

func (locks) Commands() map[string]Keys {
	return map[string]Keys{
		"SETNX": {First: 1, Last: 1}, "SET": {First: 1, Last: 1}, "GET": {First: 1, Last: 1}, "GETSET": {First: 1, Last: 1},
		"DEL": {First: 1, Last: -1}, "MSET": {First: 1, Last: -1, Step: 2}, "RENAME": {First: 1, Last: 2},
		"EVAL": {First: 3, Counted: true}, "MULTI": {}, "EXEC": {},
	}
}
func (locks) Covers(key []byte) bool { return servers.Match("lock.*", key) }
func (locks) Open(*Client)           {}
func (locks) Close(*Client)          {}
func (l locks) Rewrite(c *Client, args [][]byte, out []byte) (Verdict, []byte) {
	return l.rewrite(c, args, out)
}

// passing looks at every command and changes none.
var passing = locks{func(_ *Client, _ [][]byte, out []byte) (Verdict, []byte) { return Pass, out }}

// echoing puts an ECHO of the words in the place of each command on a lock's key.
var echoing = locks{func(_ *Client, args [][]byte, out []byte) (Verdict, []byte) {
	if len(args) == 1 {
		return Pass, out
	}
	return Replace, wire.Append(out, []byte("ECHO"), bytes.Join(args, []byte(" ")))
}}

// start runs a proxy in front of an address and ends it with the test.
func start(t testing.TB, addr string, r Rewriter) (*Server, string) {
	t.Helper()
	return startWith(t, before(addr, r))
}

// before are the options of a proxy in front of an address.
func before(addr string, r Rewriter) Options {
	return Options{
		Listeners: []Listener{{Address: "127.0.0.1:0", Rewriter: r}},
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
		},
	}
}

func startWith(t testing.TB, opts Options) (*Server, string) {
	t.Helper()
	s, end, ended := begin(t, opts)
	t.Cleanup(func() {
		end()
		assert.NoError(t, <-ended)
	})
	return s, s.Addresses()[0]
}

// begin runs a proxy until end, and says when and how it has ended.
func begin(t testing.TB, opts Options) (s *Server, end context.CancelFunc, ended <-chan error) {
	t.Helper()
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s = New(opts)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- s.Run(ctx) }()
	require.Eventually(t, func() bool { return s.Ready() == nil }, time.Minute, time.Millisecond)
	return s, cancel, over
}

func dial(t testing.TB, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// talk sends a stream in pieces, ends it, and returns all that comes back.
func talk(t testing.TB, addr string, stream []byte, pieces []int) string {
	t.Helper()
	conn := dial(t, addr)
	go func() {
		for _, n := range pieces {
			if n = min(n, len(stream)); n > 0 {
				_, _ = conn.Write(stream[:n])
				stream = stream[n:]
				time.Sleep(20 * time.Microsecond)
			}
		}
		_, _ = conn.Write(stream)
	}()
	return readUntil(t, conn, "$4\r\ndone\r\n")
}

// readUntil reads until the stream ends, or its last reply.
func readUntil(t testing.TB, conn net.Conn, last string) string {
	t.Helper()
	var got bytes.Buffer
	b := make([]byte, 64<<10)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		n, err := conn.Read(b)
		got.Write(b[:n])
		if bytes.HasSuffix(got.Bytes(), []byte(last)) || err == io.EOF {
			return got.String()
		}
		require.NoError(t, err, "no more came than %q", tail(got.Bytes()))
	}
}

func tail(b []byte) []byte { return b[max(0, len(b)-200):] }

// stream makes requests of many kinds. None of their replies depends on anything but the requests.
func stream(r *rand.Rand, requests int) []byte {
	var out []byte
	key := func() string { return []string{"a", "b", "lock.a", "lock.b", "lock.}{", ""}[r.IntN(6)] }
	value := func() string {
		sizes := []int{0, 1, 5, 64, 700, 20_000, 100_000}
		n := sizes[min(r.IntN(14), r.IntN(7))%7]
		if r.IntN(40) == 0 {
			n = 600_000
		}
		return string(bytes.Repeat([]byte{"x\r\n*$"[r.IntN(5)]}, n))
	}
	open := false
	for range requests {
		var words []string
		switch r.IntN(20) {
		case 0:
			words = []string{"ping"}
		case 1, 2:
			words = []string{"SeTnX", key(), value()}
		case 3, 4:
			words = []string{"GET", key()}
		case 5:
			words = []string{"getset", key(), value()}
		case 6:
			words = []string{"DEL", key(), key(), key()}
		case 7:
			words = []string{"MSET", key(), value(), key(), value()}
		case 8:
			words = []string{"EVAL", "return {KEYS[1], ARGV[1]}", "1", key(), value()}
		case 9:
			if open = !open; open {
				words = []string{"MULTI"}
			} else {
				words = []string{"EXEC"}
			}
		case 10:
			words = []string{"RPUSH", "list", value()}
		case 11:
			words = []string{"PUBLISH", "c", "m"}
		case 12:
			words = []string{"nonsense", key()}
		case 13:
			words = []string{"GET"}
		case 14:
			words = []string{"SET", key(), value(), "PX", "100000"}
		case 15:
			words = []string{"RENAME", key(), key()}
		case 16:
			words = []string{"LRANGE", "list", "-2", "-1"}
		case 17:
			words = []string{"BLPOP", "list", "0.01"}
		case 18:
			inline := []string{"ping\r\n", "\r\n", "set a \"x\\x41y z\"\r\n", "get lock.a\n", "  setnx 'lock.b'  1\r\n", "*0\r\n", "*-1\r\n", "echo \"\\\"q\"\n"}
			out = append(out, inline[r.IntN(len(inline))]...)
			continue
		case 19:
			words = []string{"EVAL", "return 1", "x", key()}
		}
		out = wire.Append(out, words...)
	}
	if open {
		out = wire.Append(out, "DISCARD")
	}
	return wire.Append(out, "ECHO", "done")
}

func seeded(seed uint64, requests int) []byte {
	return stream(rand.New(rand.NewPCG(seed, 1)), requests)
}

// TestTheSameBytesAsDirect sends random streams, cut at random places, to two servers: to one through the proxy.
func TestTheSameBytesAsDirect(t *testing.T) {
	direct, behind := redistest.Real(t), redistest.Real(t)
	_, addr := start(t, behind.Addr, passing)
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		text := stream(r, 60)
		var pieces []int
		if seed%3 > 0 {
			for range 200 {
				pieces = append(pieces, 1+r.IntN([]int{3, 40, 9000}[r.IntN(3)]))
			}
		}
		want, got := talk(t, direct.Addr, text, nil), talk(t, addr, text, pieces)
		if want != got {
			at := 0
			for at < min(len(want), len(got)) && want[at] == got[at] {
				at++
			}
			t.Fatalf("seed %d: the replies differ at byte %d of %d and %d:\n%q\n%q", seed, at, len(want), len(got), want[max(0, at-60):min(len(want), at+60)], got[max(0, at-60):min(len(got), at+60)])
		}
		direct.Do("FLUSHALL")
		behind.Do("FLUSHALL")
	}
}

// TestNoLockCommandComesThrough sends random streams, malformed ones too: no command on a lock's key may reach the server,
// however it is written and cut.
func TestNoLockCommandComesThrough(t *testing.T) {
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, echoing)
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 2))
		text := stream(r, 30)
		if seed%2 == 1 {
			for range 1 + r.IntN(3) {
				text[r.IntN(len(text))] = "*$\r\n\x000-+3 '\""[r.IntN(11)]
			}
		}
		conn := dial(t, addr)
		go func() {
			for len(text) > 0 {
				n := min(len(text), 1+r.IntN(3000))
				_, _ = conn.Write(text[:n])
				text = text[n:]
			}
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := io.Copy(io.Discard, conn)
		if !errors.Is(err, syscall.ECONNRESET) { // Redis closes on a protocol error, whatever is still to be read
			require.NoError(t, err, "seed %d", seed)
		}
		keys := server.Do("KEYS", "lock.*")
		require.Empty(t, keys, "seed %d: %s", seed, keys)
	}
	assert.NotEmpty(t, server.Do("KEYS", "*"), "nothing came through at all")
}

// TestVerdicts: what goes in the place of a request has its reply, in a transaction too.
func TestVerdicts(t *testing.T) {
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, locks{func(c *Client, args [][]byte, out []byte) (Verdict, []byte) {
		switch string(args[0]) {
		case "GET":
			return Replace, wire.Append(out, "ECHO", fmt.Sprintf("%d", c.ID))
		case "DEL":
			return Refuse, append(out, "ERR several keys"...)
		default:
			return Pass, out
		}
	}})
	var text []byte
	for _, words := range [][]string{
		{"SETNX", "lock.a", "1"}, {"GET", "lock.a"}, {"GET", "a"}, {"MULTI"}, {"GET", "lock.a"}, {"DEL", "x", "lock.a"}, {"EXEC"},
		{"DEL", "lock.a"}, {"DEL", "x"}, {"GET", "lock.a", "more"}, {"ECHO", "done"},
	} {
		text = wire.Append(text, words...)
	}
	assert.Equal(t, ":1\r\n$1\r\n1\r\n$-1\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$1\r\n1\r\n-ERR several keys\r\n-ERR several keys\r\n:0\r\n$1\r\n1\r\n$4\r\ndone\r\n",
		talk(t, addr, text, nil))
}

// TestHold holds the answer to a request until its wake-up, the end of its patience, or more from the client.
func TestHold(t *testing.T) {
	server := redistest.Real(t)
	wake := make(chan struct{}, 1)
	var patience time.Duration
	_, addr := start(t, server.Addr, locks{func(c *Client, args [][]byte, out []byte) (Verdict, []byte) {
		if string(args[0]) == "SETNX" && !c.Held {
			waked := make(chan struct{})
			go func() {
				<-wake
				close(waked)
			}()
			c.Wake, c.Patience = waked, patience
			return Hold, out
		}
		return Pass, out
	}})
	hold := func(more ...string) time.Duration {
		conn := dial(t, addr)
		began := time.Now()
		text := wire.Append(wire.Append(nil, "PING"), "SETNX", "lock.a", "1")
		_, _ = conn.Write(text)
		for _, word := range more {
			time.Sleep(20 * time.Millisecond)
			_, _ = conn.Write(wire.Append(nil, word))
		}
		if len(more) == 0 {
			readUntil(t, conn, "+PONG\r\n:1\r\n")
		} else {
			readUntil(t, conn, "+PONG\r\n:1\r\n+PONG\r\n")
		}
		took := time.Since(began)
		server.Do("DEL", "lock.a")
		return took
	}
	patience = 50 * time.Millisecond
	assert.GreaterOrEqual(t, hold(), patience, "the patience is over")
	wake <- struct{}{}
	patience = time.Minute
	time.AfterFunc(30*time.Millisecond, func() { wake <- struct{}{} })
	assert.Less(t, hold(), 20*time.Second, "it was woken")
	assert.Less(t, hold("PING"), 20*time.Second, "the client sends more")
	wake <- struct{}{}
	conn := dial(t, addr)
	_, _ = conn.Write(wire.Append(nil, "SETNX", "lock.a", "1"))
	time.Sleep(20 * time.Millisecond)
	_ = conn.(*net.TCPConn).CloseWrite()
	readUntil(t, conn, "")
	assert.Equal(t, "1", server.Value("lock.a"), "a client that has gone is not held")
	wake <- struct{}{}
}

// A long request that comes in many pieces is read once, and not from its beginning with each piece.
func TestLongRequestIsReadOnce(t *testing.T) {
	asked := 0
	f := framer{commands: passing.Commands(), covers: func(key []byte) bool { asked++; return string(key) == "lock" }}
	const pairs = 20_000
	words := []string{"MSET"}
	for range pairs - 1 {
		words = append(words, "a", "b")
	}
	for _, last := range []string{"a", "lock"} {
		asked = 0
		b := wire.Append(nil, append(words, last, "b")...)
		for n := 100; n < len(b); n += 100 {
			pass, found, _ := f.next(b[:n])
			require.Zero(t, pass)
			require.Equal(t, nothing, found)
		}
		pass, found, length := f.next(b)
		if last == "lock" {
			require.Equal(t, []any{request, len(b), 2*pairs + 1}, []any{found, length, len(f.words)})
		} else {
			require.Equal(t, []any{nothing, len(b)}, []any{found, pass})
		}
		assert.Equal(t, pairs, asked)
	}
}
