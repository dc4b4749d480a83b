package explore

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// actor is one client's local state. It is a value: copying it forks the client.
type actor struct {
	session model.Session
	pending bool             // the session's command has been computed and has not run
	heard   bool             // it has run, and its reply is on its way
	reply   protocol.Reply   // ... this one
	stray   protocol.Command // a command that the client gave up on, and that may still run
	mail    []protocol.Reply // the messages that may come to it; never changed in place, since forks share it
	sleeps  bool
	stepped bool
	member  membership
	hand    hand // of a handover
	// Ticks. due is the last tick for what is pending or heard, Unbounded if there is none.
	due, wake, leaseEnd, renewAt Ticks
}

// act is one kind of step that a client, or the world, may take.
type act uint8

const (
	tickPasses act = iota
	begins         // wants the lock
	runs           // the pending command runs at the server
	hears          // its reply comes
	wakesUp
	works   // ends its work, begins to release
	renews  // begins to renew
	crashes // dies holding the lock
	steps   // its wall clock is stepped
	givesUp // stops waiting for a reply
	strays  // a command given up on runs at last
	syncs   // the replica catches up
	failsOver
	cancels  // gives its wait up
	corrects // the operator changes the record
	reports  // to the record: refreshes its lease, and hears of the correction
	posted   // the server sends it a message: a part of another's step
	reads    // the first of its messages; those after it have the acts after this one
)

func (m *Model) reading(c *Client, a *actor, tick Ticks) model.Reading {
	ahead := c.Ahead
	if a.stepped {
		ahead += c.StepBy
	}
	return model.Reading{
		Wall: Epoch.Add(time.Duration(tick+ahead) * m.Tick),
		Mono: protocol.Instant(time.Duration(tick) * m.Tick),
	}
}

// can lists what a client may do on its own at a tick; what the server takes part in is left to the
// caller.
func (m *Model) can(c *Client, a *actor, tick Ticks, acts []act) []act {
	s := &a.session
	if a.pending {
		acts = append(acts, runs)
	}
	if a.heard {
		acts = append(acts, hears)
	}
	if a.stray.Op != protocol.NoOp {
		acts = append(acts, strays)
	}
	if c.New != nil {
		return m.canHand(c, a, tick, acts)
	}
	switch {
	case s.Phase == model.Idle && int(s.Turn) < c.Turns && tick >= c.From && (c.Corrected == nil || tick < a.member.until):
		acts = append(acts, begins)
	case a.sleeps && (tick >= a.wake || c.Restless):
		acts = append(acts, wakesUp)
	case s.Phase == model.Holding:
		acts = append(acts, works)
		if s.Member.Renew > 0 && tick >= a.renewAt && m.inside(a, tick) {
			acts = append(acts, renews)
		}
	}
	if a.sleeps && s.Listens() {
		for i := range a.mail {
			acts = append(acts, reads+act(i))
		}
	}
	if a.sleeps && s.Phase == model.Acquiring && c.Cancels {
		acts = append(acts, cancels)
	}
	if s.Holds() && c.Crash || s.Phase == model.Acquiring && c.DiesInLine {
		acts = append(acts, crashes)
	}
	if c.StepBy != 0 && !a.stepped && s.Phase != model.Dead {
		acts = append(acts, steps)
	}
	return acts
}

// inside tells whether the client may be touching what the lock protects.
func (m *Model) inside(a *actor, tick Ticks) bool {
	s := &a.session
	return s.Holds() && (!s.Bounded() || protocol.Instant(time.Duration(tick)*m.Tick) < s.Deadline)
}

// latest is the last tick that this client allows to end, Unbounded if it does not mind.
func (m *Model) latest(c *Client, a *actor) Ticks {
	s := &a.session
	latest := Unbounded
	bound := func(t Ticks) {
		if t != Unbounded && (latest == Unbounded || t < latest) {
			latest = t
		}
	}
	if a.pending || a.heard {
		bound(a.due)
	}
	if a.sleeps && c.Punctual {
		bound(a.wake)
	}
	if c.InTime && s.Phase != model.Dead {
		bound(a.member.until - 1)
	}
	switch s.Phase {
	case model.Holding, model.Renewing:
		if !s.Bounded() && c.Scheme.Old() {
			bound(a.leaseEnd + c.Overrun)
		}
		if s.Phase == model.Holding && s.Member.Renew > 0 {
			bound(a.renewAt)
		}
	case model.Releasing:
		if c.Scheme.Old() && !c.StaleDel && (a.pending || a.heard) {
			bound(a.leaseEnd + c.Overrun)
		}
	}
	return latest
}

// take carries out what concerns the client alone.
func (m *Model) take(c *Client, a *actor, what act, tick Ticks) {
	now := m.reading(c, a, tick)
	s := &a.session
	if what >= reads {
		m.read(c, a, int(what-reads), tick)
		return
	}
	switch what {
	case begins:
		if c.New != nil {
			m.beginHand(c, a, tick)
			break
		}
		if c.Corrected != nil {
			m.obey(c, a, tick)
			a.member.started, a.member.bound = a.member.follows, a.member.until
		}
		m.follow(c, a, s.Acquire(now), tick)
	case hears:
		a.heard = false
		reply := a.reply
		a.reply = protocol.Reply{}
		m.follow(c, a, s.Next(now, reply), tick)
	case wakesUp:
		a.sleeps = false
		m.follow(c, a, s.Next(now, protocol.Reply{Kind: protocol.Woke}), tick)
	case works:
		if c.New != nil {
			a.hand.doing = gives
			break
		}
		m.follow(c, a, s.Release(now), tick)
	case renews:
		m.follow(c, a, s.Renew(now), tick)
	case crashes:
		s.Crash()
		stray := a.stray
		if a.pending {
			stray = *s.Sent()
		}
		*a = actor{session: *s, stray: stray, stepped: a.stepped, member: a.member, hand: a.hand}
		a.hand.die()
	case cancels:
		a.sleeps = false
		m.follow(c, a, s.GiveUp(now), tick)
	case steps:
		a.stepped = true
	case givesUp:
		if a.pending { // it may still run
			a.stray = *s.Sent()
		}
		a.pending, a.heard, a.reply = false, false, protocol.Reply{}
		m.follow(c, a, s.Next(now, protocol.Reply{Kind: protocol.Silence}), tick)
	}
	if c.New != nil {
		m.proceed(c, a, tick)
	}
	m.normalise(a)
}

