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
	old    *recorded            // the attempt in stage Legacy, once it has begun

	// How it was taken: in stage Legacy legacy, else nil; in the stages Bridge and Modern acquire, which says what the lock's keys are too.
	legacy  *lockers.Old
	acquire protocol.BridgeAcquire
	giving  protocol.BridgeRelease // one release runs at a time

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
func (k *lock) begin(began, until protocol.Instant, span, every time.Duration) {
	k.permit.Acquired()
	s := &k.Lease
	s.Owner, s.Span, s.Every, s.Max = k, span, every, k.permit.Terms.MaxHold
	s.Begin(began, until)
}

var _ lifetime.Sole = (*lock)(nil)

// Key, Token, Fence and Stage are the holder's too.

func (k *lock) Token() string {
	if k.legacy != nil {
		return k.legacy.Value()
	}
	return k.acquire.Value
}

func (k *lock) Key() string              { return k.key }
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
	m := k.renewal(l.gate.Bound())
	return lockers.Settled(ctx, l.runner(k.permit.Terms.rules), l.timed(m), abandoned, func(o driver.Outcome) {
		if k.legacy != nil {
			k.legacy.Renewed(m.(*protocol.LegacyRenew))
		}
		k.hear(o.Step.Verdict, m)
	})
}

// renewal is the machine that extends the lock.
func (k *lock) renewal(notAfter protocol.Instant) protocol.Machine {
	if k.legacy != nil {
		return k.legacy.Renewal(notAfter)
	}
	a := &k.acquire
	return &protocol.BridgeRenew{
		Key: a.Key, Guard: a.Guard, Fence: a.Fence, FenceTTL: a.FenceTTL,
		Value: a.Value, TTL: a.TTL, NotAfter: notAfter,
	}
}

// Release implements lifetime.Kind. A lock of stage Legacy is given back by compare-and-delete, so that it never deletes a successor's key.
func (k *lock) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l, m := k.locker, protocol.Machine(nil)
	if k.legacy != nil {
		m = k.legacy.Release(protocol.ReleaseCompare, false)
	} else {
		r := k.giveBack()
		if r.Taken != 0 && l.Clock.Now().Sub(r.Taken) >= time.Millisecond {
			r.Behind = max(l.Hub.Waiting(k.key)-1, 0) // the first of this process has an entry
		}
		m = r
	}
	return l.runner(k.permit.Terms.rules).Advance(ctx, l.timed(m), protocol.Reply{}, abandoned)
}

func (k *lock) giveBack() *protocol.BridgeRelease {
	m, a := &k.giving, &k.acquire
	*m = protocol.BridgeRelease{
		Key: a.Key, Guard: a.Guard, Value: a.Value, Yield: a.Yield, Taken: a.Won(),
		Queue: a.Queue, Hand: true, Fence: a.Fence, FenceTTL: a.FenceTTL,
		Leftover: a.Dialect.Leftover(), Breath: a.Dialect.Breath(),
	}
	return m
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
			e.Value = k.giving.Seen()
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
		k.locker.Hub.Over(k.key, k.acquire.Value)
	}
}

// Renewal implements lifetime.Held: the command that the machine begins with.
func (k *lock) Renewal() protocol.Command {
	return k.renewal(k.locker.gate.Bound()).Next(0, protocol.Reply{}).Command
}

// Heard implements lifetime.Held: what the machine makes of the reply.
func (k *lock) Heard(reply protocol.Reply) lifetime.Answer {
	m := k.renewal(0)
	m.Next(0, protocol.Reply{})
	step := m.Next(0, reply)
	k.hear(step.Verdict, m)
	return lifetime.AnswerOf(step.Verdict)
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
