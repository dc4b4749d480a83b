package modern

import (
	"context"

	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func (l *Locker) redissonAcquire(h *hold, holds int) *protocol.AcquireRedisson {
	return &protocol.AcquireRedisson{Key: h.key, Holder: h.token, TTL: l.opts.TTL, Holds: holds}
}

func (l *Locker) redissonRelease(h *hold) *protocol.ReleaseRedisson {
	return &protocol.ReleaseRedisson{Key: h.key, Channel: protocol.RedissonChannel(h.key), Holder: h.token, TTL: l.opts.TTL}
}

func (l *Locker) attemptRedisson(ctx context.Context, k *Lock) error {
	m := l.redissonAcquire(&k.own, 1)
	outcome, err := l.runner.Advance(ctx, m, protocol.Reply{}, func(o driver.Outcome) { l.abandoned(k, o) })
	if err != nil {
		return l.gaveUp(k, err)
	}
	switch outcome.Step.Verdict {
	case protocol.Acquired:
		k.own.begin(m.Deadline(), 0)
		return nil
	case protocol.Busy:
		return k.own.fail("acquire", ErrNotAcquired, nil)
	case protocol.Foreign, protocol.Unsure:
		return l.waitFailed(ctx, k, outcome, false)
	}
	return k.own.fail("acquire", nil, outcome.Err)
}

// competeRedisson waits as RLock does: subscribe, try, sleep until an announcement or the holder's TTL.
func (l *Locker) competeRedisson(ctx context.Context, turn *waiting.Turn, k *Lock) error {
	if err := turn.Subscribe(ctx, protocol.RedissonChannel(k.own.key)); err != nil {
		return l.left(k.own.key, err)
	}
	return l.contend(ctx, turn, k, func() (driver.Outcome, contention, error) {
		m := l.redissonAcquire(&k.own, 1)
		outcome, err := l.ask(ctx, turn, m, protocol.Reply{}, func(o driver.Outcome) { l.abandoned(k, o) })
		if err != nil { // as in compete
			return outcome, contention{}, err
		}
		return outcome, contention{left: m.Left(), until: m.Deadline()}, nil
	})
}

// countRedisson counts one more hold on the server. The one that is counted here is counted off again on an error, but not
// before it is clear what has become of the command.
func (l *Locker) countRedisson(ctx context.Context, h *hold) error {
	outcome, err := l.runner.Advance(ctx, l.redissonAcquire(h, h.remaining()), protocol.Reply{}, func(o driver.Outcome) {
		l.uncount(h, o.Step.Verdict == protocol.Acquired)
	})
	if err == nil && outcome.Step.Verdict == protocol.Acquired {
		return nil
	}
	if err == nil || outcome.Step.Verdict == protocol.Failed { // nothing goes on
		defer l.uncount(h, false)
	}
	switch {
	case err != nil:
		return h.fail("acquire", ErrNotAcquired, err)
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

// uncount takes back a hold that was not to be, and gives the key back if all others have been released meanwhile.
func (l *Locker) uncount(h *hold, onServer bool) {
	if h.last() {
		_ = h.life.Release(over) // in the background; what fails is told to the observer
	} else if onServer {
		_ = l.releaseOnce(context.Background(), h)
	}
}

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (l *Locker) giveBackRedisson(k *Lock) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*l.opts.ReplyTimeout)
	defer cancel()
	outcome, _ := l.runner.Advance(ctx, l.redissonRelease(&k.own), protocol.Reply{}, func(driver.Outcome) {})
	if v := outcome.Step.Verdict; v == protocol.Released || v == protocol.NotOurs {
		return nil
	}
	return l.notGivenBack(k, outcome.Err)
}
