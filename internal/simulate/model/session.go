package model

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Phase is where in its turn a client is.
type Phase uint8

const (
	Idle      Phase = iota
	Acquiring       // the acquiring machine runs
	Holding         // the lock is ours as far as we know; no command is under way
	Renewing        // as Holding, and the renewing machine runs
	Releasing       // the section is left; the releasing machine runs
	Dead            // crashed
)

// Reading is one look at a client's clocks: the wall clock, which NTP may step, and the monotonic
// one, which only drifts.
type Reading struct {
	Wall protocol.Instant
	Mono protocol.Instant
}

// Session is a client in its turn.
type Session struct {
	*Member
	ID    uint32
	Key   string           // the lock of this turn: Member.Key, unless On named another
	bound protocol.Instant // of its commands: Member.NotAfter, unless Obey gave another
	Phase Phase
	Turn  uint32

	Value  string           // what we put on the key; also after an acquisition that ended Unsure
	Expiry protocol.Instant // legacy: the end of the lease by our wall clock

	// Legacy: what a renewal without an answer may have written over Value, and its end.
	pending       string
	pendingExpiry protocol.Instant

	// Deadline is the end of what a bridge or modern holder may believe, by its monotonic clock:
	// the TTL, counted from before the command that won it was sent.
	Deadline protocol.Instant
	// Fence is the fencing number that came with the lock; 0 is none.
	Fence int64

	Ended Phase // the phase that the last verdict ended
	// owes: something of ours may still stand on the server, after an acquisition whose outcome is unknown, and after a renewal that found
	// another's value on the key and our guard beside it.
	owes bool

	asked   protocol.Instant // monotonic, before the command under way was sent
	began   protocol.Instant // monotonic, before the first command of the renewal under way
	sent    protocol.Command // the command under way
	machine protocol.Machine // the one that runs; nil: none. Whoever copies the session forks it
	guard   string           // the guard's name, once asked for

	fenceKey string // of the fencing counter; empty for none

	puts    int                     // how often the ablation PutBacks has put a value back in this attempt
	attempt *protocol.BridgeAcquire // of this turn: what it was told is needed for its release

	patience time.Duration // modern: how much sleep is left in this turn

	// stands: our entry is in the queue beside the lock that we have. A real client removes it at once; here
	// that is left to the release, so that it stands there for as long as it ever can.
	entryLeft bool

	doubled bool // the second DEL of this turn is sent

	asks bool             // the sidecar asks for the attempt that it holds back
	held protocol.Command // that attempt, as the client sent it
	drew int64            // tokens of a sidecar that holds attempts back: two threads of its service may not draw the same
}

// NewSession makes the session of the id-th client.
func NewSession(id int, member *Member) Session {
	return Session{Member: member, ID: uint32(id), Key: member.Key, fenceKey: member.Fence, bound: member.NotAfter}
}

// Obey takes over the answer to a report: the member as its namespace's record makes it now, and the end of its lease on the
// server's clock. What is under way goes on as it began.
func (s *Session) Obey(member *Member, until protocol.Instant) { s.Member, s.bound = member, until }

// On makes the next turn one at another key. Fence is the key of its fencing counter, which a member without fencing
// does not use.
func (s *Session) On(key, fence string) {
	if s.Key != key {
		s.Key, s.guard = key, ""
	}
	if s.Member.Fence != "" {
		s.fenceKey = fence
	}
}

// Acquire begins a turn.
func (s *Session) Acquire(now Reading) protocol.Step {
	s.Phase = Acquiring
	s.Turn++
	s.forget()
	s.doubled = false
	s.beginAcquire()
	return s.Next(now, protocol.Reply{})
}

// Renew begins a renewal; the lock stays believed in while it runs.
func (s *Session) Renew(now Reading) protocol.Step {
	s.Phase, s.began = Renewing, now.Mono
	s.beginRenew()
	return s.Next(now, protocol.Reply{})
}

