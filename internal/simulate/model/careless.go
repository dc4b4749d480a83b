package model

import "github.com/lockmigrate/lockmigrate/internal/protocol"

// The planted bugs of the server's scripts, for Overrides.

// BlindSet is compare_set.lua without its comparison.
func BlindSet(c *call) protocol.Reply {
	c.write(c.command.Key, c.command.Value, keepTTL)
	return integer(1)
}

// GrantAndDelete is modern_release.lua that deletes the key after it has handed it on.
func GrantAndDelete(c *call) protocol.Reply {
	reply := queueRelease(c)
	if reply.Int == 2 {
		c.remove(c.command.Key)
	}
	return reply
}

// TakeForGone is modern_release.lua that passes the first waiter over although the message has reached it: what PUBLISH
// counts are the listeners of one server, and others hear as well.
func TakeForGone(c *call) protocol.Reply {
	if e, ok := protocol.ParseEntry(c.head()); ok && c.holds(c.command.Key, c.command.Value) {
		c.publish(e.Channel, grantMessage(e.Token, c.waiters()[0].N, 0))
		c.unqueue(c.head())
	}
	return queueRelease(c)
}
