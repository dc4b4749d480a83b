package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"time"
)

// noScript begins the server's words that it does not have the script of an EVALSHA. It has done nothing then.
var noScript = []byte("-NOSCRIPT ")

// copyReplies copies what the server sends, and counts the replies. Where one says that a script is missing, the request goes again with
// the script's text, and the client gets the reply to that. So does one that a node of a cluster has refused: see Options.Follow.
func (c *conn) copyReplies() {
	defer func() {
		c.ended.Store(true)
		c.tell()
	}()
	var b buffer
	counted := 0 // b[:counted] is counted, and the rest of b may be a NOSCRIPT
	if len(c.unsent) > 0 && !c.reply(c.unsent) {
		return
	}
	if len(c.unread) > 0 {
		b.n = copy(b.room(), c.unread)
	}
	c.unsent, c.unread = nil, nil
	var err error
	for ; ; err = c.up.read(&b) {
		if c.late() {
			c.endBy(notTheClient)
			c.abort()
			return
		}
		if counted = c.count(&b, counted); counted < b.n && err == nil {
			continue
		}
		if counted = 0; b.n > 0 {
			if !c.reply(b.bytes()) {
				return
			}
			b.n = 0
		}
		if err != nil {
			break
		}
	}
	c.endBy(notTheClient)
	c.ended.Store(true)
	if err != io.EOF {
		c.down.reset()
		return
	}
	c.down.closeWrite()
	_ = c.down.SetReadDeadline(time.Now().Add(lingerFor))
}

// abort ends both connections so that either side sees an error.
func (c *conn) abort() {
	c.up.reset()
	c.down.reset()
}

// reply writes to the client.
func (c *conn) reply(b []byte) bool {
	_, err := c.down.Write(b)
	if err != nil { // the client is gone
		c.endBy(theClient)
		c.abort()
	}
	return err == nil
}

// count counts the replies in b from a place on, and takes a refusal out of b whose request goes again. It stops where the beginning of one stands
// at the end of b, and in a loop, which sends none, in front of each.
func (c *conn) count(b *buffer, from int) (counted int) {
	ended := int64(0)
	for counted = from; counted < b.n; {
		rest := b.bytes()[counted:]
		if script := c.called.Load(); script != nil && rest[0] != '>' && c.replies.between() {
			end := bytes.IndexByte(rest, '\n')
			n := min(len(rest), len(noScript))
			missing, refused := script.text != nil && bytes.Equal(rest[:n], noScript[:n]), c.server.opts.Follow != nil && rest[0] == '-'
			switch {
			case (end < 0 || c.looped.Load()) && (missing || refused):
				c.answered.Add(ended)
				c.tell()
				return counted
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
	server, err := newPeer(up), error(nil)
	for _, name := range said {
		request := c.client.Said[name]
		if request == nil {
			continue
		}
		_, err = server.Write(request)
		var b buffer
		var r replies
		for ended := false; err == nil && !ended; b.n = 0 {
			if err = server.read(&b); err == nil {
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
