package model

import (
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// redissonTake is modern_redisson_take.lua.
func redissonTake(c *call) protocol.Reply {
	key, holder := c.command.Key, c.command.Value
	i := c.find(key)
	if i >= 0 && c.entries[i].Kind != Hash {
		return fault(wrongType)
	}
	if i >= 0 && named(c.entries[i].Fields, holder) < 0 {
		return integer(c.pttl(key))
	}
	if i < 0 {
		c.Put(Entry{Key: key, Kind: Hash, Writer: c.writer})
		i = c.find(key)
	}
	c.add(i, holder)
	c.expire(key, c.command.TTL)
	return protocol.Reply{Kind: protocol.Nil}
}

// redissonExtend is modern_redisson_extend.lua.
func redissonExtend(c *call) protocol.Reply {
	return redissonHeld(c, func() { c.expire(c.command.Key, c.command.TTL) })
}

// redissonRelease is modern_redisson_release.lua.
func redissonRelease(c *call) protocol.Reply {
	return redissonHeld(c, func() {
		c.remove(c.command.Key)
		c.publish(c.command.Channel, "0")
	})
}

// redissonHeld does something with a lock that the caller holds, and says whether it does.
func redissonHeld(c *call, do func()) protocol.Reply {
	i := c.find(c.command.Key)
	switch {
	case i >= 0 && c.entries[i].Kind != Hash:
		return fault(wrongType)
	case i < 0 || named(c.entries[i].Fields, c.command.Value) < 0:
		return integer(0)
	}
	do()
	return integer(1)
}

// add is HINCRBY holder 1.
func (c *call) add(i int, holder string) {
	e := &c.entries[i]
	c.touch(e.Key)
	e.Fields = slices.Clone(e.Fields)
	if at := named(e.Fields, holder); at >= 0 {
		e.Fields[at].N++
		return
	}
	e.Fields = append(e.Fields, Field{holder, 1})
}
