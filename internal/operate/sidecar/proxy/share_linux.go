package proxy

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Two processes share an address by SO_REUSEPORT, which both sockets need. A listener gets the option after it has bound, so that it has
// the address for itself at first: a process that is to have it as well binds with the option.
//
// A connection belongs to one of the listeners from its first packet on, and is lost if that one closes before it accepts. So the process
// that comes second asks the kernel to give it all new connections. When the first one ends, the kernel drops what would begin
// a connection there, if anything still does: a client sends that again after a second, and then it is for the other process.

// share lets another process listen on the same address. What accepted connections are to have, they get from the listener.
func share(l net.Listener) {
	control(l, func(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	if _, tcp := l.(*net.TCPListener); tcp {
		control(l, func(fd int) {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Idle/time.Second))
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAlive.Interval/time.Second))
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive.Count)
		})
	}
}

func init() { plainTCP.KeepAlive, plainTCP.KeepAliveConfig.Enable = -1, false }

// listenBeside listens where another process does, and gets all new connections.
func listenBeside(address string) (net.Listener, error) {
	config := plainTCP
	config.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(failed, err)
	}
	l, err := config.Listen(context.Background(), "tcp", address)
	if err == nil {
		// The number of the listener that gets a connection, in the order in which they have come: the second one.
		filter(l, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1})
	}
	return l, err
}

// noMore keeps new connections from a listener that accepts what has come, and then closes.
func noMore(l net.Listener) {
	const flags, syn, ack = 13, 0x02, 0x10
	filter(l, unix.SO_ATTACH_FILTER,
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flags},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: syn | ack},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: syn},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	)
}

// filter attaches a program to a listener of TCP. Where a sandbox does not let it, connections may be lost that come in the last
// moment of a listener.
func filter(l net.Listener, option int, program ...unix.SockFilter) {
	if _, tcp := l.(*net.TCPListener); tcp {
		control(l, func(fd int) {
			_ = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, option, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
		})
	}
}

func control(l net.Listener, f func(fd int)) {
	if raw, err := l.(syscall.Conn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
