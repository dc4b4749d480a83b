package compat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Lock is a lock that we hold, or held. It is renewed and released in the way it was taken, whatever
// the stage is by then.
type Lock struct {
	locker *Locker
	permit *permit
	hold   hold
	fence  int64
	token  atomic.Value // string: what stands on the key
	born   time.Time
	once   sync.Once // tells the observer of the end

	tookOver bool // an expired legacy value
	ctx      context.Context
	cancel   context.CancelCauseFunc
	end      *time.Timer // at the deadline
	renew    *time.Timer

	busy     chan struct{} // holds a token: whoever has taken it may touch what follows
	deadline time.Time
	released bool
}

// newLock starts the lease. began is a monotonic reading from before the command that set the key was
// sent, so that the local deadline is never later than the server's.
func newLock(ctx context.Context, l *Locker, p *permit, h hold, fence int64, tookOver bool, began time.Time) *Lock {
	k := &Lock{locker: l, permit: p, hold: h, fence: fence, tookOver: tookOver, born: began, busy: make(chan struct{}, 1)}
	k.token.Store(h.value())
	// The holder's context keeps the caller's values; its end is the lease's, not that of the wait.
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	k.deadline = began.Add(h.span())
	k.renew = time.AfterFunc(time.Hour, k.renewInTime)
	k.end = time.AfterFunc(time.Until(k.deadline), k.leaseEnded)
	k.schedule(h.every())
	k.busy <- struct{}{}
	l.keep(k)
	return k
}

// Key returns the lock's key.
func (k *Lock) Key() string { return k.hold.lockKey() }

// Token returns what we wrote on the key: nobody else's value in the stages Bridge and Modern.
func (k *Lock) Token() string { return k.token.Load().(string) }

// Fence returns the fencing token: larger than that of every earlier holder in the stages Bridge and
// Modern, so that a store can refuse the writes of a holder that was overtaken. 0 in stage Legacy, whose
// other clients draw none, and with Options.NoFence.
func (k *Lock) Fence() int64 { return k.fence }

// Stage returns the stage in which the lock was taken.
func (k *Lock) Stage() Stage { return stageOf(k.permit.stage) }

// Context returns a context with the values of the one that acquired the lock. It ends when the lease
// does or when the lock turns out to be lost, with a cause that matches ErrLost, or when the lock is
// released, with ErrReleased.
func (k *Lock) Context() context.Context { return k.ctx }

// Renew extends the lock by a full TTL, or Lease in stage Legacy, from now. The Locker does that by
// itself; call it to be sure before a step that must not be done twice. ErrLost means that the lock is
// not ours any more, or that another value stands on the key. After any other error the lock is held as
// before.
func (k *Lock) Renew(ctx context.Context) error {
	select {
	case <-k.busy:
	case <-ctx.Done():
		return &Error{Op: "renew", Key: k.Key(), Cause: context.Cause(ctx)}
	}
	defer k.free()
	return k.extend(ctx)
}

// Release gives the lock back. ErrLost means that it was not ours any more; what still was, the guard
// of a displaced holder, is given back all the same. After another error the release may be tried again;
// what cannot be released ends with the TTL, or with the lease.
func (k *Lock) Release(ctx context.Context) error {
	select {
	case <-k.busy:
	case <-ctx.Done():
		return &Error{Op: "release", Key: k.Key(), Cause: context.Cause(ctx)}
	}
	defer k.free()
	if k.released {
		return &Error{Op: "release", Key: k.Key(), Kind: ErrReleased}
	}
	k.renew.Stop()
	lost := context.Cause(k.ctx)

	m := k.hold.release()
	over := k.locker.runner(k.locker.commands, k.permit.opts.rules())
	outcome, err := k.locker.advance(ctx, over, m, protocol.Reply{}, func() {})
	if err != nil {
		outcome.Err = err
	}
	released := &Error{Op: "release", Key: k.Key(), Kind: ErrReleased}
	switch outcome.Step.Verdict {
	case protocol.Released:
		k.finish(released)
		return lost
	case protocol.Kept, protocol.Displaced:
		if lost == nil {
			lost = k.lostTo(outcome.Step.Verdict, m, "release")
		}
		k.finish(lost)
		return lost
	case protocol.Failed:
		return &Error{Op: "release", Key: k.Key(), Cause: outcome.Err}
	default:
		return &Error{Op: "release", Key: k.Key(), Kind: ErrUnknownOutcome, Cause: outcome.Err, Until: k.deadline}
	}
}

