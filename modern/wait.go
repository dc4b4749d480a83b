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
	// tries is how many questions of a waiter may stay without an answer, one after the other, with
	// growing pauses between: about five seconds.
	tries = 10
	// pause is the first of those pauses, where they are the waiter's own.
	pause = 50 * time.Millisecond
)

// wait stands in the process's queue, and when it is the front, waits for the key in the way that the
// options say.
func (l *Locker) wait(ctx context.Context, key string) (*Lock, error) {
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
	m := &protocol.ModernQueue{
		Key: k.own.key, Queue: protocol.QueueKey(k.own.key), Token: k.own.token, Channel: l.channel,
		TTL: l.opts.TTL, Claim: l.opts.Claim, QueueTTL: 3*maxSleep + l.opts.TTL,
		Fence: k.own.fenceKey, FenceTTL: l.opts.FenceTTL, Share: l.opts.Share, MaxSleep: maxSleep, Tries: tries,
		Whole: l.opts.NoRenewal,
	}
	reply, asked := protocol.Reply{}, false
	var watch waiting.Watch
	for {
		turn.Forget()
		outcome, err := watch.Over(l.runner, turn).Advance(ctx, m, reply, func(driver.Outcome) { _ = l.giveBack(k, true) })
		if err != nil {
			if asked && outcome.Step.Verdict == protocol.Failed { // nothing is under way, but we stand in line
				l.leave(k)
			}
			return l.gaveUp(k, err)
		}
		switch step := outcome.Step; {
		case step.Kind == protocol.Sleep:
			asked = true
			event, err := watch.Sleep(ctx, turn, k.own.key, m.Before(), m.Old(), step.Sleep)
			if err != nil {
				l.leave(k)
				return l.gaveUp(k, err)
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
			Key: h.key, Queue: protocol.QueueKey(h.key), Token: h.token, Channel: l.channel, Claim: l.opts.Claim,
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
	unsettled := false // a question that stayed without an answer may have taken the key
	defer func() {
		if unsettled {
			l.giveBackLater(k, false)
		}
	}()
	for silent := 0; ; {
		m := &protocol.ModernAcquire{
			Key: k.own.key, Token: k.own.token, TTL: l.opts.TTL, Fence: k.own.fenceKey, FenceTTL: l.opts.FenceTTL, Script: true,
		}
		outcome, err := turn.Advance(ctx, m, protocol.Reply{}, func(o driver.Outcome) { l.abandoned(k, o) })
		if err != nil {
			return l.gaveUp(k, err)
		}
		left := m.Left()
		switch {
		case outcome.Step.Verdict == protocol.Acquired:
			unsettled = false
			k.own.begin(m.Deadline(), m.FenceToken())
			return nil
		case outcome.Step.Verdict == protocol.Busy:
			silent, unsettled = 0, false
		case silent < tries && !driver.Refused(outcome.Err):
			silent++
			unsettled = unsettled || outcome.Step.Verdict == protocol.Unsure
			left = time.Duration(silent) * pause
		default:
			unsettled = unsettled && outcome.Step.Verdict != protocol.Unsure // waitFailed sees to that one
			return l.waitFailed(ctx, k, outcome, false)
		}
		if _, err := turn.Wait(ctx, untilLook(left)); err != nil {
			return l.gaveUp(k, err)
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
		k.own.lease.Begin(k.own.lease.Began, m.Renew.Deadline())
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
