package compat

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/renewal"
)

// Lock is a lock that we hold, or held. It is renewed and released in the way it was taken, whatever
// the stage is by then.
type Lock struct {
	locker   *Locker
	permit   permit
	lease    renewal.Lease
	values   context.Context // that of the one who acquires, for Context
	key      string
	fence    int64
	tookOver bool                   // an expired legacy value
	token    atomic.Pointer[string] // stage Legacy: what stands on the key now
	hold     hold                   // how it was taken
	bridge   bridgeHold             // what hold points to in the stages Bridge and Modern: one allocation for both

	wait    *wait // of the one who acquires it; nil at a first try
	patient bool  // who acquires it will wait in the queue if it must

	turn turnstile // one Renew or Release at a time

	mu       sync.Mutex
	ended    error
	ctx      context.Context // once somebody has asked for it
	cancel   context.CancelCauseFunc
	released bool
	heard    protocol.Verdict // of the last renewal in line with others
	seen     string           // Displaced: what stands on the key
}

// newLock prepares an attempt.
func (l *Locker) newLock(ctx context.Context, key string) *Lock {
	return &Lock{locker: l, values: ctx, key: key}
}

// begin starts the lease. began is a reading from before the command that set the key was sent, so that the
// local deadline is never later than the server's.
func (k *Lock) begin(h hold, fence int64, tookOver bool, began protocol.Instant) {
	k.hold, k.fence, k.tookOver = h, fence, tookOver
	s := &k.lease
	s.Owner, s.Span, s.Every, s.Max = (*kept)(k), h.span(), h.every(), k.permit.opts.MaxHold
	if h.alone() {
		s.Owner = keptAlone{(*kept)(k)}
		k.write()
	}
	s.Begin(began, began.Add(s.Span))
	k.locker.renewer.Add(s)
}

// Key returns the lock's key.
func (k *Lock) Key() string { return k.key }

// Token returns what we wrote on the key: nobody else's value in the stages Bridge and Modern.
func (k *Lock) Token() string {
	if written := k.token.Load(); written != nil {
		return *written
	}
	return k.bridge.value()
}

// write notes what a lock of stage Legacy has put on the key.
func (k *Lock) write() {
	if k.hold.alone() {
		text := k.hold.value()
		k.token.Store(&text)
	}
}

// Fence returns the fencing token: larger than that of every earlier holder in the stages Bridge and
// Modern, so that a store can refuse the writes of a holder that was overtaken. 0 in stage Legacy, whose
// other clients draw none, and with Options.NoFence.
func (k *Lock) Fence() int64 { return k.fence }

// Stage returns the stage in which the lock was taken.
func (k *Lock) Stage() Stage { return stageOf(k.permit.stage) }

// Context returns a context with the values of the one that acquired the lock. It ends when the lease
// does or when the lock turns out to be lost, with a cause that matches ErrLost, or when the lock is
// released, with ErrReleased.
func (k *Lock) Context() context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx == nil {
		// The holder's context keeps the caller's values; its end is the lease's, not that of the wait.
		k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(k.values))
		if k.ended != nil {
			k.cancel(k.why())
		}
	}
	return k.ctx
}

// Renew extends the lock by a full TTL, or Lease in stage Legacy, from now. The Locker does that by
// itself; call it to be sure before a step that must not be done twice. ErrLost means that the lock is
// not ours any more, or that another value stands on the key. After any other error the lock is held as
// before.
func (k *Lock) Renew(ctx context.Context) error {
	if err := k.turn.enter(ctx); err != nil {
		return &Error{Op: "renew", Key: k.key, Cause: err}
	}
	defer k.turn.leave()
	if cause := k.over(); cause != nil {
		return cause
	}
	l, began := k.locker, k.locker.mono.Now()
	if !l.background.Begin() {
		return &Error{Op: "renew", Key: k.key, Cause: errClosed}
	}
	defer l.background.End()
	m := k.hold.renewal(l.gate.boundNow())
	outcome, err := l.advance(ctx, l.runner(l.renewals, k.permit.opts.rules()), l.timed(m), protocol.Reply{}, l.settled)
	if err != nil {
		outcome.Err = err
	}
	switch outcome.Step.Verdict {
	case protocol.Repaired, protocol.Renewed:
		k.hold.renewed(m)
		k.write()
		if cause := k.over(); cause != nil {
			return cause // the deadline was faster; Release gives back what was extended
		}
		l.renewer.Extend(&k.lease, began.Add(k.lease.Span))
		k.tellRenewed(outcome.Step.Verdict, l.mono.Now().Sub(began))
		return nil
	case protocol.Displaced, protocol.Lost:
		l.renewer.Remove(&k.lease)
		k.lose(k.lostTo(outcome.Step.Verdict, seenBy(m), "renew"))
		k.leaveAtDeadline()
		return k.over()
	default:
		return k.notRenewed(outcome)
	}
}

