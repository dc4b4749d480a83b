package proxy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// TestLeavesTheLoop: nothing is lost or comes twice where a connection leaves its loop because one side takes no more, with the replies that
// the client has not read, or with requests that the server has not read and one of a lock behind them; and where the end comes with the last bytes.
func TestLeavesTheLoop(t *testing.T) {
	server := redistest.Real(t)
	s, addr := start(t, server.Addr, echoing)
	const count = 3000
	value := strings.Repeat("v", 10_000)
	for name, commands := range map[string][]string{"the client": {"GET", "k"}, "the server": {"SET", "k", value}} {
		t.Run(name, func(t *testing.T) {
			server.Do("SET", "k", value)
			conn := dial(t, addr)
			ask(t, conn, "$14\r\nSETNX lock.b y\r\n", "SETNX", "lock.b", "y")
			require.Eventually(t, func() bool { return looped(s) == 1 }, time.Minute, time.Millisecond)
			if name == "the server" {
				server.Do("CLIENT", "PAUSE", "1000")
			}
			var text []byte
			for range count {
				text = wire.Append(text, commands...)
			}
			text = wire.Append(wire.Append(text, "SETNX", "lock.a", "x"), "QUIT")
			written := make(chan error, 1)
			go func() {
				_, err := conn.Write(text)
				written <- err
			}()
			require.Eventually(t, func() bool { return looped(s) == 0 }, time.Minute, time.Millisecond)
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			all, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.NoError(t, <-written)
			want := strings.Repeat("+OK\r\n", count)
			if name == "the client" {
				want = strings.Repeat("$10000\r\n"+value+"\r\n", count)
			}
			assert.True(t, want+"$14\r\nSETNX lock.a x\r\n+OK\r\n" == string(all), "%d bytes", len(all))
		})
	}
}

// TestApart: a request that is Apart is asked about when all before it are answered, and those behind it are sent later.
func TestApart(t *testing.T) {
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, locks{func(c *Client, args [][]byte, out []byte) (Verdict, []byte) {
		switch name := string(args[0]); {
		case name == "SETNX" && !c.Alone && !c.Uncounted:
			return Apart, out
		case name == "SETNX" && c.Uncounted:
			return Refuse, append(out, "ERR uncounted"...)
		case name == "SETNX":
			return Replace, wire.Append(out, "ECHO", fmt.Sprint(server.Do("INCR", "n"))) // over another connection
		case name == "DEL":
			return Cut, out
		}
		return Pass, out
	}})
	var text []byte
	for _, words := range [][]string{{"INCR", "n"}, {"BLPOP", "none", "0.05"}, {"INCR", "n"}, {"SETNX", "lock.a", "1"}, {"INCR", "n"}, {"SETNX", "lock.a", "1"}, {"INCR", "n"}, {"ECHO", "done"}} {
		text = wire.Append(text, words...)
	}
	assert.Equal(t, ":1\r\n*-1\r\n:2\r\n$1\r\n3\r\n:4\r\n$1\r\n5\r\n:6\r\n$4\r\ndone\r\n", talk(t, addr, text, nil))
	text = wire.Append(wire.Append(wire.Append(nil, "SUBSCRIBE", "c"), "UNSUBSCRIBE", "c"), "SETNX", "lock.a", "1")
	assert.Contains(t, talk(t, addr, wire.Append(text, "ECHO", "done"), nil), "-ERR uncounted\r\n")
	conn := dial(t, addr)
	_, _ = conn.Write(wire.Append(wire.Append(nil, "INCR", "n"), "DEL", "lock.a"))
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := io.ReadAll(conn)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// TestBound: a reply that comes after its bound does not go to the client, and one that came before it does.
func TestBound(t *testing.T) {
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, locks{func(c *Client, _ [][]byte, out []byte) (Verdict, []byte) {
		c.Bound = time.Now().Add(300 * time.Millisecond)
		return Pass, out
	}})
	assert.Equal(t, ":1\r\n*-1\r\n$4\r\ndone\r\n", talk(t, addr, wire.Append(wire.Append(wire.Append(nil, "SETNX", "lock.a", "1"), "BLPOP", "none", "0.5"), "ECHO", "done"), nil), "it was answered in time")
	server.Do("CLIENT", "PAUSE", "600")
	conn := dial(t, addr)
	_, _ = conn.Write(wire.Append(wire.Append(nil, "SETNX", "lock.b", "1"), "ECHO", "done"))
	var b [64]byte
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, err := conn.Read(b[:])
	require.Error(t, err, "%q", b[:n])
	assert.Equal(t, "1", server.Value("lock.b"), "it has acted")
}

