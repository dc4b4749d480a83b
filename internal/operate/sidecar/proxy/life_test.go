package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

func ask(t testing.TB, conn net.Conn, want string, words ...string) {
	t.Helper()
	_, err := conn.Write(AppendCommand(nil, words...))
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
	require.Eventually(t, func() bool { return refused(addr) }, 10*time.Second, 5*time.Millisecond)
	assert.ErrorContains(t, s.Ready(), "cannot be reached")
	server.Start()
	require.Eventually(t, func() bool { return s.Ready() == nil }, 10*time.Second, 5*time.Millisecond)
	ask(t, dial(t, addr), "+PONG\r\n", "PING")
}

func isReset(err error) bool { return err != nil && strings.Contains(err.Error(), "reset") }

// TestServersWords: what the server refuses, the client reads in the server's words.
func TestServersWords(t *testing.T) {
	server := redistest.Real(t, "--requirepass", "pw")
	_, addr := start(t, server.Addr, echoing)
	conn := dial(t, addr)
	ask(t, conn, "-NOAUTH Authentication required.\r\n", "SETNX", "lock.a", "1")
	server.Do("ACL", "SETUSER", "joe", "on", ">pw", "~*", "+@all", "-echo")
	ask(t, conn, "+OK\r\n", "AUTH", "joe", "pw")
	ask(t, conn, "-NOPERM this user has no permissions to run the 'echo' command\r\n", "SETNX", "lock.a", "1")
	server.Do("CONFIG", "SET", "maxmemory", "1")
	ask(t, conn, "-OOM command not allowed when used memory > 'maxmemory'.\r\n", "SETNX", "a", "1")
	server.Do("CONFIG", "SET", "maxmemory", "0", "min-replicas-to-write", "1")
	ask(t, conn, "-NOREPLICAS Not enough good replicas to write.\r\n", "SETNX", "a", "1")
	server.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	server.Do("REPLICAOF", "127.0.0.1", "1")
	conn = dial(t, addr)
	ask(t, conn, "+OK\r\n", "AUTH", "joe", "pw")
	ask(t, conn, "-READONLY You can't write against a read only replica.\r\n", "SETNX", "a", "1")
}

// TestHalfClose: a client that sends and ends its side gets all replies.
func TestHalfClose(t *testing.T) {
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, passing)
	conn := dial(t, addr)
	_, err := conn.Write(AppendCommand(AppendCommand(nil, "SET", "a", strings.Repeat("x", 200_000)), "GET", "a"))
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

// TestSubscriberAndBlocked: replies that nobody asked for, and late ones, come through.
func TestSubscriberAndBlocked(t *testing.T) {
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, passing)
	subscriber, blocked, other := dial(t, addr), dial(t, addr), dial(t, addr)
	ask(t, subscriber, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", "SUBSCRIBE", "c")
	_, err := blocked.Write(AppendCommand(nil, "BLPOP", "l", "0"))
	require.NoError(t, err)
	ask(t, other, ":1\r\n", "PUBLISH", "c", "m")
	assert.Equal(t, "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", readUntil(t, subscriber, "m\r\n"))
	ask(t, other, ":1\r\n", "RPUSH", "l", "v")
	assert.Equal(t, "*2\r\n$1\r\nl\r\n$1\r\nv\r\n", readUntil(t, blocked, "v\r\n"))
}

// TestTLSBothSides sends random streams through TLS on both sides, and through Unix sockets.
func TestTLSBothSides(t *testing.T) {
	certs := redistest.NewCertificates(t)
	direct, behind := redistest.Real(t), redistest.TLS(t, certs)
	end, err := endpoint.Parse(behind.URL(), endpoint.TLSFiles{CA: certs.CA, Cert: certs.ClientCert, Key: certs.ClientKey})
	require.NoError(t, err)
	up, err := NewUpstream(context.Background(), end, nil)
	require.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(certs.ServerCert, certs.ServerKey)
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

// TestBigWord sends half a gigabyte, the most that Redis takes in one word, in flat memory.
func TestBigWord(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves it out: it sends half a gigabyte")
	}
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, passing)
	conn := dial(t, addr)
	const size = 512 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	go func() {
		_, _ = io.WriteString(conn, "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$536870912\r\n")
		piece := make([]byte, 1<<20)
		for range size / len(piece) {
			_, _ = conn.Write(piece)
		}
		_, _ = io.WriteString(conn, "\r\n*2\r\n$6\r\nSTRLEN\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n")
	}()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	head := "+OK\r\n:536870912\r\n$536870912\r\n"
	got := make([]byte, len(head))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, head, string(got))
	n, err := io.CopyN(io.Discard, conn, size+2)
	require.NoError(t, err)
	assert.EqualValues(t, size+2, n)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "bytes allocated")
}

