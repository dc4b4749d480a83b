package compat

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/waiting"
)

// attemptBridge makes one attempt in the stages Bridge and Modern. It returns when to look again.
func (l *Locker) attemptBridge(ctx context.Context, key string, p *permit, over waiting.Runner) (*Lock, look, error) {
	o, rules := p.opts, p.opts.rules()
	m := &protocol.BridgeAcquire{
		Dialect: rules, Key: key, Guard: protocol.GuardKey(key), Value: newValue(rules),
		TTL: o.TTL, Grace: o.Grace, Settle: o.Settle, PutBacks: o.PutBacks, NotAfter: p.notAfter,
	}
	if p.stage == stages.Modern {
		m.Grace = -1
	} else if o.YieldAfter > 0 {
		m.Courtesy = protocol.Courtesy{Streak: protocol.StreakKey(key), YieldAfter: o.YieldAfter, Gap: o.YieldFor}
	}
	if !o.NoFence {
		m.Fence, m.FenceTTL = protocol.FenceKey(key), o.FenceTTL
	}
	reply := protocol.Reply{}
	for {
		began := time.Now()
		outcome, err := l.advance(ctx, over, m, reply, func() { l.giveBack(m, p, time.Now()) })
		if err != nil {
			return nil, look{}, notAcquired(key, err)
		}
		if outcome.Step.Kind == protocol.Done {
			lock, next, err := l.concluded(ctx, m, p, outcome, began)
			if outcome.Step.Verdict == protocol.Failed && reply.Kind != protocol.Woke {
				next.left = nil // it never had the keys, or has dropped them
			}
			return lock, next, err
		}
		if err := sleep(ctx, outcome.Step.Sleep); err != nil { // it settles: the keys are ours
			l.background.Go(func() { l.giveBack(m, p, began) })
			return nil, look{}, notAcquired(key, err)
		}
		reply = protocol.Reply{Kind: protocol.Woke}
	}
}

// concluded turns the verdict of an attempt into a lock or an error.
func (l *Locker) concluded(ctx context.Context, m *protocol.BridgeAcquire, p *permit, o driver.Outcome, began time.Time) (*Lock, look, error) {
	seen, wait := m.Seen()
	failure := &Error{Op: "acquire", Key: m.Key, Kind: ErrNotAcquired}
	switch o.Step.Verdict {
	case protocol.Acquired:
		if time.Since(began) >= p.opts.TTL { // the process was stopped, or the reply took too long: it is over
			failure.Note = "the reply came after the TTL"
			l.background.Go(func() { l.giveBack(m, p, began) })
			break
		}
		h := &bridgeHold{key: m.Key, guard: m.Guard, fence: m.Fence, text: m.Value, courtesy: m.Courtesy, opts: p.opts}
		return newLock(ctx, l, p, h, m.FenceToken(), m.TookOver(), began), look{}, nil
	case protocol.Busy:
		p.leave()
		if seen == "" && wait > 0 {
			failure.Note = "the key is free and left to legacy clients for a moment, see Options.YieldAfter"
		}
	case protocol.Foreign:
		p.leave()
		failure.Kind, failure.Value = ErrForeignFormat, seen
		failure.Note = "it counts as held and is never taken over; see `lockmigrate scan` and `lockmigrate sweep`"
		if _, bridge := m.Dialect.BridgeNumber(seen); bridge {
			failure.Note = "a bridge value that has lost its TTL; `lockmigrate sweep` gives it one"
		}
	case protocol.Ghost:
		p.leave()
		failure.Kind, failure.Value = ErrForeignFormat, seen
		failure.Note = "a ghost: a legacy client outside of the namespace has left an expired value; `lockmigrate sweep` removes it"
		if ends, ok := m.Dialect.ExpiresAt(seen); ok {
			failure.Note = fmt.Sprintf("a ghost, expired since %s: a legacy client outside of the namespace has left it; `lockmigrate sweep` removes it",
				ends.Time().Format(time.RFC3339))
		}
	case protocol.Unsure:
		failure.Kind, failure.Cause, failure.Until = ErrUnknownOutcome, o.Err, began.Add(p.opts.TTL+l.opts.ReplyTimeout)
		return nil, look{left: l.giveBackLater(m, p, began)}, failure
	default:
		failure, wait = failed(m.Key, o.Err), p.opts.Poll
		if m.Holds() {
			return nil, look{after: wait, left: l.giveBackLater(m, p, began)}, failure
		}
		p.leave()
	}
	return nil, look{after: wait}, failure
}

// failed is the error of a server that refused, or could not be asked.
func failed(key string, cause error) *Error {
	e := &Error{Op: "acquire", Key: key, Cause: cause}
	if isLate(cause) {
		e.Kind = ErrStage
	}
	return e
}

// isLate tells that a script refused a command because it came after the member's lease.
func isLate(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "STAGE ") }

