package rawconn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// longest is how many bytes a call moves that skips the runtime's bookkeeping: it holds a processor, and puts
// off a garbage collection, for as long as the kernel takes to copy them.
const longest = 16 << 10

// quietConn reads and writes by itself, and leaves all waiting to the connection below.
type quietConn struct {
	net.Conn
	raw         syscall.RawConn
	read, write transfer
	deadlines   sync.Mutex  // held while one is set
	bounded     atomic.Bool // a read has, or may have, a deadline
}

// transfer is one direction; rest, done and err are those of a call, which holds mu.
type transfer struct {
	op    string
	trap  uintptr
	ready func(step func(fd uintptr) bool) error // the connection's: calls step whenever it may be ready
	step  func(fd uintptr) bool                  // made once, as ready is, so that a call allocates nothing

	mu   sync.Mutex
	rest []byte // what is still to be moved
	done int
	err  syscall.Errno
	look look
}

// look lets a read try again where it found nothing.
type look struct {
	due    func() time.Duration // nil: never
	since  time.Time            // when this read found nothing; zero while it has not
	bound  time.Duration        // how long this read looks
	misses int                  // reads in a row that looked for nothing
	skip   int                  // reads to come that do not look
}

func expect(conn net.Conn, due func() time.Duration) {
	if q, ok := conn.(*quietConn); ok {
		q.read.look.due = due
	}
}

// again tells a read that found nothing whether to try once more.
func (l *look) again() bool {
	switch {
	case l.due == nil:
		return false
	case l.since.IsZero() && l.skip > 0:
		l.skip--
		return false
	case l.since.IsZero():
		if l.bound = l.due(); l.bound <= 0 {
			return false
		}
		l.since = time.Now()
		return true
	}
	took := time.Since(l.since)
	if took < l.bound {
		_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // the server may be waiting for this processor
		return true
	}
	l.since = time.Time{}
	l.missed(took)
	return false
}

// found ends the look of a read.
func (l *look) found() {
	if l.since.IsZero() {
		return
	}
	if took := time.Since(l.since); took > l.bound {
		l.missed(took)
		return
	}
	l.misses = 0
}

// missed has the next reads sleep at once: twice as many after each look in vain. Where others want the processor, a look can
// cost a time slice: then it is many at once.
func (l *look) missed(took time.Duration) {
	const many, most = 8, 12
	if l.misses++; took > 8*l.bound {
		l.misses = max(l.misses, many)
	}
	l.misses = min(l.misses, most)
	if l.misses > 1 {
		l.skip = 1 << l.misses
	}
}

func quiet(conn net.Conn) net.Conn {
	switch c := conn.(type) {
	case *net.TCPConn:
	case *net.UnixConn:
		if c.LocalAddr().Network() != "unix" { // a datagram of no bytes is not an end
			return conn
		}
	default:
		return conn
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return conn
	}
	q := &quietConn{Conn: conn, raw: raw}
	q.bounded.Store(true) // conn may have a deadline already, which nobody can ask it for
	q.read.op, q.read.trap, q.read.ready, q.read.step = "read", syscall.SYS_READ, raw.Read, q.read.once
	q.write.op, q.write.trap, q.write.ready, q.write.step = "write", syscall.SYS_WRITE, raw.Write, q.write.all
	return q
}

// SyscallConn implements syscall.Conn.
func (q *quietConn) SyscallConn() (syscall.RawConn, error) { return q.raw, nil }

// SetReadDeadline spares the runtime's poller what redigo does before every read: it takes a deadline away
// that was never set.
func (q *quietConn) SetReadDeadline(t time.Time) error {
	if t.IsZero() && !q.bounded.Load() {
		return nil
	}
	q.deadlines.Lock()
	defer q.deadlines.Unlock()
	err := q.Conn.SetReadDeadline(t)
	q.bounded.Store(err != nil || !t.IsZero())
	return err
}

// SetDeadline implements net.Conn.
func (q *quietConn) SetDeadline(t time.Time) error {
	q.deadlines.Lock()
	defer q.deadlines.Unlock()
	q.bounded.Store(true)
	return q.Conn.SetDeadline(t)
}

func (q *quietConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := q.run(&q.read, p[:min(len(p), longest)])
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (q *quietConn) Write(p []byte) (int, error) {
	if len(p) > longest {
		q.write.mu.Lock() // the bytes of two writes must not mix
		defer q.write.mu.Unlock()
		return q.Conn.Write(p)
	}
	return q.run(&q.write, p)
}

// run moves p, or as much of it as there is.
func (q *quietConn) run(t *transfer, p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest, t.done, t.err, t.look.since = p, 0, 0, time.Time{}
	err := t.ready(t.step)
	t.rest = nil
	if err == nil && t.err == 0 {
		return t.done, nil
	}
	return t.done, q.failed(t, err)
}

// failed is the error of a call as net would have it.
func (q *quietConn) failed(t *transfer, err error) error {
	var raw *net.OpError
	switch {
	case t.err != 0:
		err = os.NewSyscallError(t.op, t.err)
	case errors.As(err, &raw): // says raw-read or raw-write
		err = raw.Err
	}
	local := q.LocalAddr()
	return &net.OpError{Op: t.op, Net: local.Network(), Source: local, Addr: q.RemoteAddr(), Err: err}
}

// once moves as much as one call does, and tells whether that was anything.
func (t *transfer) once(fd uintptr) bool {
	for {
		synchronize() // before a write
		n, _, err := syscall.RawSyscall(t.trap, fd, uintptr(unsafe.Pointer(&t.rest[0])), uintptr(len(t.rest)))
		switch err {
		case 0:
			synchronize() // after a read
			t.look.found()
			t.done += int(n)
			t.rest = t.rest[n:]
			return true
		case syscall.EAGAIN:
			if !t.look.again() {
				return false
			}
		case syscall.EINTR:
		default:
			t.err = err
			return true
		}
	}
}

// all moves everything, in as many calls as it takes, and tells whether it has ended.
func (t *transfer) all(fd uintptr) bool {
	for len(t.rest) > 0 && t.err == 0 {
		if !t.once(fd) {
			return false
		}
	}
	return true
}
