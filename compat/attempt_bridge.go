package compat

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// attemptBridge makes one attempt in the stages Bridge and Modern. It returns when to look again.
func (l *locker) attemptBridge(ctx context.Context, k *lock, over waiting.Runner) (retryHint, error) {
	m, reply := &k.acquire, protocol.Reply{}
	settled := false
	if w := k.wait; w != nil && w.lock == k { // it has a place in the queue
		m.NotAfter, reply, w.lock = k.permit.NotAfter, w.woken, nil
	} else {
		l.prepare(k)
	}
	for {
		began := l.Clock.Now()
		outcome, err := l.advance(ctx, over, m, reply, k.Left())
		if err != nil {
			k.permit.Kept = true // by Acquired, which is told what came of it
			return retryHint{}, notAcquired(k.key, err)
		}
		if outcome.Step.Kind == protocol.Done {
			next, err := l.concluded(k, outcome, began)
			if outcome.Step.Verdict == protocol.Failed && !settled {
				next.left = nil // it never had the keys, or has dropped them
			}
			return next, err
		}
		if err := lifetime.Sleep(ctx, outcome.Step.Sleep); err != nil { // it settles: the keys are ours
			l.keep(k, began)
			return retryHint{}, notAcquired(k.key, err)
		}
		reply, settled = protocol.Reply{Kind: protocol.Woke}, true
	}
}

// prepare makes the machine that takes the lock, with a value that is nobody else's.
func (l *locker) prepare(k *lock) {
	o := k.permit.Terms
	rules, names := o.rules, protocol.CompanionsOf(k.key)
	m := &k.acquire
	*m = protocol.BridgeAcquire{
		Dialect: rules, Key: k.key, Guard: names.Guard, Value: l.random.BridgeValue(rules),
		TTL: o.TTL, Grace: o.terms.Grace(), Settle: o.terms.Settle(), NotAfter: k.permit.NotAfter,
		Alone: k.permit.Stage == stages.Modern,
	}
	if o.Yield > 0 {
		m.Yield = protocol.Yield{Key: names.Yield, Gap: o.Yield}
	}
	if o.FenceTTL > 0 {
		m.Fence, m.FenceTTL = names.Fence, o.FenceTTL
	}
	m.Queue, m.QueueTTL, m.Passes = names.Queue, o.terms.QueueTTL(), !k.patient
	if w := k.wait; w != nil {
		m.Channel, m.Claim = l.channel, o.terms.Claim()
		if w.turn.Mode() == waiting.Polling {
			m.Channel = protocol.Polls
		}
		w.turn.Expect(m.Value)
	}
}

// concluded turns the verdict of an attempt into a lock or an error.
func (l *locker) concluded(k *lock, o driver.Outcome, began protocol.Instant) (retryHint, error) {
	m, p := &k.acquire, &k.permit
	if now := l.Clock.Now(); o.Step.Verdict == protocol.Acquired && now < m.Deadline() {
		k.fence, k.tookOver = m.FenceToken(), m.TookOver()
		k.begin(began, m.Deadline(), p.Terms.TTL, p.Terms.renewEvery)
		return retryHint{}, nil
	}
	busy := func() { // the place in the queue, and with it the permit, lasts
		if k.wait != nil {
			k.wait.lock, p.Kept = k, true
		}
	}
	seen, wait := m.Seen()
	failure := &lockmigrate.Error{Op: "acquire", Key: m.Key, Kind: lockmigrate.ErrNotAcquired}
	switch o.Step.Verdict {
	case protocol.Acquired: // the process was stopped, or the reply took too long: it is over
		failure.Note = "the reply came after the TTL"
		l.keep(k, began)
	case protocol.Busy:
		busy()
		if seen == "" && wait > 0 { // as retryHint.gap
			failure.Note = "the key is free and left to legacy clients for a moment, see Options.Yield"
		}
	case protocol.Foreign:
		busy()
		failure.Kind, failure.Value = lockmigrate.ErrForeignFormat, seen
		failure.Note = "it counts as held and is never taken over; see `lockmigrate scan` and `lockmigrate sweep`"
		if _, bridge := m.Dialect.BridgeNumber(seen); bridge {
			failure.Note = "a bridge value that has lost its TTL; `lockmigrate sweep` gives it one"
		}
	case protocol.Ghost:
		busy()
		failure.Kind, failure.Value = lockmigrate.ErrForeignFormat, seen
		failure.Note = "a ghost: a legacy client outside of the namespace has left an expired value; `lockmigrate sweep` removes it"
		if ends, ok := m.Dialect.ExpiresAt(seen); ok {
			failure.Note = fmt.Sprintf("a ghost, expired since %s: a legacy client outside of the namespace has left it; `lockmigrate sweep` removes it",
				ends.Time().Format(time.RFC3339))
		}
	case protocol.Unsure:
		failure.Kind, failure.Cause, failure.Until = lockmigrate.ErrUnknownOutcome, o.Err, l.Clock.At(began.Add(p.Terms.TTL+l.opts.ReplyTimeout))
		return retryHint{left: l.giveBackLater(k, began)}, failure
	default:
		failure, wait = failed(m.Key, o.Err), p.Terms.poll
		if entry, _ := m.Entries(); m.Holds() || entry != "" {
			return retryHint{after: wait, left: l.giveBackLater(k, began)}, failure
		}
	}
	held := o.Step.Verdict == protocol.Busy
	next := retryHint{after: wait, contended: held && (seen != "" || m.Before() > 0), before: m.Before()}
	if _, bridge := m.Dialect.BridgeNumber(seen); held && !bridge {
		_, next.old = m.Dialect.ExpiresAt(seen)
	}
	next.gap = held && seen == "" && wait > 0
	return next, failure
}

