package modern

import (
	"context"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/waiting"
)

const (
	// maxSleep is the longest that a waiter goes without looking at the key, whatever it was told.
	maxSleep = 30 * time.Second
	// soon is how many may stand before a waiter that polls for it to look more often.
	soon = 4
	// pause is the first one after a question that stayed without an answer; it grows.
	pause, longestPause = 50 * time.Millisecond, time.Second
)

// wait stands in the process's queue, and when it is the front, waits for the key in the way that the
// options say.
func (l *Locker) wait(ctx context.Context, key string) (*Lock, error) {
	if err := l.refuses(key); err != nil {
		return nil, err
	}
	turn, err := l.hub.Enter(ctx, key)
	if err != nil {
		return nil, &Error{Op: "acquire", Key: key, Kind: ErrNotAcquired, Cause: err}
	}
	// Once the lock is ours, the next one of this process takes its place in the server's queue.
	defer turn.Leave()
	l.hot.Mark(key, l.clock.Now())
	k := l.newLock(ctx, key)
	switch {
	case l.opts.Layout == Redisson:
		err = l.competeRedisson(ctx, turn, k)
	case l.opts.Unfair:
		err = l.compete(ctx, turn, k)
	default:
		err = l.queue(ctx, turn, k)
	}
	return k, err
}

// queue waits in the key's queue on the server.
func (l *Locker) queue(ctx context.Context, turn *waiting.Turn, k *Lock) error {
	turn.Expect(k.own.token)
	// Who does not listen says so: the key is then given to it without a message, and it looks for that. To the end
	// of this wait, because its place is bound to what it has said.
	k.own.polls = turn.Mode() == waiting.Polling
	m := &protocol.ModernQueue{
		Key: k.own.key, Queue: protocol.Beside(k.own.key, queueSuffix), Token: k.own.token, Channel: l.channelOf(&k.own),
		TTL: l.opts.TTL, Claim: l.opts.Claim, QueueTTL: 3*maxSleep + l.opts.TTL,
		Fence: k.own.fenceKey, FenceTTL: l.opts.FenceTTL, Share: l.opts.Share, MaxSleep: maxSleep,
		Whole: l.opts.NoRenewal,
	}
	reply, asked := protocol.Reply{}, false
	unsettled := false // a question that stayed without an answer may have taken the key
	gaveUp := func(err error) error {
		if unsettled {
			return l.unknown(k, err)
		}
		return l.gaveUp(k, err)
	}
	var watch waiting.Watch
	for {
		turn.Forget()
		outcome, err := watch.Over(l.runner, turn).Advance(ctx, m, reply, func(driver.Outcome) { _ = l.giveBack(k, true) })
		if err != nil {
			if asked && outcome.Step.Verdict == protocol.Failed { // nothing is under way, but we stand in line
				l.leave(k)
			}
			return gaveUp(err)
		}
		switch step := outcome.Step; {
		case step.Kind == protocol.Sleep:
			asked = true
			unsettled = m.Unanswered() && (unsettled || outcome.Err != nil)
			sleep := step.Sleep
			if k.own.polls {
				sleep = min(sleep, l.opts.Poll)
				if m.Before() < soon { // it may be given the key in a moment, and keeps the others waiting until it looks
					sleep = min(sleep, max(l.opts.Poll/10, time.Millisecond))
				}
			}
			event, err := watch.Sleep(ctx, turn, m.Before(), m.Old(), sleep)
			if err != nil {
				l.leave(k)
				return gaveUp(err)
			}
			reply = event.Reply()
		case step.Verdict == protocol.Acquired:
			k.own.handed = m.Handed()
			k.own.begin(m.Deadline(), m.FenceToken())
			if m.Stands() {
				l.unqueue(k)
			}
			return nil
		case step.Verdict == protocol.Failed && !driver.Refused(outcome.Err):
			// There was no connection to be had. The machine counts that as a question without an answer.
			reply = protocol.Reply{Kind: protocol.Silence}
		default:
			return l.waitFailed(ctx, k, outcome, asked)
		}
	}
}

// leave gives the place in the server's queue up, or the key if it has come meanwhile. The caller does
// not wait for that.
func (l *Locker) leave(k *Lock) { l.giveBackLater(k, true) }

// unqueue removes the entry that we left in the server's queue when we took the key past it. The caller
// does not wait for that: until it is confirmed, a release does the same.
func (l *Locker) unqueue(k *Lock) {
	h := &k.own
	h.stands.Store(true)
	l.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*l.opts.ReplyTimeout)
		defer cancel()
		m := &protocol.ModernLeave{
			Key: h.key, Queue: protocol.Beside(h.key, queueSuffix), Token: h.token, Channel: l.channelOf(h), Claim: l.opts.Claim,
		}
		outcome, err := l.runner.Advance(ctx, m, protocol.Reply{}, func(driver.Outcome) {})
		if err == nil && outcome.Step.Verdict == protocol.Released {
			h.stands.Store(false)
		}
	})
}

