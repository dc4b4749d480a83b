package modern

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/renewal"
)

// Lock is a lock that we hold, or held: one acquisition. Where an owner in the context acquires again
// what it holds, it gets another Lock of the same hold.
type Lock struct {
	hold     *hold
	released atomic.Bool
	own      hold // what hold points to for the first Lock of a hold: one allocation for both
}

// hold is what is on the server.
type hold struct {
	lease    renewal.Lease
	locker   *Locker
	first    *Lock // for the hooks
	values   context.Context
	key      string
	token    string
	fenceKey string // empty without fencing
	fence    int64
	handed   bool
	stands   atomic.Bool // our entry may still be in the server's queue
	polls    bool        // that entry is one of a waiter that does not listen
	owner    ownership   // set where an owner holds it
	acquire  protocol.ModernAcquire
	giving   protocol.ModernRelease // the first release; a further one has its own

	releasing sync.Mutex // one release at a time

	mu     sync.Mutex
	count  int // Locks that are not released
	ended  error
	asked  bool // a release was sent
	gone   bool // and answered: nothing is on the server any more
	given  bool // giving is in use
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func (l *Locker) newLock(ctx context.Context, key string) *Lock {
	k := &Lock{}
	k.hold = &k.own
	h := &k.own
	h.locker, h.first, h.values, h.key, h.token, h.count = l, k, ctx, key, l.newToken(), 1
	if l.opts.Fencing {
		h.fenceKey = protocol.FenceKey(key)
	}
	l.opts.terms(&h.lease, h)
	return k
}

// begin starts the hold; the renewer has it only after that.
func (h *hold) begin(until protocol.Instant, fence int64) {
	h.lease.Begin(h.locker.clock.Now(), until)
	h.fence = fence
}

// Key returns the lock's key.
func (k *Lock) Key() string { return k.hold.key }

// Token returns what makes the lock ours on the server; in layout Redisson, the hash's field.
func (k *Lock) Token() string { return k.hold.token }

// Fence returns the fencing token: larger than that of every earlier holder of the key. It is 0 without
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
func (k *Lock) Expiry() time.Time {
	return time.Now().Add(k.hold.lease.Until().Sub(k.hold.locker.clock.Now()))
}

// Context returns a context with the values of the one that acquired the lock. It ends when the lock is
// lost, with a cause that matches ErrLost and at the latest at Expiry, or when it is released, with
// ErrReleased.
func (k *Lock) Context() context.Context {
	h := k.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx == nil {
		h.ctx, h.cancel = context.WithCancelCause(context.WithoutCancel(h.values))
		if h.ended != nil {
			h.cancel(h.ended)
		}
	}
	return h.ctx
}

// Renew extends the lease to a full TTL from now. ErrLost means that the key is not ours any more; after
// any other error the lock is held as before, until its Expiry.
func (k *Lock) Renew(ctx context.Context) error {
	h, l := k.hold, k.hold.locker
	if err := h.over(); err != nil {
		return err
	}
	if k.released.Load() {
		return h.fail("renew", ErrReleased, nil)
	}
	start := l.clock.Now()
	m := h.renewalMachine()
	outcome, err := l.runner.Advance(ctx, m, protocol.Reply{}, func(driver.Outcome) {})
	if err != nil {
		outcome.Err = err
	}
	switch outcome.Step.Verdict {
	case protocol.Renewed:
		l.renewer.Extend(&h.lease, m.Deadline())
		h.Renewed(l.clock.Now().Sub(start))
		return nil
	case protocol.Lost:
		l.renewer.Remove(&h.lease)
		h.lost(nil, "the key is not ours any more")
		return h.over()
	case protocol.Unsure:
		return &Error{Op: "renew", Key: h.key, Kind: ErrUnknownOutcome, Cause: outcome.Err, Note: "held until the old expiry"}
	default:
		return h.fail("renew", nil, outcome.Err)
	}
}

// Release gives the lock back: to the next in line, or by deleting the key, and only while the key holds
// our token. ErrLost means that it did not any more. ErrUnknownOutcome means that no reply came: the key
// may stay taken until the time that the error tells. The renewals end with the call in any case, and
// it may be tried again after an error.
//
// When ctx ends before the reply, or has ended before, the release goes on in the background.
func (k *Lock) Release(ctx context.Context) error {
	h := k.hold
	if k.released.Swap(true) && !h.mayTryAgain() {
		if err := h.over(); err != nil {
			return err
		}
		return h.fail("release", ErrReleased, nil)
	}
	if !h.last() {
		return h.locker.releaseOnce(ctx, h)
	}
	return h.release(ctx)
}

// mayTryAgain tells that a release was sent and stayed without an answer.
func (h *hold) mayTryAgain() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked && !h.gone
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

func (h *hold) release(ctx context.Context) error {
	l := h.locker
	l.renewer.Remove(&h.lease)
	l.disown(h)
	h.releasing.Lock()
	defer h.releasing.Unlock()
	h.mu.Lock()
	h.asked = true
	h.mu.Unlock()

	if cause := context.Cause(ctx); cause != nil {
		// The caller will not wait, but a lock must not be kept for its TTL because of that.
		if !l.background.Go(func() {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*l.opts.ReplyTimeout)
			defer cancel()
			_ = h.released(l.runRelease(bounded, h))
		}) {
			return h.fail("release", nil, errors.Join(cause, errClosed))
		}
		err := h.fail("release", nil, cause)
		err.Note = "the release goes on in the background"
		return err
	}
	return h.released(l.runRelease(ctx, h))
}

