package compat

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// lock is a lock that we hold, or held. It is renewed and released in the way it was taken, whatever
// the stage is by then.
type lock struct {
	lifetime.Life
	locker *locker
	permit permit
	key    string
	fence  int64
	heard  atomic.Pointer[word] // the last answer to a renewal; nil: extended
	bridge bridgeHold           // how it was taken in the stages Bridge and Modern: one allocation for both
	legacy *legacyHold          // in stage Legacy; else nil
	old    *recorded            // the attempt in stage Legacy, once it has begun

	wait     *wait // of the one who acquires it; nil at a first try
	patient  bool  // who acquires it will wait in the queue if it must
	tookOver bool  // an expired legacy value
}

// newLock prepares an attempt.
func (l *locker) newLock(ctx context.Context, key string) *lock {
	k := &lock{locker: l, key: key}
	k.Init(&l.Lives, k, ctx)
	return k
}

// begin sets the lease. began and until are counted from before the command that set the key was sent, or from before the
// last question when it was handed over, so that the local deadline is never later than the server's.
func (k *lock) begin(fence int64, tookOver bool, began, until protocol.Instant) {
	h := k.hold()
	k.fence, k.tookOver = fence, tookOver
	k.permit.Acquired()
	s := &k.Lease
	s.Owner, s.Span, s.Every, s.Max = k, h.span(), h.every(), k.permit.Terms.MaxHold
	if h.alone() {
		s.Owner = alone{k}
	}
	s.Begin(began, until)
}

// hold is how the lock was taken.
func (k *lock) hold() hold {
	if k.legacy != nil {
		return k.legacy
	}
	return &k.bridge
}

var _ lifetime.Sole = (*lock)(nil)

// Key, Token, Fence and Stage are the holder's too.

func (k *lock) Key() string              { return k.key }
func (k *lock) Token() string            { return k.hold().value() }
func (k *lock) Fence() int64             { return k.fence }
func (k *lock) Stage() lockmigrate.Stage { return k.permit.Stage }

// seenBy is what a machine has found on the key in our place.
func seenBy(m protocol.Machine) string {
	if s, ok := m.(interface{ Seen() string }); ok {
		return s.Seen()
	}
	return ""
}

// leaveAtDeadline lets the permit last until the deadline or the release: a displaced holder keeps its
// guard for as long as it may still be at work.
func (k *lock) leaveAtDeadline() { k.permit.LeaveAt(k.locker.Clock.At(k.Lease.Until())) }

// Acquired implements lifetime.Kind: what an attempt of the stages Bridge and Modern may have left is given back.
func (k *lock) Acquired(driver.Outcome) {
	defer k.locker.Background.End()
	k.locker.giveBack(k, k.locker.Clock.Now())
}

// Renew implements lifetime.Kind.
func (k *lock) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l := k.locker
	if k.legacy != nil { // it writes a time
		if err := l.serverClock.Sync(ctx); err != nil {
			return driver.Ended(protocol.Failed, err), context.Cause(ctx)
		}
	}
	m := k.hold().renewal(l.gate.Bound())
	settle := func(o driver.Outcome) {
		k.hold().renewed(m)
		k.hear(o.Step.Verdict, m)
	}
	outcome, err := l.runner(k.permit.Terms.rules).Advance(ctx, l.timed(m), protocol.Reply{}, func(o driver.Outcome) {
		settle(o)
		abandoned(o)
	})
	if err == nil {
		settle(outcome)
	}
	return outcome, err
}

// Release implements lifetime.Kind.
func (k *lock) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l, m := k.locker, k.hold().release()
	if r, ok := m.(*protocol.BridgeRelease); ok && r.Taken != 0 && l.Clock.Now().Sub(r.Taken) >= time.Millisecond {
		r.Behind = max(l.Hub.Waiting(k.key)-1, 0) // the first of this process has an entry
	}
	return l.runner(k.permit.Terms.rules).Advance(ctx, l.timed(m), protocol.Reply{}, abandoned)
}

// word is an answer that is worth remembering.
type word struct {
	verdict protocol.Verdict
	seen    string // Displaced: what stands on the key
}

func (k *lock) hear(v protocol.Verdict, m protocol.Machine) {
	if v == protocol.Renewed {
		k.heard.Store(nil)
		return
	}
	k.heard.Store(&word{v, seenBy(m)})
}

// Explain implements lifetime.Kind.
func (k *lock) Explain(e *lockmigrate.Error) {
	switch {
	case e.Reason == lockmigrate.ReasonDisplaced:
		if heard := k.heard.Load(); e.Op == "release" { // perhaps one whose caller has left
			e.Value = k.bridge.giving.Seen()
		} else if heard != nil {
			e.Value = heard.seen
		}
		// Nobody sees which: a client that came in after a stale DEL, or one that sets a key without a condition.
		e.Note = "displaced: another client came in after a stale DEL, or overwrote the key; it holds " + fmt.Sprintf("%.120q", e.Value)
	case e.Kind == nil && isLate(e.Cause):
		e.Kind = lockmigrate.ErrStage
	}
}

