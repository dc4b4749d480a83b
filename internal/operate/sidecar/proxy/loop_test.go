package proxy

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// TestLeavesTheLoop: nothing is lost or comes twice where a connection leaves its loop because one side takes no more, with the replies that
// the client has not read, or with requests that the server has not read and one of a lock behind them; and where the end comes with the last bytes.
func TestLeavesTheLoop(t *testing.T) {
	server := redistest.Real(t)
	s, addr := start(t, server.Addr, echoing)
	const count = 3000
	value := strings.Repeat("v", 10_000) // short enough not to be spliced
	for name, commands := range map[string][]string{"the client": {"GET", "k"}, "the server": {"SET", "k", value}} {
		t.Run(name, func(t *testing.T) {
			server.Do("SET", "k", value)
			conn := dial(t, addr)
			ask(t, conn, "+PONG\r\n", "PING")
			require.Eventually(t, func() bool { return looped(s) == 1 }, 20*time.Second, time.Millisecond)
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
			require.Eventually(t, func() bool { return looped(s) == 0 }, 20*time.Second, time.Millisecond)
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
