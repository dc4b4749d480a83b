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
	waits    atomic.Bool            // requests waits for a change, which news tells
	news     chan struct{}

	// A loop serves the connection while it can: no goroutine has it then, and it has no net.Conn.
	mu      sync.Mutex // of down and up, from connect on
	cut     bool       // it is to end; with mu
	loop    *loop
	looped  atomic.Bool // it is in the loop; changes with the loop's mutex
	sockets [2]int      // descriptors of down and up
	over    [2]error    // what the loop has read at the end of them
	asks    bool        // the next request is for the Rewriter, which the loop does not ask
	framed  bool        // what the loop has read has been looked at
	failed  error       // by frame
	unsent  []byte      // replies that the client has not taken

	// It goes back to the loop when nothing has come for a while: copyReplies returns first, and then requests, or it has copyReplies go on.
	replying sync.WaitGroup // copyReplies
	rested   atomic.Bool    // copyReplies has returned without an end
	stays    atomic.Bool    // copyReplies must not: a request is held, or the client has gone
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

// serve copies until one side ends, or until nothing comes and it rests. The caller then closes both connections.
func (c *conn) serve() (rests bool) {
	c.replying.Go(c.copyReplies)
	err := c.requests()
	if errors.Is(err, errRests) {
		c.replying.Wait()
		c.rested.Store(false)
		c.readOn()
		return true
	}
	if err != nil {
		c.server.brokenClient(c, err)
	}
	for c.stays.Store(true); ; {
		c.resume()
		if c.replying.Wait(); c.ended.Load() {
			break
		}
	}
	c.client.Cut = c.endedBy.Load() == notTheClient
	return false
}

// resume has copyReplies go on.
func (c *conn) resume() {
	if c.rested.CompareAndSwap(true, false) {
		c.replying.Go(c.copyReplies)
	}
}

// errRests is the end of requests where the connection rests.
var errRests = errors.New("nothing comes")

// idle tells that nothing of a request has come that is not sent.
func (c *conn) idle() bool {
	return c.in.n == 0 && c.framer.args == 0 && c.framer.body == 0 && c.settled() && !c.holding && !c.apart && !c.ended.Load() && !c.server.leaving.Load()
}

// tell wakes await.
func (c *conn) tell() {
	if c.waits.Load() {
		select {
		case c.news <- struct{}{}:
		default:
		}
	}
}

// await waits until something is so, or the server has ended the connection.
func (c *conn) await(so func() bool) {
	c.waits.Store(true)
	for {
		if c.resume(); so() || c.ended.Load() {
			break
		}
		<-c.news
	}
	c.waits.Store(false)
}

// settled tells that the next reply's beginning is not to be looked at any more: the connection is free for the next request.
func (c *conn) settled() bool { return c.called.Load() == nil }

// atRest tells that all requests are answered. It is never so again after a request whose replies cannot be counted.
func (c *conn) atRest() bool {
	answered := c.answered.Load()
	c.framer.uncounted = c.framer.uncounted || answered > c.framer.requests // the server says what nobody has asked for
	return !c.framer.uncounted && answered == c.framer.requests
}
