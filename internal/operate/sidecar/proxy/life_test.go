package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

func ask(t testing.TB, conn net.Conn, want string, words ...string) {
	t.Helper()
	_, err := conn.Write(wire.Append(nil, words...))
	require.NoError(t, err)
	assert.Equal(t, want, readUntil(t, conn, want))
}

func refused(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// TestServerAway kills the server: connections end as they would without a proxy, and nobody is let in until it is back.
func TestServerAway(t *testing.T) {
	server := redistest.Real(t)
	s, addr := start(t, server.Addr, passing)
	conn := dial(t, addr)
	ask(t, conn, "+PONG\r\n", "PING")
	server.Kill()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := conn.Read(make([]byte, 1))
	assert.True(t, err == io.EOF || isReset(err), "%v", err)
	require.Eventually(t, func() bool { return refused(addr) }, time.Minute, 5*time.Millisecond)
	assert.ErrorContains(t, s.Ready(), "cannot be reached")
	server.Start()
	require.Eventually(t, func() bool { return s.Ready() == nil }, time.Minute, 5*time.Millisecond)
	ask(t, dial(t, addr), "+PONG\r\n", "PING")
}

func isReset(err error) bool { return err != nil && strings.Contains(err.Error(), "reset") }

// TestHalfClose: a client that sends and ends its side gets all replies.
func TestHalfClose(t *testing.T) {
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, passing)
	conn := dial(t, addr)
	_, err := conn.Write(wire.Append(wire.Append(nil, "SET", "a", strings.Repeat("x", 200_000)), "GET", "a"))
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, "+OK\r\n$200000\r\n"+strings.Repeat("x", 200_000)+"\r\n", string(got))

	conn = dial(t, addr)
	_, err = io.WriteString(conn, "*1\r\nX\r\nPING\r\n")
	require.NoError(t, err)
	got, err = io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, "-ERR Protocol error: expected '$', got 'X'\r\n", string(got))
}

// TestTLSBothSides sends random streams through TLS on both sides, and through Unix sockets.
func TestTLSBothSides(t *testing.T) {
	certs := redistest.NewCertificates(t)
	direct, behind := redistest.Real(t), redistest.Shape{TLS: certs}.Start(t)
	end, err := endpoint.Parse(behind.URL(), endpoint.TLSFiles{CA: certs.CA, Cert: certs.Cert, Key: certs.Key})
	require.NoError(t, err)
	up, err := NewUpstream(context.Background(), end, nil)
	require.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(certs.Cert, certs.Key)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "sidecar.sock")
	s, addr := startWith(t, Options{Dial: up.Dial, Listeners: []Listener{
		{Address: "127.0.0.1:0", Rewriter: passing, TLS: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}},
		{Address: "unix:" + path, Rewriter: passing},
	}})
	assert.Equal(t, "unix:"+path, s.Addresses()[1])
	for seed := range uint64(6) {
		text := seeded(seed, 60)
		want := talk(t, direct.Addr, text, nil)
		conn, err := net.Dial("unix", path)
		if seed%2 == 0 {
			conn, err = tls.Dial("tcp", addr, certs.Client)
		}
		require.NoError(t, err)
		go func() { _, _ = conn.Write(text) }()
		got := readUntil(t, conn, "$4\r\ndone\r\n")
		require.True(t, want == got, "seed %d", seed)
		_ = conn.Close()
		direct.Do("FLUSHALL")
		behind.Do("FLUSHALL")
	}
}

// TestDrain: a command that does not end has until the end of the drain, and nobody new is let in.
func TestDrain(t *testing.T) {
	server := redistest.Real(t)
	opts := before(server.Addr, passing)
	opts.Drain = 300 * time.Millisecond
	s, cancel, ended := begin(t, opts)
	addr := s.Addresses()[0]
	_, err := dial(t, addr).Write(wire.Append(nil, "BLPOP", "list", "0"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return strings.Contains(fmt.Sprintf("%s", server.Do("INFO", "clients")), "blocked_clients:1")
	}, time.Minute, time.Millisecond)
	began := time.Now()
	cancel()
	require.Eventually(t, func() bool { return refused(addr) }, time.Minute, time.Millisecond)
	assert.Error(t, s.Ready())
	require.NoError(t, <-ended)
	assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
}

