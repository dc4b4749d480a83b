package modern

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const (
	// maxSleep is the longest that a waiter goes without looking at the key, whatever it was told.
	maxSleep = 30 * time.Second
	// pause is the first one after a question that stayed without an answer; it grows.
	pause, longestPause = 50 * time.Millisecond, time.Second
)

// wait stands in the process's queue, and when it is the front, waits for the key in the way that the
// options say.
func (l *Locker) wait(ctx context.Context, key string) (*Lock, error) {
	if err := l.refuses(key); err != nil {
		return nil, err
	}
	if !l.background.Begin() { // to the end of the wait: Close finds it over, and its place given up
		return nil, &Error{Op: "acquire", Key: key, Cause: errClosed}
	}
	defer l.background.End()
	waits, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(errClosed) })()
	turn, err := l.hub.Enter(waits, key)
	if err != nil {
		return nil, l.left(key, err)
	}
	// Once the lock is ours, the next one of this process takes its place in the server's queue.
	defer turn.Leave()
	l.hot.Mark(key, l.clock.Now())
	k := l.newLock(ctx, key)
	switch {
	case l.opts.Layout == Redisson:
		err = l.competeRedisson(waits, turn, k)
	case l.opts.Unfair:
		err = l.compete(waits, turn, k)
	default:
		err = l.queue(waits, turn, k)
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
		Key: k.own.key, Queue: protocol.QueueKey(k.own.key), Guard: protocol.GuardKey(k.own.key), Token: k.own.token, Channel: l.channelOf(&k.own),
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
		return l.left(k.own.key, err)
	}
	var watch waiting.Watch
	for {
		turn.Forget()
		outcome, err := l.ask(ctx, watch.Over(l.runner, turn), m, reply, func(driver.Outcome) { _ = l.giveBack(k, true) })
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
				if m.Before() < waiting.Soon { // it may be given the key in a moment, and keeps the others waiting until it looks
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
		case step.Verdict == protocol.Failed && !driver.Refused(outcome.Err), driver.Elsewhere(outcome.Err):
			// There was no connection to be had, or none to the right server. The machine counts that as a question
			// without an answer.
			reply = protocol.Reply{Kind: protocol.Silence}
		default:
			return l.waitFailed(ctx, k, outcome, asked)
		}
	}
}

// left is the error of a waiter whose context ended, or whose Locker was closed.
func (l *Locker) left(key string, cause error) error {
	if errors.Is(cause, errClosed) {
		return &Error{Op: "acquire", Key: key, Cause: errClosed}
	}
	return &Error{Op: "acquire", Key: key, Kind: ErrNotAcquired, Cause: cause}
}

// ask is over's Advance for a waiter. What goes on after it has left is counted in background, like the waiter.
func (l *Locker) ask(ctx context.Context, over waiting.Runner, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l.background.Extend()
	outcome, err := over.Advance(ctx, m, reply, func(o driver.Outcome) {
		defer l.background.End()
		abandoned(o)
	})
	if err == nil || outcome.Step.Verdict == protocol.Failed { // nothing goes on
		l.background.End()
	}
	return outcome, err
}

// leave gives the place in the server's queue up, or the key if it has come meanwhile. The caller, a waiter, does
// not wait for that.
func (l *Locker) leave(k *Lock) { l.background.Fork(func() { _ = l.giveBack(k, true) }) }

// unqueue removes the entry that we left in the server's queue when we took the key past it. The caller
// does not wait for that: until it is confirmed, a release does the same.
func (l *Locker) unqueue(k *Lock) {
	h := &k.own
	h.stands.Store(true)
	l.background.Fork(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*l.opts.ReplyTimeout)
		defer cancel()
		m := &protocol.ModernLeave{
			Key: h.key, Queue: protocol.QueueKey(h.key), Token: h.token, Channel: l.channelOf(h), Claim: l.opts.Claim,
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
	return l.contend(ctx, turn, k, func() (driver.Outcome, contention, error) {
		m := &protocol.ModernAcquire{
			Key: k.own.key, Token: k.own.token, TTL: l.opts.TTL, Fence: k.own.fenceKey, FenceTTL: l.opts.FenceTTL, Script: true,
		}
		outcome, err := l.ask(ctx, turn, m, protocol.Reply{}, func(o driver.Outcome) { l.abandoned(k, o) })
		if err != nil { // the machine may still run: hands off
			return outcome, contention{}, err
		}
		return outcome, contention{left: m.Left(), until: m.Deadline(), fence: m.FenceToken()}, nil
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
func (l *Locker) contend(ctx context.Context, turn *waiting.Turn, k *Lock, try func() (driver.Outcome, contention, error)) error {
	unsettled := false // a question that stayed without an answer may have taken the key
	gaveUp := func(err error) error {
		if unsettled {
			l.background.Fork(func() { _ = l.giveBack(k, false) })
			return l.unknown(k, err)
		}
		return l.left(k.own.key, err)
	}
	for silent := 0; ; {
		outcome, found, err := try()
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
			unsettled = unsettled || outcome.Step.Verdict == protocol.Unsure && !driver.Elsewhere(outcome.Err)
			found.left = min(time.Duration(silent)*pause, longestPause)
		default:
			if unsettled {
				l.background.Fork(func() { _ = l.giveBack(k, false) })
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
			l.giveBackLater(k, true)
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
