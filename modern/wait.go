package modern

import (
	"context"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Wait implements lockers.Kind: in the way that the options say.
func (h *hold) Wait(ctx context.Context, turn *waiting.Turn) error {
	l := h.locker
	if !l.opts.Unfair {
		return l.queue(ctx, turn, h)
	}
	return h.Compete(ctx, turn, func() *protocol.ModernAcquire {
		return &protocol.ModernAcquire{
			Key: h.Key(), Token: h.Token, TTL: l.opts.TTL, Fence: h.fenceKey, FenceTTL: l.opts.FenceTTL, Script: true,
		}
	})
}

// queue waits in the key's queue on the server.
func (l *locker) queue(ctx context.Context, turn *waiting.Turn, h *hold) error {
	turn.Expect(h.Token)
	h.Queues()
	// Who does not listen says so: the key is then given to it without a message, and it looks for that. To the end
	// of this wait, because its place is bound to what it has said.
	h.polls = turn.Mode() == waiting.Polling
	names := protocol.CompanionsOf(h.Key())
	m := &protocol.ModernQueue{
		Key: h.Key(), Queue: names.Queue, Guard: names.Guard, Yield: names.Yield, Token: h.Token, Channel: l.channelOf(h),
		TTL: l.opts.TTL, Claim: l.opts.claim, QueueTTL: 3*lockers.MaxSleep + l.opts.TTL,
		Fence: h.fenceKey, FenceTTL: l.opts.FenceTTL, Share: l.opts.Yield, MaxSleep: lockers.MaxSleep,
		ConfirmGrant: l.opts.RenewEvery < 0,
	}
	reply, asked := protocol.Reply{}, false
	unsettled := false // a question that stayed without an answer may have taken the key
	gaveUp := func(err error) error {
		if unsettled {
			return h.Unknown(err)
		}
		return lockers.Left(h.Key(), err)
	}
	var watch waiting.Watch
	for {
		turn.Forget()
		outcome, err := l.Ask(ctx, watch.Over(h.Commands(), turn), m, reply, func(driver.Outcome) {
			defer l.Background.End()
			_ = h.GiveBack(true)
		})
		if err != nil {
			if asked && outcome.Step.Verdict == protocol.Failed { // nothing is under way, but we stand in line
				h.Leave(true)
			}
			return gaveUp(err)
		}
		switch step := outcome.Step; {
		case step.Kind == protocol.Sleep:
			asked = true
			unsettled = m.Unanswered() && (unsettled || outcome.Err != nil)
			sleep := step.Sleep
			if h.polls {
				sleep = min(sleep, l.opts.Poll)
				if m.Before() < waiting.Soon { // it may be given the key in a moment, and keeps the others waiting until it looks
					sleep = min(sleep, max(l.opts.Poll/10, time.Millisecond))
				}
			}
			event, err := watch.Sleep(ctx, turn, m.Before(), m.Old(), sleep)
			if err != nil {
				h.Leave(true)
				return gaveUp(err)
			}
			reply = event.Reply()
		case step.Verdict == protocol.Acquired:
			h.Handed, h.Fence = m.Handed(), m.FenceToken()
			h.Begin(m.Deadline())
			if m.EntryLeft() {
				l.unqueue(h)
			}
			return nil
		case step.Verdict == protocol.Failed && !driver.Refused(outcome.Err), driver.Elsewhere(outcome.Err):
			// There was no connection to be had, or none to the right server. The machine counts that as a question
			// without an answer.
			reply = protocol.Reply{Kind: protocol.Silence}
		default:
			return needsQueue(h.Failed(ctx, outcome, asked))
		}
	}
}

// unqueue removes the entry that we left in the server's queue when we took the key past it. The caller
// does not wait for that: until it is confirmed, a release does the same.
func (l *locker) unqueue(h *hold) {
	h.entryLeft.Store(true)
	l.Background.Fork(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*l.opts.ReplyTimeout)
		defer cancel()
		m := &protocol.ModernLeave{
			Key: h.Key(), Queue: protocol.QueueKey(h.Key()), Token: h.Token, Channel: l.channelOf(h), Claim: l.opts.claim,
		}
		outcome, err := h.Commands().Advance(ctx, m, protocol.Reply{}, func(driver.Outcome) {})
		if err == nil && outcome.Step.Verdict == protocol.Released {
			h.entryLeft.Store(false)
		}
	})
}

// Confirm implements lockers.Kind: an acquisition counts only when enough replicas have it. WAIT speaks of the writes of
// its own connection, so the lease is extended and waited for on one.
func (h *hold) Confirm(ctx context.Context) error {
	l := h.locker
	if l.opts.Replicas == 0 {
		return nil
	}
	m := &protocol.ModernConfirm{Renew: h.Renewing(), Replicas: l.opts.Replicas, Timeout: l.opts.replicaTimeout}
	outcome, err := l.Servers[0].PerAttempt.Advance(ctx, m, protocol.Reply{}, func(driver.Outcome) { _ = h.GiveBack(false) })
	switch {
	case err != nil:
		if outcome.Step.Verdict == protocol.Failed {
			h.GiveBackLater(true)
		}
		return h.Fail("acquire", lockmigrate.ErrNotAcquired, err)
	case outcome.Step.Verdict == protocol.Renewed:
		h.Lease.Begin(h.Lease.Began, m.Renew.Deadline())
		return nil
	case outcome.Step.Verdict != protocol.Busy:
		return h.CleanUp(ctx, outcome.Err, false)
	case h.GiveBack(false) != nil:
		return h.Unknown(outcome.Err)
	}
	few := h.Fail("acquire", lockmigrate.ErrNotAcquired, nil)
	few.Note = m.Says()
	return few
}