// Release leaves the section and begins to give the lock back.
func (s *Session) Release(now Reading) protocol.Step {
	s.Phase = Releasing
	s.beginRelease()
	return s.Next(now, protocol.Reply{})
}

// Undo gives back what may be left of an acquisition that ended Unsure, or of a displaced lock, where the value proves what is ours. It is
// asked when a machine is done.
func (s *Session) Undo(now Reading) (protocol.Step, bool) {
	owes := s.owes && !s.Scheme.Old() && s.Value != ""
	if s.owes = false; !owes {
		s.forget()
		return protocol.Step{}, false
	}
	return s.giveUp(now), true
}

// GiveUp ends a wait for the lock: the client leaves the queue, and gives the key back if that has come meanwhile.
func (s *Session) GiveUp(now Reading) protocol.Step {
	s.Ended = Acquiring
	return s.giveUp(now)
}

// giveUp begins a release that does not know what there is to give back.
func (s *Session) giveUp(now Reading) protocol.Step {
	s.Phase = Releasing
	s.beginRelease()
	switch r := s.machine.(type) {
	case *protocol.BridgeRelease:
		r.Hand = false // what is ours may be a takeover that has not settled
		if s.Ended == Acquiring {
			r.Entry, r.Stood = s.attempt.Entries()
		}
	case *protocol.ModernRelease:
		if s.Member.Queue && s.Ended == Acquiring {
			r.Entry, r.Channel, r.Claim = true, s.Channel(), s.claim()
		}
	}
	return s.Next(now, protocol.Reply{})
}

// Crash ends the process: nothing of it remains but what it sent.
func (s *Session) Crash() {
	*s = Session{Member: s.Member, ID: s.ID, Key: s.Key, bound: s.bound, fenceKey: s.fenceKey, Turn: s.Turn, Phase: Dead, guard: s.guard}
}

// Holds tells that the client believes that it holds the lock.
func (s *Session) Holds() bool { return s.Phase == Holding || s.Phase == Renewing }

// Next tells the running machine the time and the last reply. When the machine is done, the session
// has moved on to its next phase, and the step says with which verdict.
func (s *Session) Next(now Reading, reply protocol.Reply) protocol.Step {
	if s.Mutation != nil && s.Mutation.Reply != nil && reply.Kind != protocol.Begin {
		reply = s.Mutation.Reply(s, &s.sent, reply)
	}
	step, again := protocol.Step{Kind: protocol.Send, Command: s.held}, s.Twice && !s.doubled && s.sent.Op == protocol.SidecarDel && reply.Kind != protocol.Silence
	switch {
	case again:
		s.doubled, step.Command = true, s.sent
	case !s.asks:
		step = s.advance(now, reply)
	}
	if step.Kind == protocol.Send && s.Behind != "" && !again {
		s.asks, s.held = !s.asks && s.Held && step.Command.Op == protocol.SetNX, protocol.Command{}
		if s.asks {
			s.held = step.Command
		}
		step.Command = s.translate(now, step.Command)
	}
	if s.Mutation != nil && s.Mutation.Step != nil {
		step = s.Mutation.Step(s, &s.sent, reply, step)
	}
	switch step.Kind {
	case protocol.Send:
		s.sent, s.asked = step.Command, now.Mono
	case protocol.Sleep:
		s.sent = protocol.Command{}
	case protocol.Done:
		s.finish(now, step.Verdict)
		s.sent, s.machine = protocol.Command{}, nil
	}
	return step
}

// advance asks the machine. In the old code a missing reply is an exception that leaves the operation.
func (s *Session) advance(now Reading, reply protocol.Reply) protocol.Step {
	_, keeps := s.machine.(*keeper)
	switch {
	case reply.Kind == protocol.Silence && s.Scheme.faithful() && !keeps:
		return protocol.Step{Kind: protocol.Done, Verdict: protocol.Threw}
	case s.Scheme == Modern:
		return s.advanceModern(now, reply)
	case s.Scheme == Bridge && s.Phase == Acquiring:
		return s.acquireBridge(now, reply)
	case s.Scheme == Bridge && !s.Truthful:
		return s.machine.Next(now.Mono, reply)
	}
	return s.machine.Next(now.Wall, reply)
}

