package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// requests passes on what the client sends until it ends. An error cuts the connection.
func (c *conn) requests() error {
	framed := c.framed // the loop has looked at what was read
	full := false      // the server takes nothing more
	for c.framed = false; ; framed = false {
		if !full && c.server.leaving.Load() {
			full = c.leave()
		}
		var err error
		if !framed {
			err = c.wait()
		}
		if (!framed || err != nil) && !c.settled() {
			c.await(c.settled)
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.endBy(theClient)
		}
		if full {
			c.in.n = 0
		} else if failed := c.pass(framed); errors.Is(failed, errCut) {
			c.endBy(notTheClient)
			c.abort()
			return failed
		} else if failed != nil || c.framer.broken {
			full, c.in.n = true, 0
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded) && !c.ended.Load():
			c.readOn()
			continue
		case err != io.EOF:
			c.up.reset()
			return nil
		}
		if c.in.n > 0 { // half a request, which the server will not execute
			_, _ = c.up.Write(c.in.bytes())
			c.in.n = 0
		}
		c.in.rest()
		c.up.closeWrite()
		return nil
	}
}

// wait reads more. When a request is held, it also ends when the hold is over.
func (c *conn) wait() error {
	if !c.holding {
		return c.down.read(&c.in)
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
	err := c.down.read(&c.in)
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
	c.up.closeWrite()
	return true
}

// pass sends what of c.in can go, unless it has been framed before, and keeps the rest.
func (c *conn) pass(framed bool) (err error) {
	for ; ; framed = false {
		if err = c.failed; !framed {
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
			c.server.broken.Add(1)
			c.server.opts.Log.Warn("protocol error; nothing more of this connection is passed on", "client", c.client.Addr)
		case cut:
			return errCut
		case request:
			if c.looped.Load() && c.server.opts.Waits {
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
		// Any server since 2.6 answers this with an error of these words. Of four words, it passes before AUTH too.
		out = wire.Append(out[:begin], "EVAL", "return redis.error_reply(ARGV[1])", "0", why)
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