// TestDrain: connections go on for a while after the end began, and nobody new is let in.
func TestDrain(t *testing.T) {
	server := redistest.Real(t)
	s := New(Options{Listeners: []Listener{{Address: "127.0.0.1:0", Rewriter: passing}}, Drain: 300 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Dial: func(context.Context) (net.Conn, error) { return net.Dial("tcp", server.Addr) }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	require.Eventually(t, func() bool { return s.Ready() == nil }, 10*time.Second, time.Millisecond)
	addr := s.Addresses()[0]
	conn := dial(t, addr)
	ask(t, conn, "+PONG\r\n", "PING")
	began := time.Now()
	cancel()
	require.Eventually(t, func() bool { return refused(addr) }, 10*time.Second, time.Millisecond)
	assert.Error(t, s.Ready())
	ask(t, conn, "+PONG\r\n", "PING")
	require.NoError(t, <-ended)
	assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
}

// TestHandover replaces the process under load: no connection is refused, and none is cut.
func TestHandover(t *testing.T) {
	server := redistest.Real(t)
	path := filepath.Join(t.TempDir(), "heir.sock")
	address := "127.0.0.1:0"
	begin := func() (*Server, chan error, context.CancelFunc) {
		s := New(Options{Listeners: []Listener{{Address: address, Rewriter: passing}}, Drain: time.Second, Heir: path, Log: slog.New(slog.DiscardHandler),
			Dial: func(context.Context) (net.Conn, error) { return net.Dial("tcp", server.Addr) }})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		require.Eventually(t, func() bool { return s.Ready() == nil }, 10*time.Second, time.Millisecond)
		return s, ended, cancel
	}
	s, ended, cancel := begin()
	addr := s.Addresses()[0]
	long := dial(t, addr)
	ask(t, long, "+PONG\r\n", "PING")

	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					assert.Positive(t, n)
					return
				default:
				}
				conn, err := net.Dial("tcp", addr)
				if !assert.NoError(t, err) {
					return
				}
				_, err = conn.Write(AppendCommand(nil, "PING"))
				assert.NoError(t, err)
				var b [7]byte
				_, err = io.ReadFull(conn, b[:])
				assert.NoError(t, err)
				_ = conn.Close()
			}
		})
	}
	for range 3 {
		require.Eventually(t, func() bool { _, err := os.Stat(path); return err == nil }, 10*time.Second, time.Millisecond)
		next, nextEnded, nextCancel := begin()
		assert.Equal(t, addr, next.Addresses()[0])
		require.Eventually(t, func() bool { return s.Ready() != nil }, 10*time.Second, time.Millisecond)
		ask(t, long, "+PONG\r\n", "PING")
		_ = long.Close()
		require.NoError(t, <-ended, "it ends with its last connection")
		cancel()
		s, ended, cancel = next, nextEnded, nextCancel
		long = dial(t, addr)
	}
	close(stop)
	load.Wait()
	_ = long.Close()
	cancel()
	require.NoError(t, <-ended)
	assert.True(t, refused(addr))
	_, err := os.Stat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestNothingIsLeft counts goroutines and descriptors after many connections.
func TestNothingIsLeft(t *testing.T) {
	server := redistest.Real(t)
	s, addr := start(t, server.Addr, passing)
	descriptors := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(list)
	}
	count := 10_000
	if testing.Short() {
		count = 500
	}
	fds, goroutines := descriptors(), runtime.NumGoroutine()
	var clients sync.WaitGroup
	for c := range 20 {
		clients.Go(func() {
			for i := range count / 20 {
				conn, err := net.Dial("tcp", addr)
				if !assert.NoError(t, err) {
					return
				}
				_, _ = conn.Write(AppendCommand(nil, "PING"))
				switch (i + c) % 4 {
				case 0:
					reset(conn)
				case 1:
					var b [7]byte
					_, _ = io.ReadFull(conn, b[:])
					_ = conn.Close()
				case 2:
					_ = conn.Close()
				default:
					_ = conn.(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, conn)
					_ = conn.Close()
				}
			}
		})
	}
	clients.Wait()
	require.Eventually(t, func() bool { return s.connections() == 0 }, 20*time.Second, 10*time.Millisecond)
	assert.Eventually(t, func() bool { return descriptors() <= fds+3 && runtime.NumGoroutine() <= goroutines+3 }, 20*time.Second, 20*time.Millisecond,
		"%d and %d descriptors, %d and %d goroutines", fds, descriptors(), goroutines, runtime.NumGoroutine())
}

// another starts a proxy in a process of its own, by way of a wrapper if there is one.
func another(t *testing.T, server string, wrapper ...string) (pid int, addr string) {
	t.Helper()
	args := append(wrapper, os.Args[0])
	command := exec.Command(args[0], args[1:]...)
	command.Env = append(os.Environ(), proxyFor+"="+server)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	addr, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return command.Process.Pid, strings.TrimSpace(addr)
}

