package model

import (
	"strconv"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// setToken is SET key value NX PX ttl.
func setToken(c *call) protocol.Reply {
	if c.find(c.command.Key) >= 0 {
		return protocol.Reply{Kind: protocol.Nil}
	}
	c.write(c.command.Key, c.command.Value, c.command.TTL.Milliseconds())
	return text("OK")
}

// take is modern_take.lua.
func take(c *call) protocol.Reply {
	key := c.command.Key
	if c.find(key) < 0 {
		c.write(key, c.command.Value, c.command.TTL.Milliseconds())
		return integers(1, c.nextFence(), 0)
	}
	if c.holds(key, c.command.Value) {
		c.expire(key, c.command.TTL)
		return integers(1, c.nextFence(), 0)
	}
	return integers(0, c.pttl(key), 0)
}

// extend is modern_extend.lua.
func extend(c *call) protocol.Reply {
	if i := c.find(c.command.Key); i < 0 || c.entries[i].Kind != String {
		return integer(0)
	} else if found := c.entries[i].Value; found != c.command.Value {
		return protocol.Reply{Kind: protocol.Integer, Text: found}
	}
	c.expire(c.command.Key, c.command.TTL)
	if c.command.Fence != "" && c.command.FenceTTL > 0 {
		c.expire(c.command.Fence, c.command.FenceTTL)
	}
	return integer(1)
}

// nextFence is next_fence of fence.lua: never the same twice, never less than the server's
// clock in microseconds.
func (c *call) nextFence() int64 {
	if c.command.Fence == "" || c.command.FenceTTL == 0 {
		return 0
	}
	last := int64(0)
	if i := c.find(c.command.Fence); i >= 0 {
		last, _ = strconv.ParseInt(c.entries[i].Value, 10, 64)
	}
	if last < 0 || last > mostFence {
		last = 0
	}
	n := c.after(last)
	c.write(c.command.Fence, strconv.FormatInt(n, 10), c.command.FenceTTL.Milliseconds())
	return n
}

// mostFence is the largest count that the scripts believe; what is above it is no counter of theirs.
const mostFence = 9e15

// after is after of fence.lua.
func (c *call) after(last int64) int64 { return max(last+1, int64(c.now)/1000) }

func integers(a, b, d int64) protocol.Reply {
	return protocol.Reply{Kind: protocol.Integer, Int: a, Int2: b, Int3: d}
}
