package redismodel

import "github.com/lockmigrate/lockmigrate/internal/protocol"

// BlindSet is compare_set.lua without its comparison: a planted bug, for Overrides.
func BlindSet(c *call) protocol.Reply {
	c.write(c.command.Key, c.command.Value, keepTTL)
	return integer(1)
}
