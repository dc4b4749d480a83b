package protocol

import (
	"fmt"
	"time"
)

// ModernConfirm extends a lease that was just taken and waits until enough replicas have it. Busy means
// that too few had it in time; the key is still ours then, and the caller gives it back.
type ModernConfirm struct {
	Renew    ModernRenew
	Replicas int
	Timeout  time.Duration

	waiting bool
	have    int64
}

// Next implements Machine.
func (c *ModernConfirm) Next(now Instant, reply Reply) Step {
	if !c.waiting {
		step := c.Renew.Next(now, reply)
		if step.Kind != Done || step.Verdict != Renewed {
			return step
		}
		c.waiting = true
		return send(Command{Op: WaitReplicas, Count: int64(c.Replicas), TTL: c.Timeout})
	}
	switch {
	case reply.Kind == Silence:
		return done(Unsure)
	case reply.Kind != Integer:
		return done(Failed)
	}
	c.have = reply.Int
	if c.have < int64(c.Replicas) {
		return done(Busy)
	}
	return done(Renewed)
}

// Says tells how many replicas had the acquisition.
func (c *ModernConfirm) Says() string {
	return fmt.Sprintf("%d of %d replicas had it within %v", c.have, c.Replicas, c.Timeout)
}