// Sent is the command under way.
func (s *Session) Sent() *protocol.Command { return &s.sent }

// finish moves on when a machine is done.
func (s *Session) finish(now Reading, verdict protocol.Verdict) {
	s.Ended = s.Phase
	switch s.Phase {
	case Acquiring:
		s.Phase = Idle
		if verdict == protocol.Acquired {
			s.Phase = Holding
			s.takeOver(now)
		}
	case Renewing:
		s.Phase = Holding
		if r, ok := s.machine.(*protocol.LegacyRenew); ok {
			s.Value, s.Expiry, s.pending, s.pendingExpiry = r.Value, r.ValueExpiry, r.Pending, r.PendingExpiry
		}
		switch verdict {
		case protocol.Renewed, protocol.Repaired:
			s.takeOver(now)
		case protocol.Lost, protocol.Displaced:
			s.Phase = Idle
		}
	default:
		s.Phase = Idle
	}
	s.owes = s.Ended == Acquiring && verdict == protocol.Unsure || s.Ended == Renewing && verdict == protocol.Displaced
	if s.Phase == Idle && !s.owes {
		s.forget()
	}
}

// forget makes an idle client remember nothing.
func (s *Session) forget() {
	s.Value, s.Expiry, s.Deadline, s.Fence, s.asked, s.entryLeft = "", 0, 0, 0, 0, false
	s.pending, s.pendingExpiry = "", 0
}

// Bounded tells that the holder stops by itself at its Deadline. The unmodified old code never looks.
func (s *Session) Bounded() bool { return !s.Scheme.faithful() && !s.NoDeadline }

// LeaseEnd is the end of the lease that the holder's value grants, by its wall clock and without the
// unit that some writers add; for a token it is the deadline, by the monotonic clock.
func (s *Session) LeaseEnd() protocol.Instant {
	if !s.Scheme.Old() {
		return s.Deadline
	}
	extra := time.Duration(s.Dialect.Extra)
	if s.Dialect.Unit == protocol.FloatSeconds {
		return s.Expiry.Add(-extra * time.Second)
	}
	return s.Expiry.Add(-extra * s.Dialect.Unit.Resolution())
}

// translate is what the client's sidecar sends in place of a command.
func (s *Session) translate(now Reading, c protocol.Command) protocol.Command {
	if s.Held && c.Op == protocol.SetNX {
		s.drew++
	}
	side := protocol.Sidecar{
		Name: s.Behind, Dialect: s.Dialect, Lease: s.Lease, Legacy: s.OldStage, Alone: s.Member.Queue, Grace: s.Grace, Settle: s.Settle, Poll: s.Poll,
		Far: s.Dialect.BridgeValue(protocol.BridgeLow, s.nobody()),
	}
	host := now.Wall.Add(s.Host)
	if s.asks {
		c = side.Wait(host, c.Key, s.drawn())
		c.NotAfter = s.bound
	} else if c.Op == protocol.SidecarKeep {
		c = side.Keep(host, c.Key, true)
		c.NotAfter = s.bound
	} else {
		c = side.Translate(host, c, s.drawn(), s.bound)
	}
	if c.Sidecar != nil && s.NoGuard {
		c.Guard = s.Guard()
	}
	return c
}

func (s *Session) drawn() string { return s.Dialect.BridgeValue(s.number()+s.drew*1000, s.nobody()) }

// keeper asks once what has become of the lock. The client does not hear of it, whatever comes.
type keeper struct {
	key   string
	asked bool
}

// Next implements protocol.Machine.
func (k *keeper) Next(protocol.Instant, protocol.Reply) protocol.Step {
	if k.asked {
		return protocol.Step{Kind: protocol.Done, Verdict: protocol.Renewed}
	}
	k.asked = true
	return protocol.Step{Kind: protocol.Send, Command: protocol.Command{Op: protocol.SidecarKeep, Key: k.key}}
}
