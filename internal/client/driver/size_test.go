package driver

import (
	"bytes"
	"context"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// written keeps what is written to it.
type written struct {
	net.Conn
	bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) { return w.Buffer.Write(p) }
func (w *written) Read(p []byte) (int, error)  { return w.Buffer.Read(p) }
func (w *written) Close() error                { return nil }

// TestSize: a call takes no more bytes on the wire than it says, and not many fewer. A caller writes only while few are unanswered.
func TestSize(t *testing.T) {
	for name, r := range map[string]wire.Request{
		"none":    wire.Plain("PING"),
		"SET":     wire.Plain("SET", "orders", "5123456789012345678", "NX", "PX", int64(30000)),
		"EVALSHA": wire.Plain("EVALSHA", scripts.CompareDel.ByDigest, 1, "orders", "5123456789012345678"),
		"EVAL":    wire.Plain("EVAL", scripts.BridgeAcquire.Source, 1, "orders"),
		"bytes":   wire.Plain("SET", []byte("orders"), []byte(strings.Repeat("v", 999_999))),
		"numbers": wire.Plain("N", 0, int64(math.MinInt64), int64(math.MaxInt64), -1),
		"empty":   wire.Plain("SET", "", ""),
	} {
		var w written
		conn := redis.NewConn(&w, 0, 0)
		require.NoError(t, conn.Send(r.Name, r.Args()...))
		require.NoError(t, conn.Flush())
		c := ping()
		c.request = r
		assert.GreaterOrEqual(t, c.size(), w.Len(), name)
		assert.LessOrEqual(t, c.size(), w.Len()+10+20*len(r.Args()), name)
	}
}

// TestCallersDoNotWaitForAWrite: a server that reads nothing fills the socket's buffers, and the writer is stuck. Callers are not,
// and leave when their contexts end.
func TestCallersDoNotWaitForAWrite(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	l := open(t, nil, func(o *SharedOptions) {
		o.ReplyTimeout = time.Hour
		o.Dial = func(ctx context.Context) (redis.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
			if err != nil {
				return nil, err
			}
			server, err := listener.Accept()
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = server.Close() })
			_ = server.(*net.TCPConn).SetReadBuffer(ownBytes)
			_ = conn.(*net.TCPConn).SetWriteBuffer(ownBytes)
			return redis.NewConn(rawconn.Quiet(conn), 0, 0), nil
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	value := strings.Repeat("v", 500_000) // more than the buffers hold
	left := make(chan error, 20)
	for range cap(left) {
		go func() {
			_, err := l.Do(ctx, protocol.Command{Op: protocol.GetSet, Key: "k", Value: value})
			left <- err
		}()
	}
	k := func() *link { return l.only.link.Load() }
	redistest.Await(t, "everybody has asked", func() bool {
		if k() == nil {
			return false
		}
		k().mu.Lock()
		defer k().mu.Unlock()
		return k().tail-k().head == uint32(cap(left)) && k().writing
	})
	cancel()
	for range cap(left) {
		select {
		case err := <-left:
			assert.ErrorIs(t, err, context.Canceled)
		case <-time.After(10 * time.Second):
			t.Fatal("a caller does not hear its context")
		}
	}
}