// TestCluster: a client sees one master of a cluster, and no cluster.
func TestCluster(t *testing.T) {
	c := redistest.NewCluster(t, 3, 0)
	end, err := endpoint.Parse(c.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	_, err = NewUpstream(context.Background(), end, []string{"lock.*"})
	assert.EqualError(t, err, "the keys lock.* lie on several of the cluster's 3 masters, and a client behind a sidecar sees one server")
	up, err := NewUpstream(context.Background(), end, []string{"lock.{orders}*", "other{orders}"})
	require.NoError(t, err)
	_, addr := startWith(t, Options{Dial: up.Dial, Follow: up.Follower(), Listeners: []Listener{{Address: "127.0.0.1:0", Rewriter: up.Alone(echoing)}}})
	conn := dial(t, addr)
	ask(t, conn, ":1\r\n", "SETNX", "a{orders}", "1")
	ask(t, conn, "$22\r\nSETNX lock.{orders}1 x\r\n", "SETNX", "lock.{orders}1", "x")
	ask(t, conn, "-ERR This instance has cluster support disabled\r\n", "cluster", "slots")
	_, err = conn.Write(wire.Append(nil, "GET", "elsewhere"))
	require.NoError(t, err)
	assert.Contains(t, readUntil(t, conn, "\r\n"), "-MOVED ")

	// Its slot moves: the client goes along as the user that it is, and those who are idle are left alone.
	for _, s := range c.Masters {
		s.Do("ACL", "SETUSER", "billing", "on", ">secret", "~*", "+@all")
	}
	_, addr = startWith(t, Options{Dial: up.Dial, Follow: up.Follower(), Listeners: []Listener{{Address: "127.0.0.1:0", Rewriter: up.Alone(passing)}}})
	conn = dial(t, addr)
	idle := dial(t, addr)
	for _, conn := range []net.Conn{conn, idle} {
		ask(t, conn, "+OK\r\n", "auth", "billing", "secret")
	}
	ask(t, conn, ":1\r\n", "SETNX", "lock.{orders}1", "y")
	slot := protocol.Slot("{orders}")
	watching, stop := context.WithCancel(t.Context())
	watched := make(chan string, 10)
	var running sync.WaitGroup
	running.Go(func() { up.Watch(watching, 10*time.Millisecond, func(to string) { watched <- to }) })
	for i := range 4 {
		m := c.Migrate(slot, c.Masters[i%2])
		ask(t, conn, ":0\r\n", "SETNX", "lock.{orders}1", "x")
		m.Keys(100)
		m.Finish()
		ask(t, conn, ":0\r\n", "SETNX", "lock.{orders}1", "x")
		ask(t, conn, "$7\r\nbilling\r\n", "ACL", "WHOAMI")
	}
	ask(t, idle, ":0\r\n", "SETNX", "lock.{orders}1", "x")
	ask(t, idle, "$7\r\nbilling\r\n", "ACL", "WHOAMI")
	stop()
	running.Wait()
	assert.Empty(t, watched, "the node that has given the slot away says so itself: no connection has to end")
}

func TestOneSlot(t *testing.T) {
	for patterns, want := range map[string]bool{
		"lock.*": false, "lock.a": true, "lock.a lock.b": false, "{a}*": true, "*{a}": false, "{a*}x": false, "{}*": false, "{a}* x{a}?": true, "{a}* {b}*": false, "{a*": false,
		"lock.[ab]": false, "{[ab]}x": false, `lock.\*`: false, `\{a\}x`: false, `{a}[xy] {a}\*`: true,
	} {
		_, one := oneSlot(strings.Fields(patterns))
		assert.Equal(t, want, one, patterns)
	}
}

// TestSentinels: when the sentinels name another master, connections end, and new ones lead to it.
func TestSentinels(t *testing.T) {
	group := redistest.NewSentinels(t, 1, 3)
	end, err := endpoint.Parse(group.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	up, err := NewUpstream(context.Background(), end, []string{"lock.*"})
	require.NoError(t, err)
	s, addr := startWith(t, Options{Dial: up.Dial, Listeners: []Listener{{Address: "127.0.0.1:0", Rewriter: passing}}})
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { up.Watch(ctx, 50*time.Millisecond, func(to string) { s.CutAll("the master is " + to) }) })

	conn := dial(t, addr)
	ask(t, conn, "+OK\r\n", "SET", "a", "1")
	before := group.Master()
	before.Kill()
	after := group.AwaitFailover(before)
	written := func(value string) bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		defer conn.Close()
		_, err = conn.Write(wire.Append(nil, "SET", "a", value))
		var b [5]byte
		_, _ = io.ReadFull(conn, b[:])
		return err == nil && string(b[:]) == "+OK\r\n"
	}
	require.Eventually(t, func() bool { return written("2") }, time.Minute, 10*time.Millisecond)
	assert.Equal(t, "2", after.Value("a"))
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err = conn.Read(make([]byte, 1))
	assert.True(t, err == io.EOF || isReset(err), "the connection to the old master has ended: %v", err)
}