// receive gives the client the reply of its pending command, or sends it on its way.
func (m *Model) receive(c *Client, a *actor, reply protocol.Reply, tick Ticks) {
	a.pending = false
	if c.ReplyLate > 0 {
		a.heard, a.reply, a.due = true, reply, tick+c.ReplyLate
		return
	}
	m.follow(c, a, a.session.Next(m.reading(c, a, tick), reply), tick)
	if c.New != nil {
		m.proceed(c, a, tick)
	}
	m.normalise(a)
}

func (m *Model) follow(c *Client, a *actor, step protocol.Step, tick Ticks) {
	switch step.Kind {
	case protocol.Send:
		a.pending, a.due = true, Unbounded
		if d := c.delay(step.Command.Op); d != Unbounded {
			a.due = tick + d
		}
		if a.session.Phase == model.Releasing && c.StaleDel {
			a.due = Unbounded
		}
	case protocol.Sleep:
		a.sleeps = true
		a.wake = tick + int((step.Sleep+m.Tick-1)/m.Tick)
	case protocol.Done:
		switch {
		case !a.session.Holds():
			if undo, ok := a.session.Undo(m.reading(c, a, tick)); ok {
				m.follow(c, a, undo, tick)
			}
		case step.Verdict == protocol.Acquired, step.Verdict == protocol.Renewed, step.Verdict == protocol.Repaired:
			a.leaseEnd = m.leaseEnd(c, a, tick)
			a.renewAt = tick + int(a.session.Member.Renew/m.Tick)
		case a.session.Ended == model.Renewing:
			a.renewAt = tick + 1
		}
	}
}

// leaseEnd is the tick at which the lease is over that the client has just won. The client may have
// computed it long before it won.
func (m *Model) leaseEnd(c *Client, a *actor, tick Ticks) Ticks {
	if !a.session.Scheme.Old() {
		return 0
	}
	left := a.session.LeaseEnd().Sub(m.reading(c, a, tick).Wall)
	return tick + int((left+m.Tick/4)/m.Tick)
}

// normalise forgets what no longer matters, so that states that behave alike are equal.
func (m *Model) normalise(a *actor) {
	s := &a.session
	if !a.pending && !a.heard {
		a.due = 0
	}
	if !s.Hears() {
		a.mail = nil
	}
	if !a.sleeps {
		a.wake = 0
	}
	if !s.Holds() && s.Phase != model.Releasing || s.Bounded() {
		a.leaseEnd = 0
	}
	if s.Phase != model.Acquiring {
		a.member.started, a.member.bound = false, 0
	}
	if !s.Holds() || s.Member.Renew == 0 {
		a.renewAt = 0
	}
}

func (a *actor) append(b []byte) []byte {
	b = append(b, flag(a.pending, 0)|flag(a.heard, 1)|flag(a.sleeps, 2)|flag(a.stepped, 3)|flag(a.session.Phase == model.Dead, 4))
	b = append(b, byte(a.due+1), byte(a.wake), byte(a.leaseEnd), byte(a.renewAt))
	b = append(b, flag(a.member.follows, 0)|flag(a.member.told, 1)|flag(a.member.started, 2), byte(a.member.until), byte(a.member.bound))
	b = append(b, byte(a.session.Member.Renew/time.Millisecond))
	b = append(b, byte(a.stray.Op))
	if a.stray.Op != protocol.NoOp {
		b = appendCommand(b, &a.stray)
	}
	if a.heard {
		b = append(appendReply(b, &a.reply), 0)
	}
	for _, letter := range a.mail {
		b = append(b, byte(letter.Kind))
		b = binary.AppendVarint(binary.AppendVarint(b, letter.Int), letter.Int2)
	}
	b = append(b, byte(len(a.mail)))
	if a.hand.other != nil {
		b = a.hand.append(b)
	}
	return a.session.AppendState(b)
}

func appendReply(b []byte, r *protocol.Reply) []byte {
	b = append(b, byte(r.Kind))
	for _, n := range [...]int64{r.Int, r.Int2, r.Int3, r.Int4} {
		b = binary.AppendVarint(b, n)
	}
	return append(b, r.Text...)
}

// appendCommand writes what tells a command from others of this model: what a client may say differently from one
// time to the next. Equal commands do the same to the server.
func appendCommand(b []byte, c *protocol.Command) []byte {
	b = append(b, byte(c.Op), flag(c.Hand, 0))
	for _, s := range [...]string{c.Key, c.Value, c.Old, c.Channel, c.Entry, c.Stood} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	if c.Sidecar != nil {
		b = fmt.Append(b, *c.Sidecar)
	}
	for _, n := range [...]int64{int64(c.TTL), int64(c.Claim), int64(c.Held), int64(c.Grace), int64(c.NotAfter)} {
		b = binary.AppendVarint(b, n)
	}
	return b
}

func flag(b bool, shift uint) byte {
	if b {
		return 1 << shift
	}
	return 0
}