// notRenewed is the error of a renewal after which the lock is held as before.
func (k *Lock) notRenewed(outcome driver.Outcome) error {
	e := &Error{Op: "renew", Key: k.key, Cause: outcome.Err, Note: "held until the old deadline"}
	switch {
	case outcome.Step.Verdict != protocol.Failed:
		e.Kind = ErrUnknownOutcome
	case isLate(outcome.Err):
		e.Kind = ErrStage
	}
	return e
}

// Release gives the lock back. ErrLost means that it was not ours any more; what still was, the guard
// of a displaced holder, is given back all the same. After another error the release may be tried again;
// what cannot be released ends with the TTL, or with the lease.
func (k *Lock) Release(ctx context.Context) error {
	if err := k.turn.enter(ctx); err != nil {
		return &Error{Op: "release", Key: k.key, Cause: err}
	}
	defer k.turn.leave()
	if k.released {
		return &Error{Op: "release", Key: k.key, Kind: ErrReleased}
	}
	l := k.locker
	if !l.background.Begin() {
		return &Error{Op: "release", Key: k.key, Cause: errClosed}
	}
	defer l.background.End()
	l.renewer.Rest(&k.lease)
	lost := k.over()

	m := k.hold.release()
	outcome, err := l.advance(ctx, l.runner(l.commands, k.permit.opts.rules()), l.timed(m), protocol.Reply{}, l.settled)
	if err != nil {
		outcome.Err = err
	}
	switch outcome.Step.Verdict {
	case protocol.Released:
		k.finish(nil)
		return lost
	case protocol.Kept, protocol.Displaced:
		if lost == nil {
			lost = k.lostTo(outcome.Step.Verdict, seenBy(m), "release")
		}
		k.finish(lost)
		return lost
	case protocol.Failed:
		return &Error{Op: "release", Key: k.key, Cause: outcome.Err}
	default:
		return &Error{Op: "release", Key: k.key, Kind: ErrUnknownOutcome, Cause: outcome.Err, Until: l.mono.At(k.lease.Until())}
	}
}

// finish ends a lock of which nothing is on the server any more; without a cause it was released.
func (k *Lock) finish(cause error) {
	k.released = true
	k.locker.renewer.Remove(&k.lease)
	e := lockmigrate.Event{Kind: lockmigrate.EventLost, Op: "hold", Err: cause}
	if cause == nil {
		cause = errGivenBack
		e = lockmigrate.Event{Kind: lockmigrate.EventReleased, Op: "release"}
	}
	k.end(cause, e)
	k.permit.leave()
}

// lostTo says how a lock was lost.
func (k *Lock) lostTo(v protocol.Verdict, seen, op string) *Error {
	e := &Error{Op: op, Key: k.key, Kind: ErrLost, Note: "the key is not ours any more"}
	if v == protocol.Displaced {
		e.Value = seen
		// Nobody sees which: a client that came in after a stale DEL, or one that sets a key without a condition.
		e.Note = "displaced: another client came in after a stale DEL, or overwrote the key; it holds " + shown(e.Value)
	}
	return e
}

// seenBy is what a machine has found on the key in our place.
func seenBy(m protocol.Machine) string {
	if s, ok := m.(interface{ Seen() string }); ok {
		return s.Seen()
	}
	return ""
}

// over returns why the lock has ended; nil while it has not.
func (k *Lock) over() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.why()
}

// errGivenBack stands for the error of a released lock, which is made when somebody asks for it.
var errGivenBack = &Error{Op: "release", Kind: ErrReleased}

// why returns why the lock has ended. The caller holds mu.
func (k *Lock) why() error {
	if k.ended == error(errGivenBack) {
		return &Error{Op: "release", Key: k.key, Kind: ErrReleased}
	}
	return k.ended
}

// lose ends the holder's context because the lock is lost.
func (k *Lock) lose(cause error) {
	k.end(cause, lockmigrate.Event{Kind: lockmigrate.EventLost, Op: "hold", Err: cause})
}

// end ends the holder's context and tells the observer. Only the first cause counts.
func (k *Lock) end(cause error, e lockmigrate.Event) {
	k.mu.Lock()
	if k.ended != nil {
		k.mu.Unlock()
		return
	}
	k.ended = cause
	cancel := k.cancel
	if cancel != nil {
		cause = k.why()
	}
	k.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
	e.Key, e.Held = k.key, k.locker.mono.Now().Sub(k.lease.Began)
	k.locker.seen.Observe(e)
}

// leaveAtDeadline lets the permit last until the deadline or the release: a displaced holder keeps its
// guard for as long as it may still be at work.
func (k *Lock) leaveAtDeadline() { k.permit.leaveAt(k.locker.mono.At(k.lease.Until())) }

