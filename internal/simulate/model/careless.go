package model

import "github.com/lockmigrate/lockmigrate/internal/protocol"

// The planted bugs of the server's scripts, for Overrides.

// BlindSet is compare_set.lua without its comparison.
func BlindSet(c *call) protocol.Reply {
	c.write(c.command.Key, c.command.Value, keepTTL)
	return integer(1)
}

// GrantAndDelete is modern_release.lua, or bridge_release.lua, that deletes the key after it has handed it on.
func GrantAndDelete(release Operation) Operation {
	return func(c *call) protocol.Reply {
		reply := release(c)
		if reply.Int == protocol.DropHanded || c.command.Op == protocol.QueueRelease && reply.Int == 2 {
			c.remove(c.command.Key)
		}
		return reply
	}
}

// The releases, for those that change them.
var (
	QueueRelease Operation = queueRelease
	BridgeDrop   Operation = bridgeDrop
)

// TakeForGone is a release that passes the first waiter over although the message has reached it: what PUBLISH
// counts are the listeners of one server, and others hear as well.
func TakeForGone(release Operation) Operation {
	return func(c *call) protocol.Reply {
		if e, ok := protocol.ParseEntry(c.head()); ok && c.holds(c.command.Key, c.command.Value) {
			c.publish(e.Channel, grantMessage(e.Token, c.waiters()[0].N, 0))
			c.unqueue(c.head())
		}
		return release(c)
	}
}

// HandsOnRegardless is bridge_release.lua that hands a lock on whose key is not its own any more.
func HandsOnRegardless(c *call) protocol.Reply {
	if owner, guarded := c.text(c.command.Guard); guarded && owner == c.command.Value && c.command.Hand {
		if given, _ := c.grant("", false); given {
			return integers(protocol.DropHanded, 0, 0)
		}
	}
	return bridgeDrop(c)
}

// SameTextAgain is sidecar_take.lua that takes the same text for the same attempt, sent again.
func SameTextAgain(c *call) protocol.Reply {
	if s := c.remembered(); c.whose(&s) == "mine" && s.text == c.command.Sidecar.Text {
		return integer(1)
	}
	return sidecarTake(c)
}
