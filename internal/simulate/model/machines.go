package model

import (
	"cmp"
	"reflect"
	"strconv"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// This file says which machine does what for which scheme.

// Fork gives a session that was copied a machine of its own.
func (s *Session) Fork() {
	if s.machine == nil {
		return
	}
	fork := reflect.New(reflect.TypeOf(s.machine).Elem())
	fork.Elem().Set(reflect.ValueOf(s.machine).Elem())
	s.machine = fork.Interface().(protocol.Machine)
	if a, ok := s.machine.(*protocol.BridgeAcquire); ok {
		s.attempt = a
	}
}

func (s *Session) beginAcquire() {
	switch s.Scheme {
	case Legacy, GoLegacy, Sidecar:
		s.machine = &protocol.LegacyAcquire{
			Dialect: s.Dialect, Key: s.Key, Owner: s.Owner,
			Lease: s.Lease, Poll: s.Poll, Patience: s.Patience, Faithful: s.Scheme.faithful(), NotAfter: s.bound,
		}
	case Bridge:
		s.Value = s.Dialect.BridgeValue(s.number(), s.nobody())
		a := &protocol.BridgeAcquire{
			Dialect: s.Dialect, Key: s.Key, Guard: s.Guard(), Fence: s.fenceKey, FenceTTL: fenceTTL,
			Value: s.Value, TTL: s.Lease, Grace: s.Grace, Settle: s.Settle, Alone: s.Alone,
			Poll: s.Poll, Patience: s.Patience, NotAfter: s.bound,
		}
		if s.Yield > 0 {
			a.Yield = protocol.Yield{Key: protocol.YieldKey(s.Key), Gap: s.Yield}
		}
		if s.Member.Queue {
			a.Queue, a.Channel, a.Claim, a.QueueTTL = s.queueKey(), s.Channel(), s.claim(), cmp.Or(s.QueueTTL, 4*s.Poll+s.Lease)
		}
		s.machine, s.attempt = a, a
	default:
		s.Value = s.token()
		s.patience = s.Patience
		s.tryModern()
	}
}

func (s *Session) beginRenew() {
	switch s.Scheme {
	case Sidecar: // the old code renews nothing; its sidecar looks after the lock
		s.machine = &keeper{key: s.Key}
	case Legacy, GoLegacy:
		s.machine = &protocol.LegacyRenew{
			Dialect: s.Dialect, Key: s.Key, Owner: s.Owner, Lease: s.Lease, Value: s.Value, ValueExpiry: s.Expiry,
			Pending: s.pending, PendingExpiry: s.pendingExpiry,
		}
	case Bridge:
		s.machine = &protocol.BridgeRenew{
			Key: s.Key, Guard: s.Guard(), Fence: s.fenceKey, FenceTTL: fenceTTL, Value: s.Value, TTL: s.Lease, NotAfter: s.bound,
		}
	default:
		s.machine = &protocol.ModernRenew{
			Key: s.Key, Token: s.Value, TTL: s.Lease, Fence: s.fenceKey, FenceTTL: fenceTTL, Redisson: s.Redisson,
		}
	}
}

func (s *Session) beginRelease() {
	switch s.Scheme {
	case Legacy, GoLegacy, Sidecar:
		s.machine = &protocol.LegacyRelease{
			Dialect: s.Dialect, Key: s.Key, Policy: s.Member.Release,
			Value: s.Value, Pending: s.pending, Expiry: s.Expiry, Faithful: s.Scheme.faithful(),
		}
	case Bridge:
		r := &protocol.BridgeRelease{Key: s.Key, Guard: s.Guard(), Value: s.Value, Leftover: s.Dialect.Leftover(), Breath: s.Dialect.Breath(),
			Yield: s.attempt.Yield, Taken: s.attempt.Won()}
		if s.Member.Queue {
			r.Queue, r.Hand, r.Fence, r.FenceTTL = s.queueKey(), true, s.fenceKey, fenceTTL
		}
		s.machine = r
	default:
		r := &protocol.ModernRelease{Key: s.Key, Token: s.Value, Fence: s.fenceKey, FenceTTL: fenceTTL, Redisson: s.Redisson}
		if s.Member.Queue && !s.Redisson {
			r.Queue, r.Guard, r.Share = s.queueKey(), s.Guard(), s.Share
		}
		if s.entryLeft {
			r.Entry, r.Held = true, true
			r.Channel, r.Claim = s.Channel(), s.claim()
		}
		s.machine = r
	}
}

// takeOver takes over what the machine knows that has won the lock, or renewed it: its deadline above all, which the machine counts from before
// the command was sent. The ablation FromReply counts it from the reply.
func (s *Session) takeOver(now Reading) {
	lasts := s.Lease
	handed := func() { lasts = s.claim().Truncate(time.Millisecond) }
	switch m := s.machine.(type) {
	case *protocol.LegacyAcquire:
		s.Value, s.Expiry, s.Deadline = m.Value(), m.Expiry(), s.asked.Add(s.Lease)
	case *protocol.LegacyRenew: // the new value was computed after that
		s.Deadline = s.began.Add(s.Lease)
	case *protocol.BridgeAcquire:
		s.Value, s.Deadline, s.Fence = m.Value, m.Deadline(), m.FenceToken()
		if s.Truthful { // that machine thinks in wall time
			s.Deadline = s.asked.Add(s.Lease)
		}
		if m.Handed() {
			handed()
		}
	case *protocol.BridgeRenew:
		s.Deadline = s.asked.Add(s.Lease)
	case *protocol.ModernAcquire:
		s.Deadline, s.Fence = m.Deadline(), m.FenceToken()
	case *protocol.ModernQueue:
		s.Deadline, s.Fence, s.entryLeft = m.Deadline(), m.FenceToken(), m.EntryLeft()
		if m.Handed() {
			handed()
		}
	case *protocol.ModernRenew:
		s.Deadline = m.Deadline()
	}
	if s.FromReply {
		s.Deadline = now.Mono.Add(lasts)
	}
}

// tryModern begins one attempt, or the wait in the queue.
func (s *Session) tryModern() {
	if s.Member.Queue && !s.Redisson {
		q := &protocol.ModernQueue{
			Key: s.Key, Queue: s.queueKey(), Guard: s.Guard(), Token: s.Value, Channel: s.Channel(), TTL: s.Lease, Claim: s.claim(),
			QueueTTL: 3 * s.Lease, Fence: s.fenceKey, FenceTTL: fenceTTL, Share: s.Share,
			MaxSleep: s.maxSleep(), Tries: 3,
		}
		if s.Yield > 0 {
			q.Yield = protocol.YieldKey(s.Key)
		}
		s.machine = q
		return
	}
	s.machine = &protocol.ModernAcquire{Key: s.Key, Token: s.Value, TTL: s.Lease, Fence: s.fenceKey, FenceTTL: fenceTTL, Redisson: s.Redisson}
}

// advanceModern asks a token machine, which thinks in monotonic time, and asks again after a poll
// while the lock is busy and patience lasts.
func (s *Session) advanceModern(now Reading, reply protocol.Reply) protocol.Step {
	_, polls := s.machine.(*protocol.ModernAcquire)
	if reply.Kind == protocol.Woke && polls {
		s.tryModern()
		reply = protocol.Reply{}
	}
	if reply.Kind == protocol.Woke && s.Phase == Acquiring {
		// A member that has tracking hears of a change, one that has not finds it when its sleep is over. Here
		// every waking is taken for a change: it allows more, the key to be taken past the queue.
		reply.Kind = protocol.Changed
	}
	step := s.machine.Next(now.Mono, reply)
	if step.Kind == protocol.Done && step.Verdict == protocol.Busy && polls {
		if s.patience -= s.Poll; s.patience >= 0 {
			return protocol.Step{Kind: protocol.Sleep, Sleep: s.Poll}
		}
	}
	return step
}

// fenceTTL is how long the fencing counter outlives its last use.
const fenceTTL = 24 * time.Hour

func (s *Session) claim() time.Duration { return cmp.Or(s.Member.Claim, s.Lease/3) }

func (s *Session) maxSleep() time.Duration { return cmp.Or(s.MaxSleep, s.Lease) }

func (s *Session) queueKey() string { return protocol.QueueKey(s.Key) }

// Hears tells that messages may come to the client: it waits for the lock. They may be read later.
func (s *Session) Hears() bool { return s.Phase == Acquiring && !s.Polls }

// Watches tells that a client that Tracks hears of the next change of the key: those far back in the queue do not watch it.
func (s *Session) Watches() bool {
	return s.Phase == Acquiring && (s.Scheme != Bridge || s.attempt.Before() < 2)
}

// Listens tells that a message may end the sleep that the client is in: a wait for the lock, not the settling
// of one that it may have.
func (s *Session) Listens() bool {
	return s.Hears() && (s.Scheme != Bridge || !s.attempt.Holds())
}

// Channel is where the client listens for the lock to be granted to it.
func (s *Session) Channel() string {
	if s.Scheme == Sidecar {
		return protocol.SidecarChannel(s.Behind)
	}
	if s.Polls {
		return protocol.Polls
	}
	return s.Name
}

// ClientOf tells whose token or bridge value a value is.
func ClientOf(value string) (id int, ok bool) {
	n, err := strconv.ParseInt(value, 10, 64)
	id = int((n-firstNumber)/numbersEach) - 1
	return id, err == nil && n > firstNumber && id >= 0 // a number below the first client's is nobody's
}

const firstNumber, numbersEach = 6_000_000_000_000_000_000, 1_000_000_000_000

// token returns this turn's token: as random ones are, different from all others and, unless Plain, a
// number of 19 digits that every legacy reader takes for an expiry in the far future.
func (s *Session) token() string {
	if s.Plain {
		return "token-" + s.Name + "-" + strconv.Itoa(int(s.Turn))
	}
	return strconv.FormatInt(s.number(), 10)
}

// number is the bridge's and the token's number of this turn.
func (s *Session) number() int64 {
	return firstNumber + int64(s.ID+1)*numbersEach + int64(s.Turn)
}

// nobody is an owner's part that no legacy client writes.
func (s *Session) nobody() string {
	switch s.Dialect.Layout {
	case protocol.UUIDColonNumber:
		return "b0000000-0000-4000-8000-000000000000"
	case protocol.NumberDashOwner:
		return "1-bridge"
	case protocol.NumberColonOwner:
		return "1"
	}
	return ""
}

// Guard is the bridge's second key.
func (s *Session) Guard() string {
	if s.guard == "" {
		s.guard = protocol.GuardKey(s.Key)
		if s.NoGuard { // one that nobody else looks at
			s.guard += s.Name
		}
	}
	return s.guard
}