// giveBackLater is giveBack in the background.
func (l *Locker) giveBackLater(m *protocol.BridgeAcquire, p *permit, began time.Time) *leftover {
	settled := make(chan struct{})
	l.background.Go(func() {
		if l.giveBack(m, p, began) {
			close(settled)
		}
	})
	return &leftover{until: began.Add(p.opts.TTL + l.opts.ReplyTimeout), settled: settled}
}

// giveBack undoes what an attempt may have left on the server after its caller had left, or after
// replies were missing, and tells whether nothing is left. When the server does not answer, the TTL has to
// run out.
func (l *Locker) giveBack(m *protocol.BridgeAcquire, p *permit, began time.Time) bool {
	if !m.Holds() {
		p.leave()
		return true
	}
	release := &protocol.BridgeRelease{Key: m.Key, Guard: m.Guard, Value: m.Value, Courtesy: m.Courtesy}
	out := l.finish(context.Background(), l.runner(l.commands, m.Dialect), release, protocol.Reply{})
	switch out.Step.Verdict {
	case protocol.Released, protocol.Kept, protocol.Displaced:
		p.leave()
		return true
	default:
		p.leaveAt(began.Add(p.opts.TTL + l.opts.ReplyTimeout))
		return false
	}
}

// attemptLegacy makes one attempt in stage Legacy: at most SETNX, GET and GETSET. It returns when to
// look again.
func (l *Locker) attemptLegacy(ctx context.Context, key string, p *permit, over waiting.Runner) (*Lock, look, error) {
	if err := l.clock.Sync(ctx); err != nil {
		p.leave()
		if ctx.Err() != nil {
			return nil, look{}, notAcquired(key, context.Cause(ctx))
		}
		return nil, look{}, failed(key, err)
	}
	o := p.opts
	m := &protocol.LegacyAcquire{
		Dialect: o.rules(), Key: key, Owner: newUUID(), Lease: o.Lease, Poll: o.Poll, NotAfter: p.notAfter, Guard: protocol.GuardKey(key),
	}
	if m.Dialect.Layout != protocol.UUIDColonNumber && m.Dialect.Layout.HasOwner() {
		m.Owner = newUUID()[:8] + "-lockmigrate"
	}
	began := time.Now()
	var done driver.Outcome
	outcome, err := l.advance(ctx, over, &recorded{m, &done}, protocol.Reply{}, func() { l.giveBackLegacy(m, p, done.Step.Verdict, began) })
	if err != nil {
		return nil, look{}, notAcquired(key, err)
	}
	failure := notAcquired(key, nil)
	seen, _ := m.Seen()
	switch outcome.Step.Verdict {
	case protocol.Acquired:
		if time.Since(began) >= o.Lease {
			failure.Note = "the reply came after the lease"
			l.background.Go(func() { l.giveBackLegacy(m, p, protocol.Acquired, began) })
			break
		}
		h := &legacyHold{key: key, owner: m.Owner, text: m.Value(), expiry: m.Expiry(), opts: o}
		return newLock(ctx, l, p, h, 0, false, began), look{}, nil
	case protocol.Foreign:
		p.leave()
		failure.Kind, failure.Value = ErrForeignFormat, seen
		failure.Note = "dialect " + m.Dialect.Name + " cannot read it and never takes it over"
	case protocol.Unsure:
		failure.Kind, failure.Cause, failure.Until = ErrUnknownOutcome, outcome.Err, m.Expiry().Time()
		failure.Note = "the value on the key may be ours or that of a client with the same expiry"
		p.leaveAt(began.Add(o.longest()))
		return nil, look{left: &leftover{until: failure.Until}}, failure
	case protocol.Busy:
		p.leave()
	default:
		p.leave()
		if outcome.Err == nil || !strings.HasPrefix(outcome.Err.Error(), "HELD ") { // guarded: held like any other
			failure = failed(key, outcome.Err)
		}
	}
	return nil, look{after: o.Poll, deaf: true}, failure
}

// giveBackLegacy undoes an acquisition that arrived after its caller had left. Where the key cannot
// prove whose the value is, the lease has to run out.
func (l *Locker) giveBackLegacy(m *protocol.LegacyAcquire, p *permit, v protocol.Verdict, began time.Time) {
	if v != protocol.Acquired && v != protocol.Unsure {
		p.leave()
		return
	}
	if v == protocol.Acquired {
		release := &protocol.LegacyRelease{Dialect: m.Dialect, Key: m.Key, Policy: protocol.ReleaseCompare, Value: m.Value(), Expiry: m.Expiry()}
		out := l.finish(context.Background(), l.runner(l.commands, m.Dialect), release, protocol.Reply{})
		if out.Step.Verdict == protocol.Released || out.Step.Verdict == protocol.Kept {
			p.leave()
			return
		}
	}
	p.leaveAt(began.Add(p.opts.longest()))
}

// recorded keeps the last step of a machine for whoever takes over from a caller that has left.
type recorded struct {
	protocol.Machine
	last *driver.Outcome
}

func (r *recorded) Next(now protocol.Instant, reply protocol.Reply) protocol.Step {
	step := r.Machine.Next(now, reply)
	r.last.Step = step
	return step
}
