package proxy

import (
	"context"
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Two processes share an address by SO_REUSEPORT, which both sockets need. A listener gets the option after it has bound, so that it has
// the address for itself at first: a process that is to have it as well binds with the option.
//
// A connection belongs to one of the listeners from its first packet on, and is lost if that one closes before it accepts. So the process
// that comes second asks the kernel to give it all new connections.

// share lets another process listen on the same address.
func share(l net.Listener) {
	if raw, err := l.(syscall.Conn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = reuse(fd) })
	}
}

func reuse(fd uintptr) error {
	return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// listenBeside listens where another process does, and gets all new connections. Where a sandbox does not let it, connections may be lost that come in
// the last moment of the other listener.
func listenBeside(address string) (net.Listener, error) {
	config := plainTCP
	config.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = reuse(fd) })
		return errors.Join(failed, err)
	}
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	// The number of the listener that gets a connection, in the order in which they have come: the second one.
	second := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
	if raw, err := l.(syscall.Conn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: 1, Filter: &second})
		})
	}
	return l, nil
}
