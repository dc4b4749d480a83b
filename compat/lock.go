package compat

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/renewal"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// lock is a lock that we hold, or held. It is renewed and released in the way it was taken, whatever
// the stage is by then.
type lock struct {
	life   lifetime.Life
	locker *locker
	permit permit
	key    string
	fence  int64
	heard  atomic.Pointer[word] // the last answer to a renewal; nil: extended
	bridge bridgeHold           // how it was taken in the stages Bridge and Modern: one allocation for both
	legacy *legacyHold          // in stage Legacy; else nil

	wait     *wait // of the one who acquires it; nil at a first try
	patient  bool  // who acquires it will wait in the queue if it must
	tookOver bool  // an expired legacy value
}

// newLock prepares an attempt.
func (l *locker) newLock(ctx context.Context, key string) *lock {
	k := &lock{locker: l, key: key}
	k.life.Init(&l.conns.Lives, (*kept)(k), ctx)
	return k
}

// begin sets the lease. began and until are counted from before the command that set the key was sent, or from before the
// last question when it was handed over, so that the local deadline is never later than the server's.
func (k *lock) begin(fence int64, tookOver bool, began, until protocol.Instant) {
	h := k.hold()
	k.fence, k.tookOver = fence, tookOver
	k.permit.acquired()
	s := &k.life.Lease
	s.Owner, s.Span, s.Every, s.Max = (*kept)(k), h.span(), h.every(), k.permit.opts.MaxHold
	if h.alone() {
		s.Owner = keptAlone{(*kept)(k)}
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

// The methods of lockmigrate.Lock.

func (k *lock) Key() string                       { return k.key }
func (k *lock) Token() string                     { return k.hold().value() }
func (k *lock) Fence() int64                      { return k.fence }
func (k *lock) Stage() lockmigrate.Stage          { return k.permit.stage }
func (k *lock) Expiry() time.Time                 { return k.life.Expiry() }
func (k *lock) Context() context.Context          { return k.life.Context() }
func (k *lock) Renew(ctx context.Context) error   { return k.life.Renew(ctx) }
func (k *lock) Release(ctx context.Context) error { return k.life.Release(ctx) }

// seenBy is what a machine has found on the key in our place.
func seenBy(m protocol.Machine) string {
	if s, ok := m.(interface{ Seen() string }); ok {
		return s.Seen()
	}
	return ""
}

// leaveAtDeadline lets the permit last until the deadline or the release: a displaced holder keeps its
// guard for as long as it may still be at work.
func (k *lock) leaveAtDeadline() { k.permit.leaveAt(k.locker.conns.Clock.At(k.life.Lease.Until())) }

// kept is what the life of a lock and the renewer see of a lock.
type kept lock

// Key implements lifetime.Kind.
func (k *kept) Key() string { return k.key }

// Acquired implements lifetime.Kind: what an attempt of the stages Bridge and Modern may have left is given back.
func (k *kept) Acquired(driver.Outcome) {
	defer k.locker.conns.Background.End()
	k.locker.giveBack((*lock)(k), k.locker.conns.Clock.Now())
}

// Renew implements lifetime.Kind.
func (k *kept) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l := k.locker
	if k.legacy != nil { // it writes a time
		if err := l.clock.Sync(ctx); err != nil {
			return driver.Ended(protocol.Failed, err), context.Cause(ctx)
		}
	}
	m := (*lock)(k).hold().renewal(l.gate.boundNow())
	settle := func(o driver.Outcome) {
		(*lock)(k).hold().renewed(m)
		k.hear(o.Step.Verdict, m)
	}
	outcome, err := l.runner(k.permit.opts.rules()).Advance(ctx, l.timed(m), protocol.Reply{}, func(o driver.Outcome) {
		settle(o)
		abandoned(o)
	})
	if err == nil {
		settle(outcome)
	}
	return outcome, err
}

// Release implements lifetime.Kind.
func (k *kept) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l, m := k.locker, (*lock)(k).hold().release()
	if r, ok := m.(*protocol.BridgeRelease); ok && r.Taken != 0 && l.conns.Clock.Now().Sub(r.Taken) >= time.Millisecond {
		r.Behind = max(l.conns.Hub.Waiting(k.key)-1, 0) // the first of this process has an entry
	}
	return l.runner(k.permit.opts.rules()).Advance(ctx, l.timed(m), protocol.Reply{}, abandoned)
}

// word is an answer that is worth remembering.
type word struct {
	verdict protocol.Verdict
	seen    string // Displaced: what stands on the key
}

func (k *kept) hear(v protocol.Verdict, m protocol.Machine) {
	if v == protocol.Renewed {
		k.heard.Store(nil)
		return
	}
	k.heard.Store(&word{v, seenBy(m)})
}

// Explain implements lifetime.Kind.
func (k *kept) Explain(e *lockmigrate.Error) {
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
func (k *kept) Ended(lost *lockmigrate.Error) {
	switch {
	case lost == nil:
	case lost.Reason == lockmigrate.ReasonDeadline:
		// The server's TTL ends no earlier, and nothing of ours renews it any more.
		k.permit.leave()
	case lost.Reason != lockmigrate.ReasonClosed:
		(*lock)(k).leaveAtDeadline()
	}
}

// Gone implements lifetime.Kind.
func (k *kept) Gone() { k.permit.leave() }

// Renewal implements renewal.Held: the command that the machine begins with.
func (k *kept) Renewal() protocol.Command {
	return (*lock)(k).hold().renewal(k.locker.gate.boundNow()).Next(0, protocol.Reply{}).Command
}

// Heard implements renewal.Held: what the machine makes of the reply.
func (k *kept) Heard(reply protocol.Reply) renewal.Answer {
	m := (*lock)(k).hold().renewal(0)
	m.Next(0, protocol.Reply{})
	step := m.Next(0, reply)
	k.hear(step.Verdict, m)
	switch step.Verdict {
	case protocol.Renewed, protocol.Repaired:
		return renewal.Extended
	case protocol.Displaced, protocol.Lost:
		return renewal.Gone
	default:
		return renewal.Unclear
	}
}

// Renewed implements renewal.Held.
func (k *kept) Renewed(took time.Duration) { k.life.RenewedAs(k.lastHeard(), took) }

// RenewalFailed implements renewal.Held.
func (k *kept) RenewalFailed(cause error) { k.life.RenewalFailed(cause) }

// Lost implements renewal.Held.
func (k *kept) Lost(why renewal.Loss) {
	if why == renewal.Taken {
		k.life.LoseTo(k.lastHeard(), "renew")
		return
	}
	k.life.Lost(why)
}

func (k *kept) lastHeard() protocol.Verdict {
	if heard := k.heard.Load(); heard != nil {
		return heard.verdict
	}
	return protocol.Renewed
}

// keptAlone is the renewer's side of a lock whose renewal writes what the next command must know: that of
// stage Legacy.
type keptAlone struct{ *kept }

// RenewAlone implements renewal.Alone.
func (k keptAlone) RenewAlone(ctx context.Context) (renewal.Answer, error) {
	answer, _, err := k.life.RenewAlone(ctx)
	return answer, err
}