// failed is the error of a server that refused, or could not be asked.
func failed(key string, cause error) *lockmigrate.Error {
	e := &lockmigrate.Error{Op: "acquire", Key: key, Cause: cause}
	if isLate(cause) {
		e.Kind = lockmigrate.ErrStage
	}
	return e
}

// isLate tells that a script refused a command because it came after the member's lease.
func isLate(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "STAGE ") }

// keep has what the attempt may have left given back, and the permit kept until then.
func (l *locker) keep(k *lock, began protocol.Instant) {
	k.permit.Kept = true
	l.Background.Fork(func() {
		if m := k.old; m != nil {
			l.giveBackLegacy(m.LegacyAcquire, &k.permit, m.left(), began)
			return
		}
		l.giveBack(k, began)
	})
}

// giveBackLater is giveBack in the background.
func (l *locker) giveBackLater(k *lock, began protocol.Instant) *pendingUndo {
	settled := make(chan struct{})
	k.permit.Kept = true
	l.Background.Fork(func() {
		if l.giveBack(k, began) {
			close(settled)
		}
	})
	return &pendingUndo{until: l.Clock.At(began.Add(k.permit.Terms.TTL + l.opts.ReplyTimeout)), settled: settled}
}

// giveBack undoes what an attempt may have left on the server after its caller had left, or after
// replies were missing, and tells whether nothing is left. When the server does not answer, or refuses, it is tried again until
// the TTL has run out.
func (l *locker) giveBack(k *lock, began protocol.Instant) bool {
	m, p := &k.acquire, &k.permit
	entry, stood := m.Entries()
	if !m.Holds() && entry == "" {
		p.Leave()
		return true
	}
	release := *k.giveBack()
	release.Hand, release.Entry, release.Stood = false, entry, stood // what is ours may not have settled
	undo := func() (bool, error) {
		m := release
		out := l.finish(l.runner(k.acquire.Dialect), &m)
		switch out.Step.Verdict {
		case protocol.Released, protocol.NotOurs, protocol.Displaced:
			p.Leave()
			k.over()
			return true, nil
		}
		return false, out.Err
	}
	gone, cause := undo()
	if gone {
		return true
	}
	until := l.Clock.At(began.Add(p.Terms.TTL + l.opts.ReplyTimeout))
	if given := p.Until.Add(p.Terms.TTL); entry != "" && given.After(until) {
		until = given // the last moment of a lock that is handed to the place
	}
	p.LeaveAt(until)
	l.Background.Again(until, func() bool {
		gone, _ := undo()
		return gone
	})
	if m.Holds() {
		l.Seen(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "give back", Key: k.key, Err: &lockmigrate.Error{ // the caller may have left
			Op: "acquire", Key: k.key, Kind: lockmigrate.ErrUnknownOutcome, Cause: cause, Until: until, Note: "the value on the key may be ours",
		}})
	}
	return false
}

// giveBackOver gives a key back that was granted to a value whose lock is over: to the next in the queue.
func (l *locker) giveBackOver(key, value string) {
	names := protocol.CompanionsOf(key)
	m := &protocol.BridgeRelease{Key: key, Guard: names.Guard, Value: value, Queue: names.Queue, Hand: true}
	if l.opts.FenceTTL > 0 {
		m.Fence, m.FenceTTL = names.Fence, l.opts.FenceTTL
	}
	l.Background.Go(func() { l.finish(l.Servers[0].Commands, m) })
}
