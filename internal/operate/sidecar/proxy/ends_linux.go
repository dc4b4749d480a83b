package proxy

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ends is an epoll instance beside the runtime's. It tells sources that the other side has ended, and looks after the connections that
// rest: these have no goroutine.
type ends struct {
	poll *os.File // nil where the system has none left
	raw  syscall.RawConn

	mu      sync.Mutex
	last    int64
	sources map[int64]*source
}

func newEnds() *ends {
	e := &ends{sources: map[int64]*source{}}
	if fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil && unix.SetNonblock(fd, true) == nil {
		e.poll = os.NewFile(uintptr(fd), "epoll")
		e.raw, _ = e.poll.SyscallConn()
	}
	return e
}

func (e *ends) close() {
	if e.poll != nil {
		_ = e.poll.Close()
	}
}

func (e *ends) watch(s *source) {
	if e.poll == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	if s.id = e.last; e.want(s, unix.EPOLL_CTL_ADD, unix.EPOLLRDHUP) {
		e.sources[s.id] = s
	} else {
		s.id = 0
	}
}

func (e *ends) forget(s *source) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sources, s.id)
}

// want asks for one event of a source.
func (e *ends) want(s *source, op int, events uint32) bool {
	event := unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: int32(s.id), Pad: int32(s.id >> 32)}
	ok := false
	_ = s.raw.Control(func(fd uintptr) {
		_ = e.raw.Control(func(poll uintptr) { ok = unix.EpollCtl(int(poll), op, int(fd), &event) == nil })
	})
	return ok
}

// park lets a connection rest until something comes, or unpark. It returns false where the system does not let it.
func (e *ends) park(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	const events = unix.EPOLLIN | unix.EPOLLRDHUP
	parked := e.want(c.fromDown, unix.EPOLL_CTL_MOD, events) && e.want(c.fromUp, unix.EPOLL_CTL_MOD, events)
	if c.parked.Store(parked); !parked {
		e.rearm(c)
	}
	return parked
}

// unpark ends a rest.
func (e *ends) unpark(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wake(c)
}

func (e *ends) wake(c *conn) {
	if c.parked.CompareAndSwap(true, false) {
		e.rearm(c)
		go c.server.live(c)
	}
}

func (e *ends) rearm(c *conn) {
	e.want(c.fromDown, unix.EPOLL_CTL_MOD, unix.EPOLLRDHUP)
	e.want(c.fromUp, unix.EPOLL_CTL_MOD, unix.EPOLLRDHUP)
}

// run wakes sources and connections until close.
func (e *ends) run() {
	if e.poll == nil {
		return
	}
	var events [64]unix.EpollEvent
	_ = e.raw.Read(func(fd uintptr) bool {
		for {
			n, _ := unix.EpollWait(int(fd), events[:], 0)
			if n <= 0 {
				return false
			}
			e.mu.Lock()
			for _, event := range events[:n] {
				s := e.sources[int64(uint32(event.Fd))|int64(event.Pad)<<32]
				if s == nil {
					continue
				}
				if event.Events&^unix.EPOLLIN != 0 {
					s.ended.Store(true)
					_ = s.conn.SetReadDeadline(time.Unix(1, 0))
				}
				e.wake(s.of)
			}
			e.mu.Unlock()
		}
	})
}
