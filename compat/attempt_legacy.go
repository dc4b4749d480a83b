package compat

import (
	"context"
	"strings"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// attemptLegacy makes one attempt in stage Legacy: at most SETNX, GET and GETSET. It returns when to
// look again.
func (l *locker) attemptLegacy(ctx context.Context, k *lock, over waiting.Runner) (retryHint, error) {
	key, p, o := k.key, &k.permit, k.permit.Terms
	k.old = nil
	if err := l.serverClock.Sync(ctx); err != nil {
		if ctx.Err() != nil {
			return retryHint{}, notAcquired(key, context.Cause(ctx))
		}
		return retryHint{}, failed(key, err)
	}
	if now := l.serverClock.Now(); now.Before(firstExpiry) {
		return retryHint{}, &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrStage, Cause: &stages.Never{Cause: errOldClock}}
	}
	m := &protocol.LegacyAcquire{
		Dialect: o.rules, Key: key, Owner: lockers.UUID(), Lease: o.Lease, Poll: o.poll, NotAfter: p.NotAfter, Guard: protocol.GuardKey(key),
	}
	if m.Dialect.Layout != protocol.UUIDColonNumber && m.Dialect.Layout.HasOwner() {
		m.Owner = lockers.UUID()[:8] + "-lockmigrate"
	}
	began := l.Clock.Now()
	run := &recorded{LegacyAcquire: m}
	k.old = run
	outcome, err := l.advance(ctx, over, l.timed(run), protocol.Reply{}, func(driver.Outcome) {
		defer l.Background.End()
		l.giveBackLegacy(m, p, run.last.Verdict, began)
	})
	if err != nil {
		p.Kept = true
		return retryHint{}, notAcquired(key, err)
	}
	failure := notAcquired(key, nil)
	seen, _ := m.Seen()
	switch outcome.Step.Verdict {
	case protocol.Acquired:
		if l.Clock.Now().Sub(began) >= o.Lease {
			failure.Note = "the reply came after the lease"
			l.keep(k, began)
			break
		}
		k.legacy, k.Lease.Alone = lockers.NewOld(m), k.RenewAlone // each renewal writes what the next command must know
		k.begin(began, began.Add(o.Lease), o.Lease, o.Lease/3)
		return retryHint{}, nil
	case protocol.Foreign:
		failure.Kind, failure.Value = lockmigrate.ErrForeignFormat, seen
		failure.Note = "dialect " + m.Dialect.Name + " cannot read it and never takes it over"
	case protocol.Unsure:
		failure.Kind, failure.Cause, failure.Until = lockmigrate.ErrUnknownOutcome, outcome.Err, m.Expiry().Time()
		failure.Note = "the value on the key may be ours or that of a client with the same expiry"
		until := l.Clock.At(began.Add(o.longest())) // the value's expiry is of the server's clock
		p.Kept = true
		p.LeaveAt(until)
		return retryHint{left: &pendingUndo{until: until}}, failure
	case protocol.Busy:
	default:
		if outcome.Err == nil || !strings.HasPrefix(outcome.Err.Error(), "HELD ") { // guarded: held like any other
			failure = failed(key, outcome.Err)
		}
	}
	return retryHint{after: o.poll, pollOnly: true}, failure
}

// giveBackLegacy undoes an acquisition that arrived after its caller had left. Where the key cannot
// prove whose the value is, the lease has to run out.
func (l *locker) giveBackLegacy(m *protocol.LegacyAcquire, p *permit, v protocol.Verdict, began protocol.Instant) {
	until := l.Clock.At(began.Add(p.Terms.longest()))
	if !l.GiveBackOld(m, driver.Ended(v, nil), l.serverClock.Now, until, p.Leave) {
		p.LeaveAt(until)
	}
}

// recorded keeps the last step of a machine for who takes over from a caller that has left.
type recorded struct {
	*protocol.LegacyAcquire
	last protocol.Step
}

func (r *recorded) Next(now protocol.Instant, reply protocol.Reply) protocol.Step {
	r.last = r.LegacyAcquire.Next(now, reply)
	return r.last
}

// left is the verdict of a run that was broken off: its last command may have run.
func (r *recorded) left() protocol.Verdict {
	if r.last.Kind == protocol.Send {
		return protocol.Unsure
	}
	return r.last.Verdict
}
