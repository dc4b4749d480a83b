package modern

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/renewal"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Lock is a lock that we hold, or held: one acquisition. Where an owner in the context acquires again
// what it holds, it gets another Lock of the same hold.
type Lock struct {
	hold     *hold
	released atomic.Bool
	own      hold // what hold points to for the first Lock of a hold: one allocation for both
}

var _ lockmigrate.Held = (*Lock)(nil)

// hold is what is on the server.
type hold struct {
	life     lifetime.Life
	locker   *Locker
	first    *Lock // for the hooks
	key      string
	token    string
	fenceKey string // empty without fencing
	fence    int64
	handed   bool
	stands   atomic.Bool // our entry may still be in the server's queue
	polls    bool        // that entry is one of a waiter that does not listen
	owner    ownership   // set where an owner holds it
	acquire  protocol.ModernAcquire
	giving   protocol.ModernRelease // one release runs at a time

	mu    sync.Mutex
	count int // Locks that are not released
}

func (l *Locker) newLock(ctx context.Context, key string) *Lock {
	k := &Lock{}
	k.hold = &k.own
	h := &k.own
	h.locker, h.first, h.key, h.token, h.count = l, k, key, l.newToken(), 1
	h.life.Init(&l.lives, h, ctx)
	if l.opts.Fencing {
		h.fenceKey = protocol.FenceKey(key)
	}
	l.opts.terms(&h.life.Lease, h)
	return k
}

// begin starts the hold; the renewer has it only after that.
func (h *hold) begin(until protocol.Instant, fence int64) {
	h.life.Lease.Begin(h.locker.clock.Now(), until)
	h.fence = fence
}

// Key returns the lock's key.
func (k *Lock) Key() string { return k.hold.key }

// Token returns what makes the lock ours on the server; in layout Redisson, the hash's field.
func (k *Lock) Token() string { return k.hold.token }

// Fence returns the fencing token: larger than that of every earlier holder of the key, as Options.Fencing says. It is 0 without
// Options.Fencing.
func (k *Lock) Fence() int64 { return k.hold.fence }

// Count returns how many Locks of this hold are not released: more than 1 where an owner in the
// context has acquired again what it holds.
func (k *Lock) Count() int {
	k.hold.mu.Lock()
	defer k.hold.mu.Unlock()
	return k.hold.count
}

// Expiry returns until when the lock is certainly ours if no renewal comes through any more. It is a
// deadline of this process's monotonic clock, counted from before the last successful command was sent.
func (k *Lock) Expiry() time.Time { return k.hold.life.Expiry() }

// Context returns a context with the values of the one that acquired the lock. It ends when the lock is
// lost, with a cause that matches ErrLost and at the latest at Expiry, or when it is released, with
// ErrReleased. A release that failed changes nothing about that.
func (k *Lock) Context() context.Context { return k.hold.life.Context() }

// Renew extends the lease to a full TTL from now. ErrLost means that the key is not ours any more, or
// that the reply came after Expiry. After any other error the lock is held as before, until its Expiry.
func (k *Lock) Renew(ctx context.Context) error {
	if k.released.Load() {
		if over := k.hold.life.Over(); over != nil {
			return over
		}
		return k.hold.fail("renew", ErrReleased, nil)
	}
	return k.hold.life.Renew(ctx)
}

// Release gives the lock back: to the next in line, or by deleting the key, and only while the key holds
// our token. ErrLost means that the lock was lost before. ErrUnknownOutcome means that no reply came: the
// key may stay taken until the time that the error tells. The renewals end with the call in any case.
//
// After an error other than ErrLost the Locker tries the release again in the background until Expiry, with pauses of 50 ms
// to 1 s: a server that refuses now (READONLY, NOPERM, OOM, LOADING) may run it later. Release may be called again too: the
// first call after the lock was given back returns nil. Meanwhile the holder's context still ends at Expiry.
//
// When ctx ends before the reply, or has ended before, the release goes on in the background.
func (k *Lock) Release(ctx context.Context) error {
	h := k.hold
	if !k.released.Swap(true) {
		if h.last() {
			return h.life.Release(ctx)
		}
		return h.locker.releaseOnce(ctx, h)
	}
	if h.remaining() > 0 { // others of the hold are not released
		if over := h.life.Over(); over != nil {
			return over
		}
		return h.fail("release", ErrReleased, nil)
	}
	return h.life.Release(ctx)
}