// TestServerLoading: a server that reads its data lets clients in, and says so itself.
func TestServerLoading(t *testing.T) {
	server := redistest.Real(t, "--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")
	for i := range 20 {
		server.Do("SET", fmt.Sprint("k", i), strings.Repeat("v", 2000))
	}
	server.Do("SAVE")
	_, addr := start(t, server.Addr, echoing)
	server.Kill()
	var starting sync.WaitGroup
	starting.Go(server.Start) // returns when all is read
	defer starting.Wait()
	said := ""
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = conn.Write(wire.Append(nil, "SETNX", "a", "1"))
		said, _ = bufio.NewReader(conn).ReadString('\n')
		return strings.HasPrefix(said, "-LOADING ")
	}, time.Minute, 5*time.Millisecond)
}

// looped is how many connections a loop serves.
func looped(s *Server) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.looped.Load() {
			n++
		}
	}
	return n
}

// A connection has no goroutine while a loop serves it. It ends with its server.
func TestRests(t *testing.T) {
	server := redistest.Real(t)
	s, addr := start(t, server.Addr, passing)
	idle, waits, listens := dial(t, addr), dial(t, addr), dial(t, addr)
	ask(t, idle, "+PONG\r\n", "PING")
	ask(t, listens, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", "SUBSCRIBE", "c")
	_, err := waits.Write(wire.Append(nil, "BLPOP", "list", "0"))
	require.NoError(t, err)
	resting := func() bool { return looped(s) == 3 }
	require.Eventually(t, resting, time.Minute, time.Millisecond)
	server.Do("RPUSH", "list", "v")
	assert.Equal(t, "*2\r\n$4\r\nlist\r\n$1\r\nv\r\n", readUntil(t, waits, "v\r\n"))
	server.Do("PUBLISH", "c", "m")
	assert.Contains(t, readUntil(t, listens, "m\r\n"), "message")
	ask(t, idle, "+PONG\r\n", "PING")
	require.True(t, resting(), "and is in its loop")
	server.Kill()
	for _, conn := range []net.Conn{idle, waits, listens} {
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := conn.Read(make([]byte, 1))
		assert.True(t, err == io.EOF || isReset(err), "%v", err)
	}
	require.Eventually(t, func() bool { return s.connections() == 0 }, time.Minute, time.Millisecond)
}