// More clients than there are descriptors for are told so, as by a server that is full. The others are served, and clients can connect
// again when some have gone: the proxy keeps its listener and what it needs for itself.
func TestMoreClientsThanDescriptors(t *testing.T) {
	server := redistest.Real(t)
	_, addr := another(t, server.Addr, "sh", "-c", `ulimit -n 200 && exec "$0"`)
	const full = "-ERR max number of clients reached\r\n"
	ping := func(conn net.Conn) string {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(conn, "PING\r\n")
		line, _ := bufio.NewReader(conn).ReadString('\n')
		return line
	}
	var served []net.Conn
	for range 150 { // 75 at most, and all at once
		served = append(served, dial(t, addr))
	}
	refused := 0
	for i, conn := range served {
		switch answer := ping(conn); answer {
		case "+PONG\r\n":
		case full:
			refused++
			served[i] = nil
		default:
			require.Fail(t, "neither served nor told", "%q", answer)
		}
	}
	assert.Equal(t, 150-(200-kept)/2, refused)
	served = slices.DeleteFunc(served, func(c net.Conn) bool { return c == nil })
	for _, conn := range served[1:] {
		assert.Equal(t, "+PONG\r\n", ping(conn))
		_ = conn.Close()
	}
	redistest.Await(t, "a free place", 5*time.Second, func() bool { return ping(dial(t, addr)) == "+PONG\r\n" })
	assert.Equal(t, "+PONG\r\n", ping(served[0]))
}

// TestIdleMemory: 10,000 idle connections cost less than 150 MiB. The proxy is a process of its own.
func TestIdleMemory(t *testing.T) {
	redistest.Unraced(t)
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	count := min(10_000, int(limit.Cur)/2-500)
	server := redistest.Real(t, "--maxclients", "20000")
	pid, addr := another(t, server.Addr)
	for range count {
		conn := dial(t, addr)
		_, err := io.WriteString(conn, "PING\r\n")
		require.NoError(t, err)
		var pong [7]byte
		_, err = io.ReadFull(conn, pong[:])
		require.NoError(t, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	var kib int
	_, err = fmt.Sscan(after, &kib)
	require.NoError(t, err)
	t.Logf("%d idle connections: %d MiB", count, kib>>10)
	assert.Less(t, kib, 150<<10*count/10_000)
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
	_, addr := startWith(t, Options{Dial: up.Dial, Listeners: []Listener{{Address: "127.0.0.1:0", Rewriter: Alone(echoing)}}})
	conn := dial(t, addr)
	ask(t, conn, ":1\r\n", "SETNX", "a{orders}", "1")
	ask(t, conn, "$22\r\nSETNX lock.{orders}1 x\r\n", "SETNX", "lock.{orders}1", "x")
	ask(t, conn, "-ERR This instance has cluster support disabled\r\n", "cluster", "slots")
	_, err = conn.Write(AppendCommand(nil, "GET", "elsewhere"))
	require.NoError(t, err)
	assert.Contains(t, readUntil(t, conn, "\r\n"), "-MOVED ")
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

func TestAdmin(t *testing.T) {
	server := redistest.Real(t)
	s, addr := start(t, server.Addr, echoing)
	web := httptest.NewServer(Handler(s.Ready, s))
	defer web.Close()
	get := func(path string) (int, string) {
		reply, err := web.Client().Get(web.URL + path)
		require.NoError(t, err)
		defer reply.Body.Close()
		text, err := io.ReadAll(reply.Body)
		require.NoError(t, err)
		return reply.StatusCode, string(text)
	}
	conn := dial(t, addr)
	ask(t, conn, "$14\r\nSETNX lock.a 1\r\n", "SETNX", "lock.a", "1")
	code, text := get("/metrics")
	assert.Equal(t, http.StatusOK, code)
	for _, line := range []string{"lockmigrate_sidecar_connections 1", "lockmigrate_sidecar_upstream_up 1", `lockmigrate_sidecar_requests_total{verdict="translated"} 1`} {
		assert.Contains(t, text, line+"\n")
	}
	code, _ = get("/readyz")
	assert.Equal(t, http.StatusOK, code)
	server.Kill()
	require.Eventually(t, func() bool { code, _ := get("/readyz"); return code == http.StatusServiceUnavailable }, 10*time.Second, 5*time.Millisecond)
	code, _ = get("/healthz")
	assert.Equal(t, http.StatusOK, code)
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
		_, err = conn.Write(AppendCommand(nil, "SET", "a", value))
		var b [5]byte
		_, _ = io.ReadFull(conn, b[:])
		return err == nil && string(b[:]) == "+OK\r\n"
	}
	require.Eventually(t, func() bool { return written("2") }, 20*time.Second, 10*time.Millisecond)
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
		_, _ = conn.Write(AppendCommand(nil, "SETNX", "a", "1"))
		said, _ = bufio.NewReader(conn).ReadString('\n')
		return strings.HasPrefix(said, "-LOADING ")
	}, 20*time.Second, 5*time.Millisecond)
}
