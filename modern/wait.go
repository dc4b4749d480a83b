package modern

import (
	"context"
	"hash/maphash"
	"strings"
	"sync/atomic"
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
	// A key's change is of interest to the first in its queue at once. It watches the key only when its
	// turn does not come by itself within armAfter: while waiters hand the key on to each other quickly,
	// there is nothing to be learnt from watching it.
	armAfter = 3 * time.Millisecond
	// The next one watches too, later, and looks after the change had time to be acted on: the first may
	// be gone. All others are told when they become the first, or look when the holder's TTL is over.
	armSecond  = 200 * time.Millisecond
	lookSecond = 50 * time.Millisecond
	// hotFor is how long after a wait a key is taken to be contended: the next one to want it goes into
	// the queue without trying first.
	hotFor = time.Second
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
	l.hot.mark(key, l.clock.Now())
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
		Key: k.own.key, Queue: protocol.Beside(k.own.key, queueSuffix), Token: k.own.token, Channel: l.channel,
		TTL: l.opts.TTL, Claim: l.opts.Claim, QueueTTL: 3*maxSleep + l.opts.TTL,
		Fence: k.own.fenceKey, FenceTTL: l.opts.FenceTTL, Share: l.opts.Share, MaxSleep: maxSleep, Tries: tries,
	}
	reply, asked := protocol.Reply{}, false
	var watch watch
	for {
		turn.Forget()
		outcome, err := watch.runner(l, turn).Advance(ctx, m, reply, func(driver.Outcome) { _ = l.giveBack(k, true) })
		if err != nil {
			if asked && outcome.Step.Verdict == protocol.Failed { // nothing is under way, but we stand in line
				l.leave(k)
			}
			return l.gaveUp(k, err)
		}
		switch step := outcome.Step; {
		case step.Kind == protocol.Sleep:
			asked = true
			event, err := l.sleep(ctx, turn, &watch, k.own.key, m.Before(), step.Sleep)
			if err != nil {
				l.leave(k)
				return l.gaveUp(k, err)
			}
			reply = event.Reply()
		case step.Verdict == protocol.Acquired:
			k.own.handed = m.Handed()
			k.own.begin(m.Deadline(), m.FenceToken())
			return nil
		case step.Verdict == protocol.Failed && !driver.Refused(outcome.Err):
			// There was no connection to be had. The machine counts that as a question without an answer.
			reply = protocol.Reply{Kind: protocol.Silence}
		default:
			return l.waitFailed(ctx, k, outcome, asked)
		}
	}
}

// watch is whether a waiter watches the key. Once it had a reason to, its questions go over the tracked
// line and watch the key by themselves.
type watch struct {
	wanted bool // ask over the tracked line
	set    bool // the key is watched: the next change will be told
}

func (w *watch) runner(l *Locker, turn *waiting.Turn) waiting.Runner {
	w.set = w.wanted
	if w.wanted {
		return turn
	}
	return l.runner
}

// sleep waits for an event that concerns us.
func (l *Locker) sleep(ctx context.Context, turn *waiting.Turn, w *watch, key string, before int, d time.Duration) (waiting.Event, error) {
	now := l.clock.Now()
	end, arm := now.Add(d), now.Add(armAfter)
	if before > 0 {
		arm = now.Add(armSecond)
	}
	if before > 1 || l.hub.Mode() != waiting.Tracking {
		w.wanted, arm = false, end
	}
	for {
		until := end
		if !w.set {
			until = min(end, arm)
		}
		event, err := turn.Wait(ctx, max(until.Sub(l.clock.Now()), 0))
		switch {
		case err != nil:
			return event, err
		case event.Kind == waiting.Timer && !w.set && until < end:
			w.set, w.wanted = true, true
			if exists, err := l.hub.Arm(ctx, key); err != nil || !exists {
				return event, err
			}
		case event.Kind == waiting.Changed && before > 0:
			end = min(end, l.clock.Now().Add(lookSecond))
		default:
			return event, nil
		}
	}
}

// leave gives the place in the server's queue up, or the key if it has come meanwhile. The caller does
// not wait for that.
func (l *Locker) leave(k *Lock) {
	if !l.closed.Load() {
		l.background.Go(func() { _ = l.giveBack(k, true) })
	}
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
			k.own.begin(m.Deadline(), m.FenceToken())
			return nil
		case outcome.Step.Verdict == protocol.Busy:
			silent = 0
		case silent < tries && !driver.Refused(outcome.Err):
			silent++
			left = time.Duration(silent) * lookSecond
		default:
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

// heat remembers which keys were waited for lately; keys may share a place, which only costs a better
// guess.
type heat struct {
	seed   maphash.Seed
	places [256]atomic.Int64 // protocol.Instant
}

func (h *heat) place(key string) *atomic.Int64 {
	return &h.places[maphash.String(h.seed, key)%uint64(len(h.places))]
}

func (h *heat) mark(key string, now protocol.Instant) { h.place(key).Store(int64(now)) }

func (h *heat) hot(key string, now protocol.Instant) bool {
	last := protocol.Instant(h.place(key).Load())
	return last != 0 && now.Sub(last) < hotFor
}
