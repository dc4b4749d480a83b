package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// source reads a connection. A plain socket is waited for without a buffer.
//
// One call of the runtime's poller lasts for as many reads as it can, because each call begins with a read that mostly finds nothing. For
// the same reason a read that was given less than it has room for is not tried again: more bytes wake it. The end does so too, but where
// it comes together with the last bytes only ends tells of it.
type source struct {
	conn  net.Conn
	raw   syscall.RawConn // nil with TLS
	tls   encrypted
	to    *buffer
	quick func() bool
	err   error
	step  func(fd uintptr) bool // made once, so that a read allocates nothing

	id    int64 // 0 where ends does not watch it
	of    *conn
	ended atomic.Bool // its end is to be read
	woken bool        // it has been told so
}

func newSource(conn net.Conn, of *conn) *source {
	s := &source{conn: conn, of: of}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			s.raw, s.step = raw, s.readAll
			of.server.ends.watch(s)
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
	for {
		s.to, s.quick, s.err = to, quick, nil
		if err := s.raw.Read(s.step); err == nil {
			return s.err
		} else if !s.onlyEnded(err) {
			return err
		}
	}
}

func (s *source) readAll(fd uintptr) bool {
	for {
		room := s.to.room()
		n, err := transfer(syscall.SYS_READ, fd, room)
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
		if n < len(room) && s.id != 0 && !s.ended.Load() {
			s.to.rest()
			return false
		}
	}
}

// onlyEnded tells that a wait was over because the end has come, which the next read finds.
func (s *source) onlyEnded(err error) bool {
	if s.woken || !s.ended.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	s.woken = true
	return s.conn.SetReadDeadline(time.Time{}) == nil
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
		s.n, _ = transfer(syscall.SYS_WRITE, fd, s.b)
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
