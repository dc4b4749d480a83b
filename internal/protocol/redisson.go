package protocol

import (
	"fmt"
	"strconv"
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

// AcquireRedisson is Redisson's RLock.tryLock: it counts a hold of ours, the first or one more.
//
// Counting twice is not counting once, so a lost reply is settled by reading the count. A command that
// was lost on its way may still arrive after that and count once too often; the lease then has to run out.
type AcquireRedisson struct {
	Key    string
	Holder string
	TTL    time.Duration
	Holds  int // the count that this makes

	at    modernState
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
	case a.at == modernBegin:
		return a.take(now)
	case reply.Kind == Silence && a.tries < 2 && a.at == modernAsked:
		a.at = modernAskedAgain
		return send(Command{Op: RedissonCount, Key: a.Key, Value: a.Holder})
	case reply.Kind == Silence:
		return done(Unsure)
	case reply.Kind == Fault:
		if wrongType(reply) {
			return done(Foreign)
		}
		if reply.withinScript() || a.at == modernAskedAgain || a.tries > 1 { // it says nothing about the command whose reply was lost
			return done(Unsure)
		}
		return done(Failed)
	case a.at == modernAskedAgain && reply.Kind == Text && reply.Text == strconv.Itoa(a.Holds):
		return done(Acquired)
	case a.at == modernAskedAgain:
		return a.take(now)
	case reply.Kind == Nil:
		return done(Acquired)
	}
	a.left = time.Duration(reply.Int) * time.Millisecond
	return done(Busy)
}

func (a *AcquireRedisson) take(now Instant) Step {
	a.at, a.sent = modernAsked, now
	a.tries++
	return send(Command{Op: RedissonTake, Key: a.Key, Value: a.Holder, TTL: a.TTL})
}

// ReleaseRedisson is Redisson's RLock.unlock: it takes one hold of ours away, and with the last of them
// the key, which it announces.
type ReleaseRedisson struct {
	Key       string
	Channel   string
	Holder    string
	TTL       time.Duration
	Remaining int // the count that this leaves

	at    modernState
	tries int
}

// Next implements Machine.
func (r *ReleaseRedisson) Next(_ Instant, reply Reply) Step {
	switch {
	case r.at == modernBegin:
		return r.give()
	case reply.Kind == Silence && r.tries < 2 && r.at == modernAsked:
		r.at = modernAskedAgain
		return send(Command{Op: RedissonCount, Key: r.Key, Value: r.Holder})
	case reply.Kind == Silence, reply.Kind == Fault && (r.at == modernAskedAgain || r.tries > 1):
		return done(Unsure)
	case reply.Kind == Fault:
		return done(Failed)
	case r.at == modernAskedAgain:
		if n, err := strconv.Atoi(reply.Text); reply.Kind == Nil || err != nil || n <= r.Remaining {
			return done(Released)
		}
		return r.give()
	case reply.Kind == Nil:
		return done(NotOurs)
	case reply.is(0) && r.Remaining == 0 && r.tries < 3:
		return r.give() // a hold too many, of a command that was lost and came after all
	default:
		return done(Released)
	}
}

func (r *ReleaseRedisson) give() Step {
	r.at = modernAsked
	r.tries++
	return send(Command{Op: RedissonRelease, Key: r.Key, Value: r.Holder, Channel: r.Channel, TTL: r.TTL})
}
