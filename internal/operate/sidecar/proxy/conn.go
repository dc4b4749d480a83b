package proxy

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// lingerFor is how long a client may still send when the server has ended its connection. Closing at once would make
	// the kernel drop replies that the client has not read yet.
	lingerFor = time.Second

	// firstWithin is how long a client that has just connected gets for its first command when the process ends.
	firstWithin = 500 * time.Millisecond
)

// conn is one client and its connection to the server.
type conn struct {
	server   *Server
	client   Client
	rewriter Rewriter
	down, up *peer // towards the client, towards the server
	framer   framer
	in       buffer
	out      []byte // what goes up, when it is not what came
	send     []byte // a part of out or in, on its way up
	taken    int    // bytes of in that are done with when it is gone
	holding  bool   // the Rewriter holds the first request of in
	apart    bool   // that request waits until all before it are answered
	ended    atomic.Bool
	endedBy  atomic.Int32 // the first of the sides below; 0 while it lasts
	began    time.Time

	// Both directions know how many requests were passed on (framer.requests) and how many were answered.
	replies  replies
	answered atomic.Int64
	called   atomic.Pointer[Script] // of the request that may have to go again, until its reply begins: nothing is sent before
	again    []byte                 // that request
	since    time.Time              // when it was sent
	bound    atomic.Pointer[bound]  // of requests that may not be answered later
	news     chan struct{}          // something of these has changed

	// A loop serves the connection from its beginning for as long as it can: no goroutine has it then, and it has no net.Conn.
	mu      sync.Mutex // of down and up, from connect on
	cut     bool       // it is to end; with mu
	loop    *loop
	looped  atomic.Bool // it is in the loop; changes with the loop's mutex
	sockets [2]int      // descriptors of down and up
	over    [2]error    // what the loop has read at the end of them
	asks    bool        // the next request is for the Rewriter, which the loop does not ask: see Options.Waits
	framed  bool        // what the loop has read has been looked at
	failed  error       // by frame
	unsent  []byte      // replies that the client has not taken
	unread  []byte      // what came behind them, from a NOSCRIPT on
}

// plain tells that a loop can serve both sides: they are sockets, and nothing more such as TLS.
func (c *conn) plain() bool {
	_, down := c.down.Conn.(syscall.Conn)
	_, up := c.up.Conn.(syscall.Conn)
	return down && up
}

// bound is until when the replies up to the last-th may go to the client.
type bound struct {
	last int64
	at   time.Time
}

// The sides that end a connection.
const (
	theClient = 1 + iota
	notTheClient
)

func (c *conn) endBy(side int32) { c.endedBy.CompareAndSwap(0, side) }

// errCut ends a connection whose next request must not reach the server.
var errCut = errors.New("a request on a lock's key is too long to be looked at")

// errRefused ends one by the verdict Cut.
var errRefused = fmt.Errorf("%w, or may not be passed on any more", errCut)

// serve copies until one side ends. The caller then closes both connections.
func (c *conn) serve() {
	var replying sync.WaitGroup
	replying.Go(c.copyReplies)
	if err := c.requests(); err != nil {
		c.server.tooLong.Add(1)
		c.server.opts.Log.Error("connection cut", "client", c.client.Addr, "error", err)
	}
	replying.Wait()
	c.client.Cut = c.endedBy.Load() == notTheClient
}

// tell wakes await.
func (c *conn) tell() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// await waits until something is so, or the server has ended the connection.
func (c *conn) await(so func() bool) {
	for !so() && !c.ended.Load() {
		<-c.news
	}
}

// settled tells that the next reply's beginning is not to be looked at any more: the connection is free for the next request.
func (c *conn) settled() bool { return c.called.Load() == nil }

// atRest tells that all requests are answered. It is never so again after a request whose replies cannot be counted.
func (c *conn) atRest() bool {
	answered := c.answered.Load()
	c.framer.uncounted = c.framer.uncounted || answered > c.framer.requests // the server says what nobody has asked for
	return !c.framer.uncounted && answered == c.framer.requests
}
