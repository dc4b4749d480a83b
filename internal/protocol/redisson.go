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

// AcquireRedisson is Redisson's RLock.tryLock. Each run has a holder of its own, and the release takes away whatever was counted. So
// a command without a reply is sent again: to be counted twice does no harm. A command that was lost on its way may still arrive
// after the release; the lease then has to run out.
type AcquireRedisson struct {
	Key    string
	Holder string
	TTL    time.Duration

	tries int
	sent  Instant
	left  time.Duration
}

// Deadline returns the instant until which the lock is certainly ours. Valid once Acquired.
func (a *AcquireRedisson) Deadline() Instant { return a.sent.Add(a.TTL) }

// Left returns the holder's remaining TTL; negative when it has none. Valid once Busy.
func (a *AcquireRedisson) Left() time.Duration { return a.left }

// Next implements Machine.
func (a *AcquireRedisson) Next(now Instant, reply Reply) Step {
	switch {
	case a.tries == 0, reply.Kind == Silence && a.tries < 2:
		a.tries++
		a.sent = now
		return send(Command{Op: RedissonTake, Key: a.Key, Value: a.Holder, TTL: a.TTL})
	case reply.Kind == Silence:
		return done(Unsure)
	case reply.Kind == Fault && wrongType(reply):
		return done(Foreign)
	case reply.Kind == Fault && (reply.withinScript() || a.tries > 1): // it says nothing about the command whose reply was lost
		return done(Unsure)
	case reply.Kind == Fault:
		return done(Failed)
	case reply.Kind == Nil:
		return done(Acquired)
	}
	a.left = time.Duration(reply.Int) * time.Millisecond
	return done(Busy)
}

// ReleaseRedisson deletes the key, if it is the holder's, and announces that as Redisson's RLock.unlock does with the last hold.
type ReleaseRedisson struct {
	Key     string
	Channel string
	Holder  string

	tries int
}

// Next implements Machine.
func (r *ReleaseRedisson) Next(_ Instant, reply Reply) Step {
	switch {
	case r.tries == 0, reply.Kind == Silence && r.tries < 2:
		r.tries++
		return send(Command{Op: RedissonRelease, Key: r.Key, Value: r.Holder, Channel: r.Channel})
	case reply.Kind == Silence, reply.Kind == Fault && r.tries > 1:
		return done(Unsure)
	case reply.Kind == Fault:
		return done(Failed)
	case reply.is(0) && r.tries == 1:
		return done(NotOurs)
	default: // not ours any more after a question that was lost: by our doing, or by the end of the lease
		return done(Released)
	}
}
