package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// bareClient is the least that any client can do who is to have a key when an unmodified old client deletes
// it: it sleeps in a read of the socket that tells of the deletion, writes SET NX PX, and reads the answer.
// It knows no other waiter, no lost reply and no context.
type bareClient struct {
	ask, heard bareConn
}

func openBare(t testing.TB, addr string) client {
	c := &bareClient{dialBare(t, addr), dialBare(t, addr)}
	id := strings.Trim(string(c.heard.do("CLIENT", "ID")), ":\r\n")
	if subscribed := c.heard.do("SUBSCRIBE", "__redis__:invalidate"); len(subscribed) == 0 {
		t.Fatal("bare: SUBSCRIBE stays without an answer")
	}
	if on := c.ask.do("CLIENT", "TRACKING", "ON", "REDIRECT", id, "NOLOOP"); !bytes.HasPrefix(on, []byte("+")) {
		t.Fatalf("bare: CLIENT TRACKING: %q", on)
	}
	return clientOf(t, c.acquire, c.close)
}

func (c *bareClient) close() error {
	return errors.Join(syscall.Close(c.ask.fd), syscall.Close(c.heard.fd))
}

func (c *bareClient) acquire(ctx context.Context, key string) (release, error) {
	take := wire.Append(nil, "SET", key, token, "NX", "PX", strconv.FormatInt(ttl.Milliseconds(), 10))
	end, bounded := ctx.Deadline()
	for !bounded || time.Now().Before(end) { // the timer of ctx cannot fire while we sleep in a read
		if bytes.HasPrefix(c.ask.send(take), []byte("+OK")) {
			return func() error {
				if n := c.ask.do("DEL", key); string(n) != ":1\r\n" {
					return fmt.Errorf("bare: DEL: %q", n)
				}
				return nil
			}, nil
		}
		if held := c.ask.do("GET", key); !bytes.HasPrefix(held, []byte("$-1")) { // which has the next change told
			c.heard.read()
		}
	}
	return nil, context.DeadlineExceeded
}

// bareConn is a socket whose reads block a thread: the other client of the benchmark works on another one meanwhile.
type bareConn struct {
	fd  int
	buf []byte
}

func dialBare(t testing.TB, addr string) bareConn {
	to, err := net.ResolveTCPAddr("tcp4", addr)
	check(t, err)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	check(t, err)
	check(t, syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1))
	patience := syscall.NsecToTimeval(int64(100 * time.Millisecond)) // so that the end of the measurement is seen
	check(t, syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &patience))
	check(t, syscall.Connect(fd, &syscall.SockaddrInet4{Port: to.Port, Addr: to.AddrPort().Addr().As4()}))
	return bareConn{fd, make([]byte, 4096)}
}

func (c bareConn) do(words ...string) []byte { return c.send(wire.Append(nil, words...)) }

// send writes a command and waits for its answer; nothing comes back for one that stays away for ten seconds.
func (c bareConn) send(command []byte) (answer []byte) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(&command[0])), uintptr(len(command)))
	for tries := 0; len(answer) == 0 && tries < 100; tries++ {
		answer = c.read()
	}
	return answer
}

// read returns what one call reads: every reply here comes whole. It is nothing after 100 ms.
func (c bareConn) read() []byte {
	for {
		n, _, errno := syscall.Syscall(syscall.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&c.buf[0])), uintptr(len(c.buf)))
		switch errno {
		case 0:
			return c.buf[:n]
		case syscall.EINTR: // the Go runtime's signals
		default:
			return nil
		}
	}
}