// runRelease sends the release, over the way that the layout and the server have for it.
func (l *Locker) runRelease(ctx context.Context, h *hold) (driver.Outcome, error) {
	if l.opts.Layout == Redisson {
		return l.runRedissonRelease(ctx, h)
	}
	m := &h.giving
	h.mu.Lock()
	if h.given { // the first run may still be under way
		m = new(protocol.ModernRelease)
	}
	h.given = true
	h.mu.Unlock()
	*m = l.releaseOf(h)
	m.Wanted = h.handed || l.hot.Hot(h.key, l.clock.Now)
	if m.Queue == "" {
		m.Native = l.native.command(l)
	}
	abandoned := func(o driver.Outcome) { _ = h.released(o, nil) }
	outcome, err := l.runner.Advance(ctx, m, protocol.Reply{}, abandoned)
	if err == nil && m.Native != "" && outcome.Step.Verdict == protocol.Failed && l.native.refused(outcome.Err) {
		*m = l.releaseOf(h)
		outcome, err = l.runner.Advance(ctx, m, protocol.Reply{}, abandoned)
	}
	return outcome, err
}

// released ends the hold as far as the verdict allows.
func (h *hold) released(outcome driver.Outcome, cause error) error {
	if cause != nil {
		outcome.Err = cause
	}
	held := h.locker.clock.Now().Sub(h.lease.Began)
	switch outcome.Step.Verdict {
	case protocol.Released:
		h.mu.Lock()
		h.gone = true
		h.mu.Unlock()
		if err := h.over(); err != nil {
			return err // it was lost before: what was left of it is gone now
		}
		h.finish(h.fail("release", ErrReleased, nil))
		h.locker.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventReleased, Op: "release", Key: h.key, Held: held})
		return nil
	case protocol.Kept:
		h.mu.Lock()
		h.gone = true
		h.mu.Unlock()
		h.lost(nil, "the key was not ours any more when it was released")
		return h.over()
	}
	var err *Error
	if outcome.Step.Verdict == protocol.Unsure {
		err = h.fail("release", ErrUnknownOutcome, outcome.Err)
		err.Until = time.Now().Add(max(h.lease.Until().Sub(h.locker.clock.Now()), 0))
	} else {
		err = h.fail("release", nil, outcome.Err)
	}
	h.locker.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "release", Key: h.key, Held: held, Err: err})
	return err
}

// over returns why the hold has ended; nil while it has not.
func (h *hold) over() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended
}

// finish ends the holder's context; only the first cause counts.
func (h *hold) finish(cause error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended != nil {
		return false
	}
	h.ended = cause
	if h.cancel != nil {
		h.cancel(cause)
	}
	return true
}

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
func (h *hold) Renewed(took time.Duration) {
	h.locker.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventRenewed, Op: "renew", Key: h.key, Took: took})
}

// RenewalFailed implements renewal.Held.
func (h *hold) RenewalFailed(cause error) {
	err := h.fail("renew", nil, cause)
	err.Note = "still ours; tried again before the deadline"
	h.locker.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "renew", Key: h.key, Err: err})
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
func (h *hold) Lost(why renewal.Loss) { h.lost(nil, why.String()) }

func (h *hold) lost(cause error, note string) {
	err := h.fail("hold", ErrLost, cause)
	err.Note = note
	if !h.finish(err) {
		return
	}
	h.locker.disown(h)
	h.locker.seen.Observe(lockmigrate.Event{
		Kind: lockmigrate.EventLost, Op: "hold", Key: h.key, Held: h.locker.clock.Now().Sub(h.lease.Began), Err: err, Note: note,
	})
	if hook := h.locker.opts.RenewalFailed; hook != nil {
		hook(h.first, err)
	}
}

func (h *hold) fail(op string, kind, cause error) *Error {
	return &Error{Op: op, Key: h.key, Kind: kind, Cause: cause}
}
