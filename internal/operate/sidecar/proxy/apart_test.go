package proxy

import (
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

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
