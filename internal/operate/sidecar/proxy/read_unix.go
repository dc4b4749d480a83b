//go:build unix

package proxy

import (
	"io"
	"math"
	"net"
	"syscall"
)

// source reads a connection. A plain socket is waited for without a buffer.
type source struct {
	conn net.Conn
	raw  syscall.RawConn // nil with TLS
	tls  encrypted
	to   *buffer
	got  int
	err  error
	step func(fd uintptr) bool // made once, so that a read allocates nothing
}

func newSource(conn net.Conn) *source {
	s := &source{conn: conn}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			s.raw, s.step = raw, s.once
		}
	}
	return s
}

// read appends what comes to a buffer. It returns io.EOF at the end.
func (s *source) read(to *buffer) error {
	if s.raw == nil {
		return s.tls.read(s.conn, to)
	}
	s.to, s.got, s.err = to, 0, nil
	if err := s.raw.Read(s.step); err != nil {
		return err
	}
	switch {
	case s.err != nil:
		return s.err
	case s.got == 0:
		return io.EOF
	}
	to.n += s.got
	return nil
}

func (s *source) once(fd uintptr) bool {
	room := s.to.room()
	for {
		n, err := syscall.Read(int(fd), room)
		switch err {
		case nil:
			s.got = n
			return true
		case syscall.EINTR:
		case syscall.EAGAIN:
			s.to.rest()
			return false
		default:
			s.err = err
			return true
		}
	}
}

// descriptorsAtMost is how many files this process may have open.
func descriptorsAtMost() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt32
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