// frame feeds a framer with pieces of a stream, as conn.pass does. It returns what passed, the requests that it found, and how it
// ended.
func frame(stream []byte, pieces func() int) (passed []byte, requests []string, end finding) {
	f := framer{commands: passing.Commands(), covers: passing.Covers}
	var held []byte
	for len(stream) > 0 {
		n := min(len(stream), max(1, pieces()))
		held, stream = append(held, stream[:n]...), stream[n:]
		for more := true; more; {
			pass, found, length := f.next(held)
			passed = append(passed, held[:pass]...)
			switch found {
			case nothing:
				more = false
			case request:
				requests = append(requests, fmt.Sprintf("%q", f.words))
				passed = append(passed, held[pass:pass+length]...)
			default:
				return append(append(passed, held[pass:]...), stream...), requests, found
			}
			held = held[pass+length:]
		}
	}
	return append(passed, held...), requests, nothing
}

// FuzzFramer: however a stream is cut, all of it passes in its order, and the same requests are found.
func FuzzFramer(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seeded(seed, 6), seed)
	}
	for _, text := range []string{"", "*", "*3\r\n$3\r\nSET\r\n$6\r\nlock.a\r\n$1\r\nx\r\n", "*1\rX$4\rXMULTIX\r\n", "*-1\r\n*0\r\n*00\r\n", "*+1\r\n", "*2\r\n$3\r\nGET\r\n$-1\r\n",
		"get lock.a\n", "get \"lock.a\r\n", "\x00\n", "*9223372036854775807\r\n$3\r\nGET\r\n", "*99999999999999999999\r\n", "*3\r\n$3\r\nDEL\r\n$1\r\na\r\n$6\r\nlock.b\r\n",
		"*4\r\n$4\r\nEVAL\r\n$1\r\nx\r\n$1\r\n1\r\n$6\r\nlock.a\r\n", "*2\r\n$40\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n$1\r\na\r\n"} {
		f.Add([]byte(text), uint64(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		passed, whole, end := frame(stream, func() int { return len(stream) })
		require.True(t, bytes.Equal(passed, stream), "%q became %q", stream, passed)
		r := rand.New(rand.NewPCG(seed, 0))
		for _, pieces := range []func() int{func() int { return 1 }, func() int { return r.IntN(20) }} {
			if len(stream) > 10_000 {
				continue // a byte at a time takes time in its square
			}
			passed, cutUp, ended := frame(stream, pieces)
			require.False(t, !bytes.Equal(passed, stream) || fmt.Sprint(cutUp) != fmt.Sprint(whole) || ended != end, "%q: %s and %d whole, %s and %d in pieces", stream, whole, end, cutUp, ended)
		}
	})
}

// TestLongRequests: a request that is too long to be held passes in pieces, and is cut when a lock's key comes up in it.
func TestLongRequests(t *testing.T) {
	value := string(bytes.Repeat([]byte("v"), 400_000))
	for _, c := range []struct {
		words []string
		end   finding
	}{
		{[]string{"MSET", "a", value, "b", value, "c", value, "d", value}, nothing},
		{[]string{"MSET", "a", value, "b", value, "c", value, "lock.d", value}, cut},
		{[]string{"MSET", "a", value, "b", value, "c", value, "d", "lock.d"}, nothing},
		{[]string{"SET", "a", value + value + value}, nothing},
		{[]string{"SET", "lock.a", value + value + value}, cut},
		{[]string{"GET", value + value + value}, cut},
		{[]string{"EVAL", value + value + value, "1", "a", "lock.a"}, nothing},
		{[]string{"EVAL", value + value + value, "2", "a", "lock.a"}, cut},
	} {
		stream := wire.Append(wire.Append(nil, c.words...), "GET", "lock.z")
		for _, piece := range []int{len(stream), 16 << 10} {
			passed, requests, end := frame(stream, func() int { return piece })
			if end != c.end || !bytes.Equal(passed, stream) {
				t.Errorf("%s %s: %d, not %d", c.words[0], c.words[len(c.words)-2][:1], end, c.end)
			}
			if c.end == nothing && len(requests) != 1 {
				t.Errorf("%s: %d requests after it", c.words[0], len(requests))
			}
		}
	}
}
