package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
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
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// TestBigWord sends half a gigabyte, the most that Redis takes in one word, in flat memory: of the proxy's whole process, and with all that this one allocates.
func TestBigWord(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: it sends half a gigabyte; `make test` does")
	}
	server := redistest.Real(t)
	t.Run("allocated", func(t *testing.T) {
		redistest.Unraced(t) // it drops a part of what a sync.Pool is given
		_, addr := start(t, server.Addr, passing)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		sendBigWord(t, dial(t, addr))
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "bytes allocated")
	})
	t.Run("process", func(t *testing.T) {
		pid, addr := another(t, server.Addr)
		conn := dial(t, addr)
		_, _ = io.WriteString(conn, "*1\r\n$4\r\nPING\r\n")
		readUntil(t, conn, "+PONG\r\n")
		before := memory(t, pid, "VmRSS:")
		sendBigWord(t, conn)
		assert.Less(t, memory(t, pid, "VmHWM:")-before, 16<<10, "KiB more than before, at most")
	})
}

func sendBigWord(t *testing.T, conn net.Conn) {
	const size = 512 << 20
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
}

// memory reads how many KiB of a kind a process has.
func memory(t *testing.T, pid int, kind string) (kib int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(status), kind)
	_, err = fmt.Sscan(after, &kib)
	require.NoError(t, err)
	t.Logf("%s %d KiB", kind, kib)
	return kib
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
				_, _ = conn.Write(wire.Append(nil, "PING"))
				switch (i + c) % 4 {
				case 0:
					newPeer(conn).reset()
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
	require.Eventually(t, func() bool { return s.connections() == 0 }, time.Minute, 10*time.Millisecond)
	assert.Eventually(t, func() bool { return descriptors() <= fds+3 && runtime.NumGoroutine() <= goroutines+3 }, time.Minute, 20*time.Millisecond,
		"%d and %d descriptors, %d and %d goroutines", fds, descriptors(), goroutines, runtime.NumGoroutine())
}

// another starts a proxy in a process of its own, by way of a wrapper if there is one.
func another(t testing.TB, server string, wrapper ...string) (pid int, addr string) {
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
	redistest.Await(t, "a free place", func() bool { return ping(dial(t, addr)) == "+PONG\r\n" })
	assert.Equal(t, "+PONG\r\n", ping(served[0]))
}

// TestIdleMemory: 5,000 idle connections cost at most 40 MiB. The proxy is a process of its own.
func TestIdleMemory(t *testing.T) {
	redistest.Unraced(t)
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	count := min(5000, int(limit.Cur)/2-500)
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
	kib := memory(t, pid, "VmRSS:")
	t.Logf("%d idle connections: %d MiB", count, kib>>10)
	assert.LessOrEqual(t, kib, 20<<10+20<<10*count/5000)
}
