package model

import (
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const refusal = "STAGE the lease of this member of the namespace is over"

// late tells that a command with a bound came after it.
func (c *call) late() bool {
	return c.command.NotAfter != 0 && c.ms > int64(c.command.NotAfter)/int64(time.Millisecond)
}

const heldByBridge = "HELD by a bridge holder"

// guarded tells that a command with a bound finds the guard that it has to respect.
func (c *call) guarded() bool {
	return c.command.NotAfter != 0 && c.command.Guard != "" && c.find(c.command.Guard) >= 0
}

// bridgeTake is bridge_acquire.lua.
func bridgeTake(c *call) protocol.Reply {
	cmd := c.command
	if c.late() {
		return fault(refusal)
	}
	owner, guarded := c.text(cmd.Guard)
	if guarded && owner != cmd.Value {
		return c.held(protocol.TakeHeld, c.pttl(cmd.Guard), owner)
	}
	var state *gaps
	if c.yieldsOn() {
		state = c.recall()
	}
	code := int64(protocol.TakeFree)
	seen, there := c.text(cmd.Key)
	switch {
	case there && seen == cmd.Value, guarded && (!there || overwritten(c, seen)):
		code = protocol.TakeMine
	case there:
		reply, over := c.judge(seen, state)
		if !over {
			if guarded { // of an earlier sending; nothing is left behind
				c.remove(cmd.Guard)
			}
			return reply
		}
		code = protocol.TakeOver
	}
	if state != nil && code == protocol.TakeFree {
		if left := state.keepsOff(c.queued()); left > 0 {
			return c.held(protocol.TakeHeld, left, "")
		}
	}
	if code == protocol.TakeFree && c.othersTurn() {
		if guarded {
			c.remove(cmd.Guard)
		}
		seen, _ := c.text(cmd.Key)
		return c.held(protocol.TakeHeld, c.pttl(cmd.Key), seen)
	}
	c.leave(cmd.Entry, cmd.Stood)
	c.claim()
	reply := integers(code, c.nextFence(), 0)
	if code == protocol.TakeOver {
		reply.Text = seen
	}
	return reply
}

// overwritten tells that a loser without a lease wrote what stands on a key whose guard is ours.
func overwritten(c *call, seen string) bool {
	floats := c.command.Unit == protocol.FloatSeconds || c.command.Sidecar != nil && c.command.Sidecar.Unit == protocol.FloatSeconds
	return floats && seen == protocol.RedisPyFloat.Forever && c.pttl(c.command.Key) < 0
}

// judge looks at what stands on the key: a legacy expiry that is over by more than the grace may be
// taken over, anything else is held.
func (c *call) judge(seen string, state *gaps) (reply protocol.Reply, over bool) {
	cmd := c.command
	left := c.pttl(cmd.Key)
	switch {
	case c.entries[c.find(cmd.Key)].Kind != String:
		return c.held(protocol.TakeForeign, left, seen), false
	case left >= 0:
		if state != nil && c.find(cmd.Guard) < 0 && (len(seen) != 19 || seen[0] < '5' || strings.Trim(seen, "0123456789") != "") {
			state.oldTurn() // a token of another library, whose clients only poll
		}
		return c.held(protocol.TakeHeld, left, seen), false
	}
	ends, ok := c.expiry(seen)
	if !ok {
		return c.held(protocol.TakeForeign, -1, seen), false
	}
	if state != nil {
		state.oldTurn()
	}
	due := ends + max(cmd.Grace, 0).Milliseconds()
	switch {
	case c.ms <= due:
		return c.held(protocol.TakeHeld, due-c.ms+1, seen), false
	case cmd.Grace < 0:
		return c.held(protocol.TakeRefused, -1, seen), false
	}
	return protocol.Reply{}, true
}

// held is the reply to one who may not take the key: it gets a place in the queue, and is told its ticket and how many
// stand before it.
func (c *call) held(code, wait int64, seen string) protocol.Reply {
	reply := answer(code, wait, seen)
	if cmd := c.command; cmd.Queue != "" && cmd.Entry != "" {
		reply.Int4 = c.lineUp()
		reply.Int2 = int64(c.place(cmd.Entry))
	}
	return reply
}

// lineUp gives us a place in the queue, or has Entry take the place of the one that stood there; it returns the ticket.
func (c *call) lineUp() int64 {
	cmd := c.command
	if cmd.Stood != "" && c.place(cmd.Stood) >= 0 {
		c.rename(cmd.Stood, cmd.Entry)
	}
	if c.place(cmd.Entry) < 0 {
		c.enter(cmd.Entry)
	}
	c.expire(cmd.Queue, cmd.QueueTTL)
	return c.waiters()[c.place(cmd.Entry)].N
}

// othersTurn gives a free key to the first who waits, if that is not us, and tells whether there was one.
func (c *call) othersTurn() bool {
	cmd := c.command
	head := c.head()
	if cmd.Queue == "" || head == "" || head == cmd.Entry || head == cmd.Stood {
		return false
	}
	if cmd.Entry != "" {
		c.lineUp()
	}
	given, _ := c.grant(cmd.Value, true)
	return given
}

// bridgeSettle is bridge_settle.lua.
func bridgeSettle(c *call) protocol.Reply {
	cmd := c.command
	if c.late() {
		return fault(refusal)
	}
	if owner, ok := c.text(cmd.Guard); !ok || owner != cmd.Value {
		return answer(protocol.SettleLost, 0, "")
	}
	seen, there := c.text(cmd.Key)
	code := int64(protocol.SettleAgain)
	switch {
	case there && seen == cmd.Value:
		code = protocol.SettleDone
	case there:
		left := c.pttl(cmd.Key)
		ends, isExpiry := int64(0), false
		if left < 0 && c.entries[c.find(cmd.Key)].Kind == String {
			ends, isExpiry = c.expiry(seen)
		}
		due := ends + settleGrace(cmd.Grace)
		if !isExpiry || c.ms <= due {
			if !isExpiry || cmd.Op != settlePutting {
				c.remove(cmd.Guard)
				if isExpiry {
					left = due - c.ms + 1
				}
				return answer(protocol.SettleLeft, left, seen)
			}
			code = settlePut
		}
	}
	c.claim()
	if code == protocol.SettleDone {
		seen = ""
	}
	return answer(code, 0, seen)
}

// settleGrace is the grace as the script sees it, where a negative one is -1 ms.
func settleGrace(grace time.Duration) int64 {
	if grace < 0 {
		return -1
	}
	return grace.Milliseconds()
}

// bridgeExtend is bridge_renew.lua.
func bridgeExtend(c *call) protocol.Reply {
	cmd := c.command
	if c.late() {
		return fault(refusal)
	}
	owner, guarded := c.text(cmd.Guard)
	seen, there := c.text(cmd.Key)
	mine, onKey := guarded && owner == cmd.Value, there && seen == cmd.Value
	code := int64(protocol.RenewRepair)
	switch {
	case mine && onKey:
		code = protocol.RenewDone
	case mine && !there, !guarded && onKey:
	case mine:
		return answer(protocol.RenewTheirs, 0, seen)
	default:
		return answer(protocol.RenewLost, 0, "")
	}
	c.claim()
	if cmd.Fence != "" && cmd.FenceTTL > 0 {
		c.expire(cmd.Fence, cmd.FenceTTL)
	}
	return answer(code, 0, "")
}

// noted tells that the key has a state of gaps, or a queue.
func (c *call) noted() bool {
	cmd := c.command
	return cmd.Yield != "" && c.find(cmd.Yield) >= 0 || cmd.Queue != "" && c.find(cmd.Queue) >= 0
}

// bridgeDrop is bridge_release.lua.
func bridgeDrop(c *call) protocol.Reply {
	cmd := c.command
	owner, guarded := c.text(cmd.Guard)
	seen, there := c.text(cmd.Key)
	mine := guarded && owner == cmd.Value
	onKey := there && seen == cmd.Value
	yields := mine && onKey && c.yieldsOn() && (32*cmd.Held.Milliseconds() >= cmd.Gap.Milliseconds() || c.noted())
	c.leave(cmd.Entry, cmd.Stood)
	if cmd.Queue != "" && cmd.Hand && !mine && !onKey {
		for i, w := range c.waiters() {
			if e, ok := protocol.ParseEntry(w.Name); ok && i < 10 && e.Token == cmd.Value {
				c.unqueue(w.Name)
			}
		}
	}
	if !(yields && c.yields(c.queued())) && mine && onKey && cmd.Hand {
		if given, withGuard := c.grant("", false); given {
			if !withGuard {
				c.remove(cmd.Guard)
			}
			return integers(protocol.DropHanded, 0, 0)
		}
	}
	if mine && !(there && !onKey && cmd.Hand) { // a displaced holder's guard stays until it was told
		if onKey && cmd.Breath >= time.Millisecond {
			c.write(cmd.Guard, "breath", cmd.Breath.Milliseconds()) // not ours: see the script
		} else {
			c.remove(cmd.Guard)
		}
	}
	if onKey {
		c.remove(cmd.Key)
	}
	if cmd.Queue != "" {
		c.callFirst()
	}
	switch {
	case onKey:
		return answer(protocol.DropDone, 0, "")
	case !mine:
		return answer(protocol.DropNothing, 0, "")
	case there:
		return answer(protocol.DropTheirs, 0, seen)
	default:
		return answer(protocol.DropRepaired, 0, "")
	}
}

// claim sets key and guard to our value.
func (c *call) claim() {
	ttl := c.command.TTL.Milliseconds()
	c.write(c.command.Key, c.command.Value, ttl)
	c.write(c.command.Guard, c.command.Value, ttl)
}

// text is what a key holds: its string, or its type's name.
func (c *call) text(key string) (string, bool) {
	i := c.find(key)
	if i < 0 {
		return "", false
	}
	switch e := &c.entries[i]; e.Kind {
	case Hash:
		return "hash", true
	case SortedSet:
		return "zset", true
	default:
		return e.Value, true
	}
}

// expiry reads a legacy value as the scripts do, in milliseconds.
func (c *call) expiry(value string) (int64, bool) {
	return c.expiryIn(c.command.Unit, c.command.Layout, value)
}

func (c *call) expiryIn(unit protocol.Unit, layout protocol.Layout, value string) (int64, bool) {
	d := protocol.Dialect{Unit: unit, Layout: layout}
	ends, ok := d.ServerExpiry(value, c.now)
	return int64(ends) / int64(time.Millisecond), ok
}

func answer(code, wait int64, text string) protocol.Reply {
	return protocol.Reply{Kind: protocol.Integer, Int: code, Int3: wait, Text: text}
}