// Ended implements lifetime.Kind.
func (k *lock) Ended(lost *lockmigrate.Error) {
	switch {
	case lost == nil:
	case lost.Reason == lockmigrate.ReasonDeadline:
		// The server's TTL ends no earlier, and nothing of ours renews it any more.
		k.permit.Leave()
	case lost.Reason != lockmigrate.ReasonClosed:
		k.leaveAtDeadline()
	}
}

// Gone implements lifetime.Kind.
func (k *lock) Gone() {
	k.permit.Leave()
	k.over()
}

// over notes that nothing of ours is on the server any more, where we stood in the key's queue.
func (k *lock) over() {
	if k.legacy == nil && k.wait != nil {
		k.locker.Hub.Over(k.key, k.bridge.acquire.Value)
	}
}

// Renewal implements lifetime.Held: the command that the machine begins with.
func (k *lock) Renewal() protocol.Command {
	return k.hold().renewal(k.locker.gate.Bound()).Next(0, protocol.Reply{}).Command
}

// Heard implements lifetime.Held: what the machine makes of the reply.
func (k *lock) Heard(reply protocol.Reply) lifetime.Answer {
	m := k.hold().renewal(0)
	m.Next(0, protocol.Reply{})
	step := m.Next(0, reply)
	k.hear(step.Verdict, m)
	switch step.Verdict {
	case protocol.Renewed, protocol.Repaired:
		return lifetime.Extended
	case protocol.Displaced, protocol.Lost:
		return lifetime.Gone
	default:
		return lifetime.Unclear
	}
}

// Renewed implements lifetime.Held.
func (k *lock) Renewed(took time.Duration) { k.RenewedAs(k.lastHeard(), took) }

// Lost implements lifetime.Held.
func (k *lock) Lost(why lifetime.Loss) {
	if why == lifetime.Taken {
		k.LoseTo(k.lastHeard(), "renew")
		return
	}
	k.Life.Lost(why)
}

func (k *lock) lastHeard() protocol.Verdict {
	if heard := k.heard.Load(); heard != nil {
		return heard.verdict
	}
	return protocol.Renewed
}

// alone is the renewer's side of a lock whose renewal writes what the next command must know: that of
// stage Legacy.
type alone struct{ *lock }

// RenewAlone implements lifetime.Alone.
func (k alone) RenewAlone(ctx context.Context) (lifetime.Answer, error) {
	answer, _, err := k.Life.RenewAlone(ctx)
	return answer, err
}

// hold is the way in which a lock was taken, and in which it is therefore renewed and released.
type hold interface {
	value() string
	span() time.Duration  // from one renewal to the end, if none follows
	every() time.Duration // between two renewals
	alone() bool          // its renewal is no matter of one command
	renewal(notAfter protocol.Instant) protocol.Machine
	renewed(m protocol.Machine) // takes over what a machine that renewal returned has left on the key
	release() protocol.Machine  // only one of them is under way
}

// bridgeHold is a lock of the stages Bridge and Modern.
type bridgeHold struct {
	acquire protocol.BridgeAcquire // says what the lock's keys are
	giving  protocol.BridgeRelease // one release runs at a time
	opts    *Options
}

func (h *bridgeHold) value() string            { return h.acquire.Value }
func (h *bridgeHold) span() time.Duration      { return h.opts.TTL }
func (h *bridgeHold) every() time.Duration     { return h.opts.renewEvery }
func (h *bridgeHold) alone() bool              { return false }
func (h *bridgeHold) renewed(protocol.Machine) {}

func (h *bridgeHold) renewal(notAfter protocol.Instant) protocol.Machine {
	a := &h.acquire
	return &protocol.BridgeRenew{
		Key: a.Key, Guard: a.Guard, Fence: a.Fence, FenceTTL: a.FenceTTL,
		Value: a.Value, TTL: a.TTL, NotAfter: notAfter,
	}
}

func (h *bridgeHold) release() protocol.Machine { return h.giveBack() }

func (h *bridgeHold) giveBack() *protocol.BridgeRelease {
	m, a := &h.giving, &h.acquire
	*m = protocol.BridgeRelease{
		Key: a.Key, Guard: a.Guard, Value: a.Value, Yield: a.Yield, Taken: a.Won(),
		Queue: a.Queue, Hand: true, Fence: a.Fence, FenceTTL: a.FenceTTL,
		Leftover: a.Dialect.Leftover(), Breath: a.Dialect.Breath(),
	}
	return m
}

// legacyHold is a lock of stage Legacy. It is given back by compare-and-delete, so that it never
// deletes a successor's key.
type legacyHold struct {
	*lockers.Old
	opts *Options
}

func (h *legacyHold) alone() bool                { return true }
func (h *legacyHold) value() string              { return h.Value() }
func (h *legacyHold) span() time.Duration        { return h.opts.Lease }
func (h *legacyHold) every() time.Duration       { return h.opts.Lease / 3 }
func (h *legacyHold) renewed(m protocol.Machine) { h.Renewed(m.(*protocol.LegacyRenew)) }
func (h *legacyHold) release() protocol.Machine  { return h.Release(protocol.ReleaseCompare, false) }

func (h *legacyHold) renewal(notAfter protocol.Instant) protocol.Machine { return h.Renewal(notAfter) }