// waitFailed ends a wait that cannot go on.
func (l *Locker) waitFailed(ctx context.Context, k *Lock, outcome driver.Outcome, queued bool) error {
	err := k.own.fail("acquire", nil, outcome.Err)
	switch outcome.Step.Verdict {
	case protocol.Foreign:
		err.Kind, err.Note = ErrForeignFormat, "the key is not a string: another layout?"
		return err
	case protocol.Unsure:
		return l.cleanUp(ctx, k, outcome.Err, func() error { return l.giveBack(k, true) })
	case protocol.Failed:
		if queued {
			l.leave(k)
		}
		if outcome.Err != nil && strings.Contains(outcome.Err.Error(), "NOPERM") {
			err.Note = "the queue needs its key and its channel: grant them, or set Options.Unfair"
		}
	}
	return err
}

// compete waits to be woken and tries again, with everybody else who was woken.
func (l *Locker) compete(ctx context.Context, turn *waiting.Turn, k *Lock) error {
	return l.contend(ctx, turn, k, func() (driver.Outcome, error, contention) {
		m := &protocol.ModernAcquire{
			Key: k.own.key, Token: k.own.token, TTL: l.opts.TTL, Fence: k.own.fenceKey, FenceTTL: l.opts.FenceTTL, Script: true,
		}
		outcome, err := turn.Advance(ctx, m, protocol.Reply{}, func(o driver.Outcome) { l.abandoned(k, o) })
		return outcome, err, contention{left: m.Left(), until: m.Deadline(), fence: m.FenceToken()}
	})
}

// contention is what an attempt beside others says.
type contention struct {
	left  time.Duration    // Busy: the holder's TTL
	until protocol.Instant // Acquired: the deadline
	fence int64
}

// contend tries again and again, until the lock is ours, ctx ends or the server refuses. A connection that breaks, or a
// server that is away for a while, is no reason to lose one's place: whoever has the lock may release it at any time.
func (l *Locker) contend(ctx context.Context, turn *waiting.Turn, k *Lock, try func() (driver.Outcome, error, contention)) error {
	unsettled := false // a question that stayed without an answer may have taken the key
	gaveUp := func(err error) error {
		if unsettled {
			l.giveBackLater(k, false)
			return l.unknown(k, err)
		}
		return l.gaveUp(k, err)
	}
	for silent := 0; ; {
		outcome, err, found := try()
		if err != nil {
			return gaveUp(err)
		}
		switch {
		case outcome.Step.Verdict == protocol.Acquired:
			k.own.begin(found.until, found.fence)
			return nil
		case outcome.Step.Verdict == protocol.Busy:
			silent, unsettled = 0, false
		case outcome.Step.Verdict != protocol.Foreign && !driver.Refused(outcome.Err):
			silent++
			unsettled = unsettled || outcome.Step.Verdict == protocol.Unsure
			found.left = min(time.Duration(silent)*pause, longestPause)
		default:
			if unsettled {
				l.giveBackLater(k, false)
			}
			return l.waitFailed(ctx, k, outcome, false)
		}
		if _, err := turn.Wait(ctx, untilLook(found.left)); err != nil {
			return gaveUp(err)
		}
	}
}

// untilLook is how long to sleep when the holder's TTL has left to go; negative for none.
func untilLook(left time.Duration) time.Duration {
	if left < 0 || left > maxSleep {
		return maxSleep
	}
	return left + time.Millisecond
}

// replicated lets an acquisition count only when enough replicas have it. WAIT speaks of the writes of
// its own connection, so the lease is extended and waited for on one.
func (l *Locker) replicated(ctx context.Context, k *Lock) error {
	m := &protocol.ModernConfirm{
		Renew:    *k.own.renewalMachine(),
		Replicas: l.opts.Replicas, Timeout: l.opts.ReplicaTimeout,
	}
	outcome, err := l.pool.Advance(ctx, m, protocol.Reply{}, func(driver.Outcome) { _ = l.giveBack(k, false) })
	switch {
	case err != nil:
		if outcome.Step.Verdict == protocol.Failed {
			l.leave(k)
		}
		return l.gaveUp(k, err)
	case outcome.Step.Verdict == protocol.Renewed:
		k.own.life.Lease.Begin(k.own.life.Lease.Began, m.Renew.Deadline())
		return nil
	}
	if outcome.Step.Verdict != protocol.Busy {
		return l.cleanUp(ctx, k, outcome.Err, func() error { return l.giveBack(k, false) })
	}
	if l.giveBack(k, false) != nil {
		return l.unknown(k, outcome.Err)
	}
	few := k.own.fail("acquire", ErrNotAcquired, nil)
	few.Note = m.Says()
	return few
}
