package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/wire"
)

const (
	// lingerFor is how long a client may still send when the server has ended its connection. Closing at once would make
	// the kernel drop replies that the client has not read yet.
	lingerFor = time.Second

	// firstWithin is how long a client that has just connected gets for its first command when the process ends.
	firstWithin = 500 * time.Millisecond

	// splicedFrom is how many bytes of one word must be left to let the kernel move them. Each splice costs two more calls.
	splicedFrom = bufferSize
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
	send     []byte // a part of out or in, on its way up
	taken    int    // bytes of in that are done with when it is gone
	holding  bool   // the Rewriter holds the first request of in
	apart    bool   // that request waits until all before it are answered
	fromDown *source
	fromUp   *source
	ended    atomic.Bool
	endedBy  atomic.Int32 // the first of the sides below; 0 while it lasts
	began    time.Time

	// Both directions know how many requests were passed on (framer.requests) and how many were answered.
	replies  replies
	answered atomic.Int64
	called   atomic.Pointer[Script] // of the request that may have to go again, until its reply begins: nothing is sent before
	again    []byte                 // that request
	refused  bool                   // its refusal has come, and is to be followed
	since    time.Time              // when it was sent
	bound    atomic.Pointer[bound]  // of requests that may not be answered later
	waits    atomic.Bool            // requests waits for a change, which news tells
	news     chan struct{}

	// A loop serves the connection while it can: no goroutine has it then, and it has no net.Conn.
	mu      sync.Mutex // of down, up and their sources, from connect on
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
	seen     int64          // answered when it was last looked at
	replying sync.WaitGroup // copyReplies
	rested   atomic.Bool    // copyReplies has returned without an end
	stays    atomic.Bool    // copyReplies must not: a request is held, or the client has gone
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

// noScript begins the server's words that it does not have the script of an EVALSHA. It has done nothing then.
var noScript = []byte("-NOSCRIPT ")

// copyReplies copies what the server sends, and counts the replies. Where one says that a script is missing, the request goes again with
// the script's text, and the client gets the reply to that. So does one that a node of a cluster has refused: see Options.Follow.
func (c *conn) copyReplies() {
	rests := false
	defer func() {
		c.ended.Store(!rests)
		c.tell()
	}()
	var b buffer
	from, to, counted := c.fromUp, newSink(c.down), 0 // b[:counted] is counted, and the rest of b may be a NOSCRIPT
	if unsent := c.unsent; len(unsent) > 0 {
		if c.unsent = nil; !c.reply(unsent) {
			return
		}
	}
	quick := func() bool {
		if c.late() {
			return false
		}
		if counted = c.count(&b, counted, false); counted < b.n {
			return !c.refused
		}
		b.drop(to.try(b.bytes()))
		counted = b.n
		return b.n == 0 && c.replies.body < splicedFrom
	}
	var err error
	for err == nil {
		err = from.read(&b, quick)
		if c.late() {
			c.endBy(notTheClient)
			reset(c.up)
			reset(c.down)
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) { // sweep has asked whether anything comes
			err = c.up.SetReadDeadline(time.Time{})
			if rests = err == nil && b.n == 0 && c.replies.between() && !c.stays.Load(); rests {
				c.rested.Store(true)
				_ = c.down.SetReadDeadline(time.Unix(1, 0))
				return
			}
		}
		counted = c.count(&b, counted, true)
		if from = c.fromUp; counted < b.n && err == nil {
			continue
		}
		if counted = 0; b.n > 0 {
			if !c.reply(b.bytes()) {
				return
			}
			b.n = 0
		}
		if err == nil && c.replies.body >= splicedFrom && plain(c.up, c.down) {
			b.rest()
			n, failed := io.CopyN(c.down, c.up, c.replies.body-1) // its last byte is seen
			c.replies.body -= n
			if errors.Is(failed, os.ErrDeadlineExceeded) {
				continue
			}
			if err = failed; failed != nil && !errors.Is(failed, io.EOF) {
				reset(c.up)
			}
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

// reply writes to the client.
func (c *conn) reply(b []byte) bool {
	_, err := c.down.Write(b)
	if err != nil { // the client is gone
		c.endBy(theClient)
		reset(c.up)
		reset(c.down)
	}
	return err == nil
}

// count counts the replies in b from a place on, and takes a refusal out of b whose request goes again. It stops where the beginning of one stands
// at the end of b, and before one that may have to go elsewhere, unless it may wait for that.
func (c *conn) count(b *buffer, from int, waits bool) (counted int) {
	ended := int64(0)
	c.refused = false
	for counted = from; counted < b.n; {
		rest := b.bytes()[counted:]
		if script := c.called.Load(); script != nil && rest[0] != '>' && c.replies.between() {
			end := bytes.IndexByte(rest, '\n')
			n := min(len(rest), len(noScript))
			missing, refused := script.text != nil && bytes.Equal(rest[:n], noScript[:n]), c.server.opts.Follow != nil && rest[0] == '-'
			if c.refused = refused && end >= 0 && !waits; c.refused || end < 0 && (missing || refused) {
				break
			}
			switch {
			case missing:
				c.again = bytes.Replace(c.again, script.digest, script.text, 1)
				_, _ = c.up.Write(c.again)
			case refused && c.follow(string(rest[1:end])):
			default:
				c.called.Store(nil)
				continue
			}
			b.n = counted + copy(rest, rest[end+1:])
			continue
		}
		n, whole := c.replies.next(rest)
		if counted += n; whole {
			ended++
		}
	}
	c.answered.Add(ended)
	c.tell()
	return counted
}

// followFor is for how long a request goes again. Old clients wait for a reply for two seconds.
const followFor = time.Second

// follow sends the request again that a node of a cluster has refused, where it can run now or soon. With an error the client gets the refusal.
func (c *conn) follow(refusal string) bool {
	again, elsewhere := c.server.opts.Follow(strings.TrimSuffix(refusal, "\r"))
	if !again || time.Since(c.since) > followFor {
		return false
	}
	if elsewhere {
		up, err := c.server.opts.Dial(context.Background())
		if err == nil && up.RemoteAddr().String() == c.up.RemoteAddr().String() { // nobody else knows of the new owner yet
			_, elsewhere = up.Close(), false
		} else if err != nil || c.introduce(up) != nil {
			return false
		} else {
			left := c.up
			c.setUp(up)
			_ = left.Close()
		}
	}
	if !elsewhere {
		time.Sleep(5 * time.Millisecond)
	}
	_, err := c.up.Write(c.again)
	return err == nil
}

// introduce tells a node what the client has said to the one before.
func (c *conn) introduce(up net.Conn) error {
	_ = up.SetReadDeadline(time.Now().Add(followFor))
	in, err := source{conn: up}, error(nil) // read as TLS is, for a moment
	for _, name := range said {
		request := c.client.Said[name]
		if request == nil {
			continue
		}
		_, err = up.Write(request)
		var b buffer
		var r replies
		for ended := false; err == nil && !ended; b.n = 0 {
			if err = in.read(&b, nil); err == nil {
				_, ended = r.next(b.bytes())
			}
		}
		b.free()
	}
	_ = up.SetReadDeadline(time.Time{})
	if err != nil {
		_ = up.Close()
	}
	return err
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

// requests passes on what the client sends until it ends. An error cuts the connection.
func (c *conn) requests() error {
	from, to := c.fromDown, newSink(c.up)
	framed, failed := c.framed, c.failed // what was read has been looked at
	full := false                        // the server takes nothing more
	c.framed, c.failed = false, nil
	quick := func() bool {
		if framed = !full && !c.server.leaving.Load() && c.settled(); !framed {
			return false
		}
		if failed = c.frame(); failed == nil {
			if to.conn != c.up {
				to = newSink(c.up)
			}
			c.sent(to.try(c.send))
		}
		return failed == nil && len(c.send) == 0 && !c.framer.broken && !c.holding && !c.apart && !c.splices()
	}
	for {
		if !full && c.server.leaving.Load() {
			full = c.leave()
		}
		c.resume() // readOn may have taken its sign away
		var err error
		if !framed { // by the loop
			err = c.wait(from, quick)
		}
		if c.rested.Load() {
			if errors.Is(err, os.ErrDeadlineExceeded) && !full && c.idle() {
				return errRests
			}
			c.resume()
		}
		if (!framed || err != nil) && !c.settled() {
			c.await(c.settled)
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.endBy(theClient)
		}
		if full {
			c.in.n = 0
		} else if failed = c.pass(framed, failed); errors.Is(failed, errCut) {
			c.endBy(notTheClient)
			reset(c.up)
			reset(c.down)
			return failed
		} else if failed != nil || c.framer.broken {
			full, c.in.n = true, 0
		}
		framed = false
		switch {
		case err == nil:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded) && !c.ended.Load():
			c.readOn()
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
func (c *conn) wait(from *source, quick func() bool) error {
	if !c.holding {
		return from.read(&c.in, quick)
	}
	c.stays.Store(true)
	defer c.stays.Store(false)
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
	err := from.read(&c.in, nil)
	close(over)
	<-watching
	c.readOn()
	c.holding, c.client.Held = false, true
	return err
}

// readOn takes away what ended a read.
func (c *conn) readOn() {
	_ = c.down.SetReadDeadline(time.Time{})
	if c.ended.Load() {
		_ = c.down.SetReadDeadline(time.Now().Add(lingerFor))
	}
}

// leave ends a connection between two commands, because the process ends: the server answers what it was sent, and then ends the
// connection. What the client sends meanwhile is dropped.
func (c *conn) leave() bool {
	if c.in.n > 0 || c.framer.args > 0 || c.framer.body > 0 || c.client.Multi {
		return false
	}
	if young := firstWithin - time.Since(c.began); young > 0 && c.framer.requests == 0 { // it is about to send its first command
		_ = c.down.SetReadDeadline(time.Now().Add(young))
		return false
	}
	if !c.framer.uncounted {
		c.await(c.atRest)
	}
	closeWrite(c.up)
	return true
}

// pass sends what of c.in can go, unless it has been framed before, and keeps the rest.
func (c *conn) pass(framed bool, err error) error {
	for {
		if !framed {
			err = c.frame()
		}
		if err == nil && len(c.send) > 0 {
			_, err = c.up.Write(c.send)
			c.sent(len(c.send))
		}
		if err != nil || !c.apart && !c.asks {
			break
		}
		if c.apart {
			c.await(c.atRest)
		}
		if c.ended.Load() {
			return net.ErrClosed
		}
		framed = false
	}
	if err == nil && c.splices() {
		err = c.spliceWord()
	}
	return err
}

// frame finds what of c.in can go, and what goes in its place.
func (c *conn) frame() error {
	b := c.in.bytes()
	c.out, c.asks = c.out[:0], false
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
			if c.looped.Load() {
				c.asks, done = true, true
				break
			}
			kept := len(c.out)
			c.out = append(c.out, b[from:i]...)
			begin := len(c.out)
			again := c.apart // all before it are answered
			verdict, out := c.ask(begin, i+length < len(b) && !again)
			c.apart = verdict == Apart
			if verdict == Cut || c.apart && again {
				return errRefused
			}
			switch verdict {
			case Apart, Hold:
				c.out = c.out[:begin]
				from, done = i, true
			case Pass:
				c.out = c.out[:kept]
				i += length
				c.framer.requests++
			default:
				c.out = out
				i += length
				from = i
				c.framer.requests++
			}
			c.limit()
		}
	}
	c.send, c.taken = b[from:i], i
	if len(c.out) > 0 {
		c.out = append(c.out, b[from:i]...)
		c.send = c.out
	}
	c.sent(0)
	return nil
}

// sent notes how much of c.send the server has taken.
func (c *conn) sent(n int) {
	if c.send = c.send[n:]; len(c.send) > 0 {
		return
	}
	if cap(c.out) > 4<<10 {
		c.out = nil
	}
	c.in.drop(c.taken)
	if c.taken = 0; c.in.n == 0 {
		clear(c.framer.words[:cap(c.framer.words)]) // they keep the memory alive that they are parts of
	}
}

// splices tells that the kernel can move the rest of a long word.
func (c *conn) splices() bool {
	return c.in.n == 0 && c.framer.body >= splicedFrom && plain(c.up, c.down)
}

// late tells that replies come after their bound.
func (c *conn) late() bool {
	bound := c.bound.Load()
	return bound != nil && c.answered.Load() < bound.last && time.Now().After(bound.at)
}

// limit notes until when the request that was asked about last may be answered, and those before it that have a bound.
func (c *conn) limit() {
	at := c.client.Bound
	if at.IsZero() {
		return
	}
	c.client.Bound = time.Time{}
	if before := c.bound.Load(); before != nil && c.answered.Load() < before.last && before.at.Before(at) {
		at = before.at
	}
	c.bound.Store(&bound{c.framer.requests, at})
}

// ask asks the Rewriter about the request in c.framer.words. Its answer is behind the first begin bytes of c.out.
func (c *conn) ask(begin int, pressed bool) (Verdict, []byte) {
	if words := c.framer.words; bytes.EqualFold(words[0], []byte(clientCommand)) {
		c.framer.uncounted = c.framer.uncounted || len(words) > 1 && bytes.EqualFold(words[1], []byte("REPLY"))
		return Pass, c.out
	}
	c.client.Script, c.client.Alone = nil, !pressed && c.atRest()
	c.client.Uncounted = c.framer.uncounted
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
	switch script := c.client.Script; {
	case script != nil && verdict == Replace:
		c.again, c.since = append(c.again[:0], out[begin:]...), time.Now()
		c.called.Store(script)
	case c.server.opts.Follow != nil && verdict == Pass && c.client.Alone && !c.client.Multi:
		c.again, c.since = wire.Append(c.again[:0], c.framer.words...), time.Now()
		c.called.Store(&Script{})
	}
	c.server.rewritten[verdict].Add(1)
	return verdict, out
}

// spliceWord lets the kernel move the rest of a long word.
func (c *conn) spliceWord() error {
	c.in.rest()
	n, err := io.CopyN(c.up, c.down, c.framer.body)
	c.framer.body -= n
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) { // the next read finds it again
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
