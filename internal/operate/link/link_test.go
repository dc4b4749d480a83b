package link_test

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/link"
)

// TestWhatIsNoCommand: a client that sends what is no RESP command loses its connection, and nobody else anything.
func TestWhatIsNoCommand(t *testing.T) {
	l, err := link.Start(listens(t), true)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	for _, sent := range []string{"PING\r\n", "*1\r\n$-5\r\n", "*x\r\n", "*1\r\n:4\r\n"} {
		c, err := net.Dial("tcp", l.Addr)
		require.NoError(t, err)
		_, err = c.Write([]byte(sent))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, c) // it ends
		require.NoError(t, c.Close())
	}
}

// listens returns an address where somebody takes connections, and says nothing.
func listens(t *testing.T) string {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return server.Addr().String()
}
