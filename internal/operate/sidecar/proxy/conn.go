package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

const (
	// lingerFor is how long a client may still send when the server has ended its connection. Closing at once would make
	// the kernel drop replies that the client has not read yet.
	lingerFor = time.Second

	// splicedFrom is how many bytes of one word must be left to let the kernel move them. Each splice costs two more calls.
	splicedFrom = bufferSize

	// splicedFor is how long the kernel moves all replies of a connection, after one that was long. It holds a pipe.
	splicedFor = 100 * time.Millisecond
)

// conn is one client and its connection to the server.
type conn struct {
	server   *Server
	client   Client
	rewriter Rewriter
	down, up net.Conn // towards the client, towards the server
	framer   framer
	in       buffer
	out      []byte // what goes up, when it is not what came
	holding  bool   // the Rewriter holds the first request of in
	ended    atomic.Bool
	endedBy  atomic.Int32 // the first of the sides below; 0 while it lasts
}

// The sides that end a connection.
const (
	theClient = 1 + iota
	notTheClient
)

func (c *conn) endBy(side int32) { c.endedBy.CompareAndSwap(0, side) }

// errCut ends a connection whose next request must not reach the server.
var errCut = errors.New("a request on a lock's key is too long to be looked at")

// serve copies until one side ends. The caller closes both connections.
func (c *conn) serve() {
	replied := make(chan struct{})
	go func() {
		defer close(replied)
		c.replies()
	}()
	if err := c.requests(); err != nil {
		c.server.brokenClient(c, err)
	}
	<-replied
	c.client.Cut = c.endedBy.Load() == notTheClient
}

// functionGone begins the server's words that it does not have the function of an FCALL.
var functionGone = []byte("-ERR Function not found")

// lookedAt is how much of a reply that has come is searched for these words.
const lookedAt = 512

// replies copies what the server sends. It looks for functionGone, and at nothing else.
func (c *conn) replies() {
	var b buffer
	from := newSource(c.up)
	var err error
	for err == nil {
		if err = from.read(&b); b.n > 0 {
			if c.server.opts.FunctionGone != nil && bytes.Contains(b.bytes()[:min(b.n, lookedAt)], functionGone) {
				c.server.opts.FunctionGone() // before the client can send more
			}
			if _, failed := c.down.Write(b.bytes()); failed != nil {
				c.endBy(theClient)
				reset(c.up) // the client is gone
				reset(c.down)
				return
			}
			if b.n == bufferSize && plain(c.up, c.down) {
				b.n = 0
				b.rest()
				err = c.spliceReplies()
			}
			b.n = 0
		}
	}
	c.endBy(notTheClient)
	c.ended.Store(true)
	if err != io.EOF {
		reset(c.down)
		return
	}
	closeWrite(c.down)
	_ = c.down.SetReadDeadline(time.Now().Add(lingerFor))
}

// requests passes on what the client sends until it ends. An error cuts the connection.
func (c *conn) requests() error {
	from := newSource(c.down)
	full := false // the server takes nothing more
	for {
		err := c.wait(from)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.endBy(theClient)
		}
		if full {
			c.in.n = 0
		} else if failed := c.pass(); errors.Is(failed, errCut) {
			c.endBy(notTheClient)
			reset(c.up)
			reset(c.down)
			return failed
		} else if failed != nil || c.framer.broken {
			full, c.in.n = true, 0
		}
		switch {
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded) && !c.ended.Load():
			continue
		case err != io.EOF:
			reset(c.up)
			return nil
		}
		if c.in.n > 0 { // half a request, which the server will not execute
			_, _ = c.up.Write(c.in.bytes())
			c.in.n = 0
		}
		c.in.rest()
		closeWrite(c.up)
		return nil
	}
}

