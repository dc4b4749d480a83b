package modern

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/leased"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Lock is a lock that we hold, or held: one acquisition. Where an owner in the context acquires again
// what it holds, it gets another Lock of the same hold.
type Lock struct {
	lock leased.Lock
	own  hold // what lock points to for the first Lock of a hold: one allocation for both
}

var _ lockmigrate.Held = (*Lock)(nil)

// hold is what is on the server.
type hold struct {
	leased.Hold
	locker   *Locker
	lock     *Lock
	fenceKey string      // empty without fencing
	stands   atomic.Bool // our entry may still be in the server's queue
	polls    bool        // that entry is one of a waiter that does not listen
	acquire  protocol.ModernAcquire
	giving   protocol.ModernRelease // one release runs at a time
}

// lockOf returns the Lock of an acquisition.
func lockOf(h *leased.Hold, again bool, err error) (*Lock, error) {
	switch {
	case err != nil:
		return nil, err
	case again:
		return &Lock{lock: leased.Lock{Hold: h}}, nil
	default:
		return h.Kind().(*hold).lock, nil
	}
}

// Key returns the lock's key.
func (k *Lock) Key() string { return k.lock.Hold.Key() }

// Token returns what makes the lock ours on the server.
func (k *Lock) Token() string { return k.lock.Hold.Token }

// Fence returns the fencing token: larger than that of every earlier holder of the key, as Options.FenceTTL says. It is 0 without
// Options.FenceTTL.
func (k *Lock) Fence() int64 { return k.lock.Hold.Fence }

// Count returns how many Locks of this hold are not released: more than 1 where an owner in the
// context has acquired again what it holds.
func (k *Lock) Count() int { return k.lock.Hold.Count() }

// Expiry returns until when the lock is certainly ours if no renewal comes through any more. It is a
// deadline of this process's monotonic clock, counted from before the last successful command was sent.
func (k *Lock) Expiry() time.Time { return k.lock.Hold.Life.Expiry() }

// Context returns a context with the values of the one that acquired the lock. It ends when the lock is lost, at the latest at
// Expiry: its cause matches ErrLost. At a release it ends with ErrReleased. A release that failed changes nothing about that.
func (k *Lock) Context() context.Context { return k.lock.Hold.Life.Context() }

// Renew extends the lease to a full TTL from now. ErrLost means that the key is not ours any more, or
// that the reply came after Expiry. After any other error the lock is held as before, until its Expiry.
func (k *Lock) Renew(ctx context.Context) error { return k.lock.Renew(ctx) }

// Release gives the lock back: to the next in line, or by deleting the key, and only while the key holds
// our token. ErrLost means that the lock was lost before. ErrUnknownOutcome means that no reply came: the
// key may stay taken until the time that the error tells. The renewals end with the call in any case.
//
// After another error than ErrLost the Locker tries again until Expiry, with pauses of 50 ms to 1 s: a server
// that refuses now (READONLY, NOPERM, OOM, LOADING) may run it later. Release may be called again too: the first call after the
// lock was given back returns nil. Meanwhile the holder's context still ends at Expiry.
//
// When ctx ends before the reply, or has ended before, the release goes on in the background.
func (k *Lock) Release(ctx context.Context) error { return k.lock.Release(ctx) }

// Renewing implements leased.Kind.
func (h *hold) Renewing() protocol.ModernRenew {
	o := &h.locker.opts
	return protocol.ModernRenew{Key: h.Key(), Token: h.Token, TTL: o.TTL, Fence: h.fenceKey, FenceTTL: o.FenceTTL}
}

// Releasing implements leased.Kind.
func (h *hold) Releasing() protocol.Machine {
	l := h.locker
	h.giving = l.releaseOf(h)
	h.giving.Wanted = h.Handed || l.base.Hot.Hot(h.Key(), l.base.Clock.Now)
	return &h.giving
}

// GivingBack implements leased.Kind.
func (h *hold) GivingBack(queued bool) protocol.Machine {
	m := h.locker.releaseOf(h)
	if queued && m.Queue != "" {
		m.Entry, m.Held = true, false
	}
	return &m
}

// More implements leased.Kind: the server knows one hold.
func (h *hold) More(context.Context) error { return nil }

// Fewer implements leased.Kind.
func (h *hold) Fewer(context.Context) error { return nil }

// releaseOf returns the machine that gives a hold's key back.
func (l *Locker) releaseOf(h *hold) protocol.ModernRelease {
	m := protocol.ModernRelease{
		Key: h.Key(), Token: h.Token, Channel: l.channelOf(h), Claim: l.opts.claim, Share: l.opts.Yield,
		Fence: h.fenceKey, FenceTTL: l.opts.FenceTTL, Entry: h.stands.Load(), Held: true,
	}
	if !l.opts.Unfair {
		names := protocol.CompanionsOf(h.Key()) // one allocation for both
		m.Queue, m.Guard = names.Queue, names.Guard
	}
	return m
}

// channelOf returns the channel that a hold's entry in the queue names.
func (l *Locker) channelOf(h *hold) string {
	if h.polls {
		return protocol.Polls
	}
	return l.channel
}
