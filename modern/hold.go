package modern

import (
	"sync/atomic"

	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// hold is what is on the server.
type hold struct {
	lockers.Hold
	locker    *locker
	fenceKey  string      // empty without fencing
	entryLeft atomic.Bool // our entry may still be in the server's queue
	polls     bool        // that entry is one of a waiter that does not listen
	acquire   protocol.ModernAcquire
	giving    protocol.ModernRelease // one release runs at a time
}

// Renewing implements lockers.Kind.
func (h *hold) Renewing() protocol.ModernRenew {
	o := &h.locker.opts
	return protocol.ModernRenew{Key: h.Key(), Token: h.Token, TTL: o.TTL, Fence: h.fenceKey, FenceTTL: o.FenceTTL}
}

// Releasing implements lockers.Kind.
func (h *hold) Releasing() protocol.Machine {
	l := h.locker
	h.giving = l.releaseOf(h)
	h.giving.Wanted = h.Handed || l.Contended.Lately(h.Key(), l.Clock.Now)
	return &h.giving
}

// GivingBack implements lockers.Kind.
func (h *hold) GivingBack(queued bool) protocol.Machine {
	m := h.locker.releaseOf(h)
	if queued && m.Queue != "" {
		m.Entry, m.Held = true, false
	}
	return &m
}

// releaseOf returns the machine that gives a hold's key back.
func (l *locker) releaseOf(h *hold) protocol.ModernRelease {
	m := protocol.ModernRelease{
		Key: h.Key(), Token: h.Token, Channel: l.channelOf(h), Claim: l.opts.claim, Share: l.opts.Yield,
		Fence: h.fenceKey, FenceTTL: l.opts.FenceTTL, Entry: h.entryLeft.Load(), Held: true,
	}
	if !l.opts.Unfair {
		names := protocol.CompanionsOf(h.Key()) // one allocation for both
		m.Queue, m.Guard = names.Queue, names.Guard
	}
	return m
}

// channelOf returns the channel that a hold's entry in the queue names.
func (l *locker) channelOf(h *hold) string {
	if h.polls {
		return protocol.Polls
	}
	return l.channel
}