// wait reads more. When a request is held, it also ends when the hold is over.
func (c *conn) wait(from *source) error {
	if !c.holding {
		return from.read(&c.in)
	}
	_ = c.down.SetReadDeadline(time.Now().Add(c.client.Patience))
	over, watching := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-c.client.Wake:
			_ = c.down.SetReadDeadline(time.Unix(1, 0))
		case <-over:
		}
	}()
	err := from.read(&c.in)
	close(over)
	<-watching
	_ = c.down.SetReadDeadline(time.Time{})
	if c.ended.Load() {
		_ = c.down.SetReadDeadline(time.Now().Add(lingerFor))
	}
	c.holding, c.client.Held = false, true
	return err
}

// pass sends what of c.in can go, and keeps the rest.
func (c *conn) pass() error {
	b := c.in.bytes()
	c.out = c.out[:0]
	from, i := 0, 0 // b[from:i] passes and is not sent yet
	for done := false; !done; {
		passed, found, length := c.framer.next(b[i:])
		i += passed
		switch found {
		case nothing:
			done = true
		case violated:
			i, c.framer.broken, done = len(b), true, true
			c.server.violation(c)
		case cut:
			return errCut
		case request:
			kept := len(c.out)
			c.out = append(c.out, b[from:i]...)
			begin := len(c.out)
			verdict, out := c.ask(begin, i+length < len(b))
			switch verdict {
			case Hold:
				c.out = c.out[:begin]
				from, done = i, true
			case Pass:
				c.out = c.out[:kept]
				i += length
			default:
				c.out = out
				i += length
				from = i
			}
		}
	}
	var err error
	switch {
	case len(c.out) > 0:
		c.out = append(c.out, b[from:i]...)
		_, err = c.up.Write(c.out)
	case i > 0:
		_, err = c.up.Write(b[from:i])
	}
	if cap(c.out) > 4<<10 {
		c.out = nil
	}
	if c.in.drop(i); c.in.n == 0 {
		clear(c.framer.words[:cap(c.framer.words)]) // they keep the memory alive that they are parts of
	}
	if err == nil && c.in.n == 0 && c.framer.body >= splicedFrom && plain(c.up, c.down) {
		err = c.spliceWord()
	}
	return err
}

// ask asks the Rewriter about the request in c.framer.words. Its answer is behind the first begin bytes of c.out.
func (c *conn) ask(begin int, pressed bool) (Verdict, []byte) {
	verdict, out := c.rewriter.Rewrite(&c.client, c.framer.words, c.out)
	if verdict == Hold && pressed && !c.client.Held { // the client waits for nothing less than for this reply
		c.client.Held = true
		verdict, out = c.rewriter.Rewrite(&c.client, c.framer.words, c.out[:begin])
	}
	if c.holding = verdict == Hold; !c.holding {
		c.client.Held, c.client.Wake = false, nil
	}
	if verdict == Refuse {
		why := string(out[begin:])
		out = appendRefusal(out[:begin], why)
	}
	c.server.rewritten[verdict].Add(1)
	return verdict, out
}

// spliceWord lets the kernel move the rest of a long word.
func (c *conn) spliceWord() error {
	c.in.rest()
	n, err := io.CopyN(c.up, c.down, c.framer.body)
	c.framer.body -= n
	if errors.Is(err, io.EOF) { // the next read finds it again
		return nil
	}
	return err
}

// spliceReplies lets the kernel move replies for a while. It returns io.EOF at their end.
func (c *conn) spliceReplies() error {
	_ = c.up.SetReadDeadline(time.Now().Add(splicedFor))
	_, err := io.Copy(c.down, c.up)
	_ = c.up.SetReadDeadline(time.Time{})
	switch {
	case err == nil:
		return io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return err
}

// plain tells that the kernel sees what both carry.
func plain(a, b net.Conn) bool { return socket(a) == a && socket(b) == b }

// closeWrite tells the other side that nothing more comes.
func closeWrite(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		_ = t.CloseWrite()
	}
	if h, ok := socket(c).(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite()
	}
}

// reset ends a connection so that the other side sees an error and not an end.
func reset(c net.Conn) {
	c = socket(c)
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}

// socket is what is below TLS. To close TLS takes time when the other side does not read.
func socket(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}
