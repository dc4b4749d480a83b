package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// loop serves connections without a goroutine, and without the runtime's poller, which does not know their sockets: one thread reads
// and writes at once what has come. A connection that needs more than that leaves it for good: one side takes no more, or a request has to wait
// for replies.
type loop struct {
	server *Server
	poll   int
	bell   *os.File // ends run
	into   buffer   // what a server has sent
	mu     sync.Mutex
	conns  []*conn // by descriptor
}

type loops []*loop

// processors is how many loops there are: one for each processor. The runtime gets one more: while it has an idle one, it leaves those of
// loops that wait to them, and looks for no other work for them, which cost a tenth of the rate.
var processors = sync.OnceValue(func() int {
	n := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(n + 1)
	return n
})

func newLoops(s *Server) (all loops) {
	for range processors() {
		poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return all
		}
		bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			_ = unix.Close(poll)
			return all
		}
		l := &loop{server: s, poll: poll, bell: os.NewFile(uintptr(bell), "eventfd")}
		l.control(unix.EPOLL_CTL_ADD, bell)
		all = append(all, l)
	}
	return all
}

func (l *loop) control(op, fd int) bool {
	return unix.EpollCtl(l.poll, op, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}) == nil
}

// run serves until close. All connections have left by then.
func (ls loops) run() {
	var all sync.WaitGroup
	for _, l := range ls {
		all.Go(l.run)
	}
	all.Wait()
}

func (ls loops) close() {
	for _, l := range ls {
		_, _ = l.bell.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (l *loop) run() {
	defer l.bell.Close()
	defer unix.Close(l.poll)
	bell := int32(l.bell.Fd())
	var events [256]unix.EpollEvent
	for {
		n, _ := unix.EpollWait(l.poll, events[:], -1)
		for i := range max(n, 0) {
			if events[i].Fd == bell {
				return
			}
			l.serve(int(events[i].Fd))
		}
	}
}

// serve passes on what has come at a socket.
func (l *loop) serve(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.conns[fd]
	if c == nil { // it has left meanwhile
		return
	}
	stays := false
	if fd == c.sockets[0] {
		stays = c.fromClient()
	} else {
		stays = c.fromServer(&l.into)
	}
	if !stays {
		l.leave(c)
	}
}

// leave lets a connection go on with goroutines.
func (l *loop) leave(c *conn) {
	for _, fd := range c.sockets {
		l.control(unix.EPOLL_CTL_DEL, fd)
		l.conns[fd] = nil
	}
	c.looped.Store(false)
	go l.server.live(c)
}

// unpark takes a connection out of its loop, if it is in one. The caller has c.mu.
func (c *conn) unpark() {
	if c.loop == nil {
		return
	}
	c.loop.mu.Lock()
	defer c.loop.mu.Unlock()
	if c.looped.Load() {
		c.loop.leave(c)
	}
}

// park gives a connection that begins to its loop. It returns false where that cannot be.
func (s *Server) park(c *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut || len(s.loops) == 0 || !c.plain() {
		return false
	}
	down, up := descriptor(c.down.Conn), descriptor(c.up.Conn)
	if down < 0 || up < 0 {
		_, _ = unix.Close(down), unix.Close(up)
		return false
	}
	_, _ = c.down.Close(), c.up.Close() // the connections live on in the other descriptors
	c.down, c.up = nil, nil
	c.sockets = [2]int{down, up}
	l := s.loops[c.client.ID%int64(len(s.loops))]
	c.loop = l
	l.mu.Lock()
	defer l.mu.Unlock()
	for most := max(down, up); len(l.conns) <= most; {
		l.conns = append(l.conns, make([]*conn, most+64-len(l.conns))...)
	}
	for _, fd := range c.sockets {
		l.conns[fd] = c
	}
	c.looped.Store(true)
	if !l.control(unix.EPOLL_CTL_ADD, down) || !l.control(unix.EPOLL_CTL_ADD, up) || s.leaving.Load() {
		l.leave(c)
	}
	return true
}

// descriptor returns another descriptor of a socket.
func descriptor(conn net.Conn) (other int) {
	other = -1
	if raw, err := conn.(syscall.Conn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { other, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	}
	return other
}

// unloop makes connections again of the sockets that were in a loop.
func (c *conn) unloop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return nil
	}
	var both [2]net.Conn
	var failed error
	for i, fd := range c.sockets {
		file := os.NewFile(uintptr(fd), "")
		conn, err := net.FileConn(file)
		_ = file.Close()
		if tcp, is := conn.(*net.TCPConn); is {
			_ = tcp.SetKeepAliveConfig(keepAlive)
		}
		both[i], failed = conn, errors.Join(failed, err)
	}
	if failed != nil {
		for _, conn := range both {
			if conn != nil {
				_ = conn.Close()
			}
		}
		return failed
	}
	c.down, c.up = newPeer(both[0]), newPeer(both[1])
	c.down.over, c.up.over = c.over[0], c.over[1]
	if c.cut {
		_, _ = c.down.Close(), c.up.Close()
	}
	return nil
}

// receive reads what has come. Its error is nil where nothing has.
func receive(fd int, b *buffer) error {
	n, err := transfer(syscall.SYS_RECVFROM, uintptr(fd), b.room())
	switch {
	case err == syscall.EAGAIN:
		return nil
	case err != 0:
		return err
	case n == 0:
		return io.EOF
	}
	b.n += n
	return nil
}

// send writes what can be written at once.
func send(fd int, b []byte) int {
	if len(b) == 0 {
		return 0
	}
	n, _ := transfer(syscall.SYS_SENDTO, uintptr(fd), b)
	return max(n, 0)
}

// fromClient passes on what the client has sent. It returns false where the connection has to leave the loop.
func (c *conn) fromClient() bool {
	if !c.settled() {
		return false
	}
	if c.over[0] = receive(c.sockets[0], &c.in); c.over[0] != nil {
		return false
	}
	c.client.Held, c.holding = c.holding, false
	return c.goOn()
}

// goOn passes on what can go.
func (c *conn) goOn() bool {
	if c.failed = c.frame(); c.failed == nil {
		c.sent(send(c.sockets[1], c.send))
	}
	c.framed = c.failed != nil || len(c.send) > 0 || c.framer.broken || c.asks || c.apart
	c.in.rest()
	if c.holding && !c.framed {
		go c.hold(c.client.Wake, c.client.Patience)
	}
	return !c.framed
}

// hold goes on when a hold is over, unless the client has sent more, or the connection has left the loop.
func (c *conn) hold(wake <-chan struct{}, patience time.Duration) {
	select {
	case <-wake:
	case <-time.After(patience):
	}
	c.loop.mu.Lock()
	defer c.loop.mu.Unlock()
	if !c.looped.Load() || !c.holding || c.client.Wake != wake {
		return
	}
	c.client.Held, c.holding = true, false
	if !c.goOn() {
		c.loop.leave(c)
	}
}

// fromServer does so with what the server has sent.
func (c *conn) fromServer(b *buffer) bool {
	if c.late() {
		return false
	}
	if c.over[1] = receive(c.sockets[1], b); c.over[1] != nil {
		return false
	}
	counted := c.count(b, 0)
	all := b.bytes()
	b.n = 0
	n := send(c.sockets[0], all[:counted])
	c.unsent, c.unread = append(c.unsent, all[n:counted]...), append(c.unread, all[counted:]...)
	return n == len(all)
}
