package modern

import (
	"context"
	"errors"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/waiting"
)

// redissonChannel is where RLock announces a release; the braces keep it in the name's slot.
func redissonChannel(name string) string { return "redisson_lock__channel:{" + name + "}" }

func (l *Locker) redissonAcquire(h *hold, holds int) *protocol.AcquireRedisson {
	return &protocol.AcquireRedisson{Key: h.key, Holder: h.token, TTL: l.opts.TTL, Holds: holds}
}

func (l *Locker) redissonRelease(h *hold) *protocol.ReleaseRedisson {
	return &protocol.ReleaseRedisson{Key: h.key, Channel: redissonChannel(h.key), Holder: h.token, TTL: l.opts.TTL}
}

func (l *Locker) attemptRedisson(ctx context.Context, k *Lock) error {
	_, err := l.tryRedisson(ctx, l.runner, k)
	return err
}

// tryRedisson is one attempt; left is the holder's remaining TTL when another has the lock.
func (l *Locker) tryRedisson(ctx context.Context, runner waiting.Runner, k *Lock) (left time.Duration, err error) {
	m := l.redissonAcquire(&k.own, 1)
	outcome, err := runner.Advance(ctx, m, protocol.Reply{}, func(o driver.Outcome) {
		if v := o.Step.Verdict; v == protocol.Acquired || v == protocol.Unsure {
			_ = l.giveBack(k, false)
		}
	})
	if err != nil {
		return 0, l.gaveUp(k, err)
	}
	switch outcome.Step.Verdict {
	case protocol.Acquired:
		k.own.begin(m.Deadline(), 0)
		return 0, nil
	case protocol.Busy:
		return m.Left(), k.own.fail("acquire", ErrNotAcquired, nil)
	case protocol.Foreign:
		return 0, l.waitFailed(ctx, k, outcome, false)
	case protocol.Unsure:
		return 0, l.cleanUp(ctx, k, outcome.Err, func() error { return l.giveBack(k, false) })
	}
	return 0, k.own.fail("acquire", nil, outcome.Err)
}

// competeRedisson waits as RLock does: subscribe, try, sleep until an announcement or the holder's TTL.
func (l *Locker) competeRedisson(ctx context.Context, turn *waiting.Turn, k *Lock) error {
	if err := turn.Subscribe(ctx, redissonChannel(k.own.key)); err != nil {
		return l.gaveUp(k, err)
	}
	for {
		left, err := l.tryRedisson(ctx, turn, k)
		if !errors.Is(err, ErrNotAcquired) || ctx.Err() != nil {
			return err
		}
		if _, err := turn.Wait(ctx, untilLook(left)); err != nil {
			return l.gaveUp(k, err)
		}
	}
}

// countRedisson counts one more hold on the server.
func (l *Locker) countRedisson(ctx context.Context, h *hold) error {
	outcome, err := l.runner.Advance(ctx, l.redissonAcquire(h, h.remaining()), protocol.Reply{}, func(o driver.Outcome) {
		if o.Step.Verdict == protocol.Acquired {
			_ = l.releaseOnce(context.Background(), h)
		}
	})
	switch {
	case err != nil:
		return h.fail("acquire", ErrNotAcquired, err)
	case outcome.Step.Verdict == protocol.Acquired:
		return nil
	case outcome.Step.Verdict == protocol.Busy:
		l.renewer.Remove(&h.life.Lease)
		h.life.LoseTo(protocol.Lost, "acquire")
		return h.life.Over()
	case outcome.Step.Verdict == protocol.Unsure:
		return h.fail("acquire", ErrUnknownOutcome, outcome.Err)
	default:
		return h.fail("acquire", nil, outcome.Err)
	}
}

func (l *Locker) giveBackRedisson(k *Lock) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*l.opts.ReplyTimeout)
	defer cancel()
	outcome, _ := l.runner.Advance(ctx, l.redissonRelease(&k.own), protocol.Reply{}, func(driver.Outcome) {})
	if v := outcome.Step.Verdict; v == protocol.Released || v == protocol.Kept {
		return nil
	}
	return l.notGivenBack(k, outcome.Err)
}
