package proxy

import (
	"io"
	"strings"
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