// extend renews. The caller holds busy.
func (k *Lock) extend(ctx context.Context) error {
	if cause := context.Cause(k.ctx); cause != nil {
		return cause
	}
	m := k.hold.renewal(k.locker.gate.boundNow())
	began := time.Now()
	outcome, err := k.locker.advance(ctx, k.locker.runner(k.locker.renewals, k.permit.opts.rules()), m, protocol.Reply{}, func() {})
	if err != nil {
		outcome.Err = err
	}
	switch outcome.Step.Verdict {
	case protocol.Repaired, protocol.Renewed:
		k.hold.renewed(m)
		k.token.Store(k.hold.value())
		if cause := context.Cause(k.ctx); cause != nil {
			return cause // the deadline was faster; Release gives back what was extended
		}
		k.deadline = began.Add(k.hold.span())
		k.end.Reset(time.Until(k.deadline))
		e := lockmigrate.Event{Kind: lockmigrate.EventRenewed, Op: "renew", Key: k.Key(), Took: time.Since(began)}
		if outcome.Step.Verdict == protocol.Repaired {
			e.Note = "repaired: a stale DEL had removed the key"
		}
		k.locker.seen.Observe(e)
		return nil
	case protocol.Displaced, protocol.Lost:
		lost := k.lostTo(outcome.Step.Verdict, m, "renew")
		k.lose(lost)
		return lost
	case protocol.Failed:
		e := &Error{Op: "renew", Key: k.Key(), Cause: outcome.Err, Note: "held until the old deadline"}
		if isLate(outcome.Err) {
			e.Kind = ErrStage
		}
		return e
	default:
		return &Error{Op: "renew", Key: k.Key(), Kind: ErrUnknownOutcome, Cause: outcome.Err, Note: "held until the old deadline"}
	}
}

// lostTo says how a lock was lost.
func (k *Lock) lostTo(v protocol.Verdict, m protocol.Machine, op string) *Error {
	e := &Error{Op: op, Key: k.Key(), Kind: ErrLost, Note: "the key is not ours any more"}
	if s, ok := m.(interface{ Seen() string }); ok && v == protocol.Displaced {
		e.Value = s.Seen()
		e.Note = "displaced: after a stale DEL another client may have come in; the key holds " + shown(e.Value)
	}
	return e
}

// renewInTime is the timer's. A renewal that fails is tried again until the deadline.
func (k *Lock) renewInTime() {
	select {
	case <-k.busy:
	default: // a Renew or a Release is under way
		k.schedule(k.hold.every() / 4)
		return
	}
	defer k.free()
	if most := k.permit.opts.MaxHold; most > 0 && time.Since(k.born) >= most {
		k.lose(&Error{Op: "hold", Key: k.Key(), Kind: ErrLost, Note: fmt.Sprintf("held for longer than MaxHold %v", most)})
		return
	}
	next := k.hold.every()
	if err := k.extend(k.ctx); err != nil {
		next = max(min(next/4, time.Until(k.deadline)/4), time.Millisecond)
	}
	k.schedule(next)
}

// schedule sets when the next renewal is due, unless the lock has ended.
func (k *Lock) schedule(d time.Duration) {
	if k.ctx.Err() != nil {
		return
	}
	if most := k.permit.opts.MaxHold; most > 0 {
		d = min(d, max(time.Until(k.born.Add(most)), time.Millisecond))
	}
	k.renew.Reset(d)
}

// leaseEnded is the timer's: no renewal came through before the deadline. The server's TTL ends no
// earlier, and nothing of ours renews it any more.
func (k *Lock) leaseEnded() {
	k.lose(&Error{Op: "hold", Key: k.Key(), Kind: ErrLost, Note: fmt.Sprintf("no renewal came through for %v", k.hold.span())})
	k.permit.leave()
}

// lose ends the holder's context. The permit lasts until the deadline or the release: a displaced
// holder keeps its guard for as long as it may still be at work.
func (k *Lock) lose(cause error) {
	k.cancel(cause)
	k.once.Do(func() {
		e := lockmigrate.Event{Kind: lockmigrate.EventLost, Op: "hold", Key: k.Key(), Held: time.Since(k.born), Err: cause}
		if errors.Is(cause, ErrReleased) {
			e.Kind, e.Op, e.Err = lockmigrate.EventReleased, "release", nil
		}
		k.locker.seen.Observe(e)
	})
	k.renew.Stop()
	k.locker.forget(k)
}

// finish ends a lock of which nothing is on the server any more. The caller holds busy.
func (k *Lock) finish(cause error) {
	k.released = true
	k.end.Stop()
	k.lose(cause)
	k.permit.leave()
}

func (k *Lock) free() { k.busy <- struct{}{} }
