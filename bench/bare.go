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
	"time"
	"unsafe"
)

// bareClient is the least that any client can do who is to have a key when an unmodified old client deletes
// it: it sleeps in a read of the socket that tells of the deletion, writes SET NX PX, and reads the answer.
// It knows no other waiter, no lost reply and no context.
type bareClient struct {
	ask, heard bareConn
}

func openBare(addr string) (client, error) {
	ask, err := dialBare(addr)
	if err != nil {
		return nil, err
	}
	heard, err := dialBare(addr)
	if err != nil {
		return nil, err
	}
	c := &bareClient{ask, heard}
	id := strings.Trim(string(heard.do("CLIENT", "ID")), ":\r\n")
	if subscribed := heard.do("SUBSCRIBE", "__redis__:invalidate"); len(subscribed) == 0 {
		return nil, fmt.Errorf("bare: SUBSCRIBE stays without an answer")
	}
	if on := ask.do("CLIENT", "TRACKING", "ON", "REDIRECT", id, "NOLOOP"); !bytes.HasPrefix(on, []byte("+")) {
		return nil, fmt.Errorf("bare: CLIENT TRACKING: %q", on)
	}
	return clientOf(c.acquire, c.close), nil
}

func (c *bareClient) close() error {
	return errors.Join(syscall.Close(c.ask.fd), syscall.Close(c.heard.fd))
}

func (c *bareClient) acquire(ctx context.Context, key string) (release, error) {
	take := respOf("SET", key, token, "NX", "PX", strconv.FormatInt(ttl.Milliseconds(), 10))
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

func dialBare(addr string) (bareConn, error) {
	_, digits, err := net.SplitHostPort(addr)
	if err != nil {
		return bareConn{}, err
	}
	port, err := strconv.Atoi(digits)
	if err != nil {
		return bareConn{}, err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	}
	if err == nil { // so that the end of the measurement is seen
		patience := syscall.NsecToTimeval(int64(100 * time.Millisecond))
		err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &patience)
	}
	if err == nil {
		err = syscall.Connect(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	return bareConn{fd, make([]byte, 4096)}, err
}

func (c bareConn) do(words ...string) []byte { return c.send(respOf(words...)) }

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

func respOf(words ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.Bytes()
}
