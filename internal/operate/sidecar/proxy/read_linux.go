package proxy

import (
	"io"
	"net"
	"syscall"
)

// source reads a connection. A plain socket is waited for without a buffer, and one call of the runtime's poller lasts for as many reads
// as it can.
type source struct {
	conn  net.Conn
	raw   syscall.RawConn // nil with TLS
	tls   encrypted
	to    *buffer
	quick func() bool
	err   error
	step  func(fd uintptr) bool // made once, so that a read allocates nothing
}

func newSource(conn net.Conn) *source {
	s := &source{conn: conn}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			s.raw, s.step = raw, s.readAll
		}
	}
	return s
}

// read appends what comes to a buffer. It returns io.EOF at the end. Where quick is given, it may be called after each piece and says
// whether to read on; it must not wait for anything, because closing the connection waits for it.
func (s *source) read(to *buffer, quick func() bool) error {
	if s.raw == nil {
		return s.tls.read(s.conn, to)
	}
	if s.err != nil { // it has ended in a loop
		return s.err
	}
	s.to, s.quick = to, quick
	if err := s.raw.Read(s.step); err != nil {
		return err
	}
	return s.err
}

func (s *source) readAll(fd uintptr) bool {
	for {
		n, err := transfer(syscall.SYS_RECVFROM, fd, s.to.room())
		switch {
		case err == syscall.EAGAIN:
			s.to.rest()
			return false
		case err != 0:
			s.err = err
			return true
		case n == 0:
			s.err = io.EOF
			return true
		}
		if s.to.n += n; s.quick == nil || !s.quick() {
			return true
		}
	}
}

// sink writes what a plain socket takes at once.
type sink struct {
	conn net.Conn
	raw  syscall.RawConn // nil with TLS
	b    []byte
	n    int
	step func(fd uintptr) bool
}

func newSink(conn net.Conn) *sink {
	s := &sink{conn: conn}
	if c, ok := conn.(syscall.Conn); ok {
		s.raw, _ = c.SyscallConn()
	}
	s.step = func(fd uintptr) bool {
		s.n, _ = transfer(syscall.SYS_SENDTO, fd, s.b)
		return true
	}
	return s
}

// try returns how much of b was written.
func (s *sink) try(b []byte) int {
	if s.b, s.n = b, 0; s.raw != nil && len(b) > 0 {
		_ = s.raw.Write(s.step)
	}
	return max(s.n, 0)
}