// last counts one Lock off and tells whether it was the last one of the hold.
func (h *hold) last() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count > 0 {
		h.count--
	}
	return h.count == 0
}

// What is of this kind alone in the life of a lock.

// Key implements lifetime.Kind.
func (h *hold) Key() string { return h.key }

// Acquired implements lifetime.Kind: what a caller who has left got is given back, by token.
func (h *hold) Acquired(o driver.Outcome) { h.locker.abandoned(h.first, o) }

// Renew implements lifetime.Kind.
func (h *hold) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	return h.locker.runner.Advance(ctx, h.renewalMachine(), protocol.Reply{}, abandoned)
}

// Release implements lifetime.Kind: over the way that the layout and the server have for it.
func (h *hold) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	l := h.locker
	if l.opts.Layout == Redisson {
		return l.runner.Advance(ctx, l.redissonRelease(h), protocol.Reply{}, abandoned)
	}
	m := &h.giving
	*m = l.releaseOf(h)
	m.Wanted = h.handed || l.hot.Hot(h.key, l.clock.Now)
	if m.Queue == "" {
		m.Native = l.native.command(l)
	}
	outcome, err := l.runner.Advance(ctx, m, protocol.Reply{}, abandoned)
	if err == nil && m.Native != "" && outcome.Step.Verdict == protocol.Failed && l.native.refused(outcome.Err) {
		*m = l.releaseOf(h)
		outcome, err = l.runner.Advance(ctx, m, protocol.Reply{}, abandoned)
	}
	return outcome, err
}

// Explain implements lifetime.Kind.
func (h *hold) Explain(*Error) {}

// Ended implements lifetime.Kind.
func (h *hold) Ended(lost *Error) {
	h.locker.disown(h)
	if hook := h.locker.opts.RenewalFailed; hook != nil && lost != nil {
		hook(h.first, lost)
	}
}

// Gone implements lifetime.Kind.
func (h *hold) Gone() {}

// The renewer's side of a hold.

// Renewal implements renewal.Held.
func (h *hold) Renewal() protocol.Command {
	if h.locker.opts.Layout == Redisson {
		return protocol.Command{Op: protocol.RedissonExtend, Key: h.key, Value: h.token, TTL: h.locker.opts.TTL}
	}
	return protocol.Command{
		Op: protocol.Extend, Key: h.key, Value: h.token, TTL: h.locker.opts.TTL, Fence: h.fenceKey, FenceTTL: h.locker.opts.FenceTTL,
	}
}

func (h *hold) renewalMachine() *protocol.ModernRenew {
	return &protocol.ModernRenew{
		Key: h.key, Token: h.token, TTL: h.locker.opts.TTL, Fence: h.fenceKey, FenceTTL: h.locker.opts.FenceTTL,
		Redisson: h.locker.opts.Layout == Redisson,
	}
}

// Renewed implements renewal.Held.
func (h *hold) Renewed(took time.Duration) { h.life.Renewed(took) }

// RenewalFailed implements renewal.Held.
func (h *hold) RenewalFailed(cause error) {
	err := h.life.NotRenewed(cause)
	if hook := h.locker.opts.RenewalFailed; hook != nil {
		hook(h.first, err)
	}
}

// Heard implements renewal.Held.
func (h *hold) Heard(reply protocol.Reply) renewal.Answer { return heard(reply) }

// heard reads the answer of a script, or a command, that says 1 for extended.
func heard(reply protocol.Reply) renewal.Answer {
	switch {
	case reply.Kind == protocol.Integer && reply.Int == 1:
		return renewal.Extended
	case reply.Kind == protocol.Integer || reply.Kind == protocol.Nil:
		return renewal.Gone
	default:
		return renewal.Unclear
	}
}

// Lost implements renewal.Held.
func (h *hold) Lost(why renewal.Loss) { h.life.Lost(why) }

func (h *hold) fail(op string, kind, cause error) *Error { return h.life.Fail(op, kind, cause) }
