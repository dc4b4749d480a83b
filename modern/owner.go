package modern

import (
	"context"
	"errors"

	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

type ownerKey struct{}

// WithOwner makes acquisitions with the context reentrant: what an owner holds on a Locker, it acquires
// again at once, as another Lock of the same hold, and the key is given back with the last of them.
// Without an owner every acquisition stands for itself, and acquiring twice waits for oneself.
//
// The empty id is no owner. Carry an owner no further than the work that may share its locks: two goroutines with one owner do
// not exclude each other.
func WithOwner(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, ownerKey{}, id)
}

// Owner returns the owner of a context.
func Owner(ctx context.Context) (id string, ok bool) {
	id, ok = ctx.Value(ownerKey{}).(string)
	return id, ok && id != ""
}

type ownership struct{ key, owner string }

// reenter takes another Lock of a hold that the context's owner has.
func (l *Locker) reenter(ctx context.Context, key string) (*Lock, bool, error) {
	owner, ok := Owner(ctx)
	if !ok {
		return nil, false, nil
	}
	l.mu.Lock()
	h := l.owned[ownership{key, owner}]
	l.mu.Unlock()
	if h == nil {
		return nil, false, nil
	}
	h.mu.Lock()
	if h.count == 0 || h.life.Over() != nil {
		h.mu.Unlock()
		return nil, false, nil
	}
	h.count++
	h.mu.Unlock()
	if l.opts.Layout == Redisson {
		if err := l.countRedisson(ctx, h); err != nil {
			return nil, true, err
		}
	}
	return &Lock{hold: h}, true, nil
}

// own notes what the context's owner holds.
func (l *Locker) own(ctx context.Context, k *Lock) {
	owner, ok := Owner(ctx)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k.own.owner = ownership{k.own.key, owner}
	l.owned[k.own.owner] = &k.own
}

func (l *Locker) disown(h *hold) {
	if h.owner == (ownership{}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owned[h.owner] == h {
		delete(l.owned, h.owner)
	}
}

// releaseOnce gives back one of several Locks of a hold. Only layout Redisson counts on the server. The work under an inner
// Lock is told of a loss like that under the outermost.
func (l *Locker) releaseOnce(ctx context.Context, h *hold) error {
	if over := h.life.Over(); over != nil || l.opts.Layout != Redisson {
		return lost(over)
	}
	m := l.redissonRelease(h)
	m.Remaining = h.remaining()
	outcome, err := l.runner.Advance(ctx, m, protocol.Reply{}, func(driver.Outcome) {})
	if err != nil {
		outcome.Err = err
	}
	switch outcome.Step.Verdict {
	case protocol.Released:
		return lost(h.life.Over())
	case protocol.NotOurs:
		l.renewer.Remove(&h.life.Lease)
		h.life.LoseTo(protocol.NotOurs, "release")
		return lost(h.life.Over())
	case protocol.Unsure:
		return h.fail("release", ErrUnknownOutcome, outcome.Err)
	default:
		return h.fail("release", nil, outcome.Err)
	}
}

// lost returns why a hold is over if it was lost. That the last of its Locks was released meanwhile is no error.
func lost(over error) error {
	if errors.Is(over, ErrLost) {
		return over
	}
	return nil
}

func (h *hold) remaining() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}