func (k *Lock) tellRenewed(v protocol.Verdict, took time.Duration) {
	e := lockmigrate.Event{Kind: lockmigrate.EventRenewed, Op: "renew", Key: k.key, Took: took}
	if v == protocol.Repaired {
		e.Note = "repaired: a stale DEL had removed the key"
	}
	k.locker.seen.Observe(e)
}

// kept is the renewer's side of a lock whose renewal is one command.
type kept Lock

// Renewal implements renewal.Held: the command that the machine begins with.
func (k *kept) Renewal() protocol.Command {
	return k.hold.renewal(k.locker.gate.boundNow()).Next(0, protocol.Reply{}).Command
}

// Heard implements renewal.Held: what the machine makes of the reply.
func (k *kept) Heard(reply protocol.Reply) renewal.Answer {
	m := k.hold.renewal(0)
	m.Next(0, protocol.Reply{})
	step := m.Next(0, reply)
	k.mu.Lock()
	k.heard, k.seen = step.Verdict, seenBy(m)
	k.mu.Unlock()
	return answerOf(step.Verdict)
}

func answerOf(v protocol.Verdict) renewal.Answer {
	switch v {
	case protocol.Renewed, protocol.Repaired:
		return renewal.Extended
	case protocol.Displaced, protocol.Lost:
		return renewal.Gone
	default:
		return renewal.Unclear
	}
}

// Renewed implements renewal.Held.
func (k *kept) Renewed(took time.Duration) {
	k.mu.Lock()
	heard := k.heard
	k.mu.Unlock()
	(*Lock)(k).tellRenewed(heard, took)
}

// RenewalFailed implements renewal.Held.
func (k *kept) RenewalFailed(cause error) {
	err := (*Lock)(k).notRenewed(driver.Outcome{Step: protocol.Step{Verdict: protocol.Failed}, Err: cause})
	k.locker.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "renew", Key: k.key, Err: err})
}

// Lost implements renewal.Held.
func (k *kept) Lost(why renewal.Loss) {
	lock := (*Lock)(k)
	e := &Error{Op: "hold", Key: k.key, Kind: ErrLost, Note: why.String()}
	switch why {
	case renewal.Deadline:
		// The server's TTL ends no earlier, and nothing of ours renews it any more.
		e.Note = fmt.Sprintf("no renewal came through for %v", k.lease.Span)
		defer k.permit.leave()
	case renewal.Outlived:
		e.Note = fmt.Sprintf("held for longer than MaxHold %v", k.lease.Max)
		defer lock.leaveAtDeadline()
	case renewal.Taken:
		k.mu.Lock()
		heard, seen := k.heard, k.seen
		k.mu.Unlock()
		e = lock.lostTo(heard, seen, "renew")
		defer lock.leaveAtDeadline()
	case renewal.Closed:
		e.Note = "the Locker was closed; the key stays until its TTL or lease is over"
	}
	lock.lose(e)
}

// keptAlone is the renewer's side of a lock whose renewal writes what the next command must know: that of
// stage Legacy.
type keptAlone struct{ *kept }

// RenewAlone implements renewal.Alone.
func (k keptAlone) RenewAlone(ctx context.Context) (renewal.Answer, error) {
	lock, l := (*Lock)(k.kept), k.locker
	bounded, cancel := context.WithTimeout(ctx, 4*l.opts.ReplyTimeout)
	defer cancel()
	if err := lock.turn.enter(bounded); err != nil {
		return renewal.Unclear, err
	}
	defer lock.turn.leave()
	if lost := lock.over(); lost != nil {
		return renewal.Unclear, lost
	}
	if !l.background.Begin() {
		return renewal.Unclear, errClosed
	}
	defer l.background.End()
	m := k.hold.renewal(l.gate.boundNow())
	outcome, err := l.advance(bounded, l.runner(l.renewals, k.permit.opts.rules()), l.timed(m), protocol.Reply{}, l.settled)
	if err != nil {
		outcome.Err = err
	}
	answer := answerOf(outcome.Step.Verdict)
	if answer == renewal.Extended {
		k.hold.renewed(m)
		lock.write()
	}
	k.mu.Lock()
	k.heard, k.seen = outcome.Step.Verdict, seenBy(m)
	k.mu.Unlock()
	return answer, outcome.Err
}

// turnstile lets one in at a time, and those who wait leave with their contexts. It costs nothing while
// nobody waits.
type turnstile struct {
	mu    sync.Mutex
	taken bool
	freed chan struct{} // closed at the next leave; nil while nobody waits
}

func (t *turnstile) enter(ctx context.Context) error {
	for {
		t.mu.Lock()
		if !t.taken {
			t.taken = true
			t.mu.Unlock()
			return nil
		}
		if t.freed == nil {
			t.freed = make(chan struct{})
		}
		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}
