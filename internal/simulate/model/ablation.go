package model

import "github.com/lockmigrate/lockmigrate/internal/protocol"

// This file has the ablations, and below them the planted bugs of the server's scripts. An ablation is what a bridge would be without
// something that it needs, or with something that it must not do. It sits between the shipped machine and its driver, and nothing in the
// machine or in a script knows of it.

// settlePutting is bridge_settle.lua as it would be if it put our value back over a live legacy value. settlePut is its reply then.
const (
	settlePutting protocol.Op = 250
	settlePut     int64       = 3
)

// Copying is a SET with a TTL and without NX: a lock is copied to another key, whatever stands there.
const Copying protocol.Op = 251

func copying(c *call) protocol.Reply {
	c.write(c.command.Key, c.command.Value, c.command.TTL.Milliseconds())
	return text("OK")
}

// acquireBridge asks the bridge's machine, with the member's ablations in place.
func (s *Session) acquireBridge(now Reading, reply protocol.Reply) protocol.Step {
	a, at := s.attempt, now.Mono
	if !a.Holds() { // an attempt begins
		s.puts = 0
	}
	if s.Truthful {
		if at = now.Wall; !a.Holds() {
			a.Value, _ = s.Dialect.Expiry(at, s.Lease, s.Owner)
		}
	}
	if s.sent.Op == settlePutting && reply.Kind == protocol.Integer && reply.Int == settlePut {
		s.puts++
		reply.Int = protocol.SettleAgain
	}
	step := a.Next(at, reply)
	switch {
	case step.Kind == protocol.Send && step.Command.Op == protocol.BridgeSettle && s.puts < s.PutBacks:
		step.Command.Op = settlePutting
	case step.Kind == protocol.Sleep && a.Holds() && s.Settle == 0:
		step = protocol.Step{Kind: protocol.Done, Verdict: protocol.Acquired}
	}
	return step
}

// What follows are the planted bugs, for Overrides.

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
