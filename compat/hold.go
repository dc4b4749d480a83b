package compat

import (
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// hold is the way in which a lock was taken, and in which it is therefore renewed and released.
type hold interface {
	value() string
	span() time.Duration  // from one renewal to the end, if none follows
	every() time.Duration // between two renewals
	alone() bool          // its renewal is no matter of one command
	renewal(notAfter protocol.Instant) protocol.Machine
	renewed(m protocol.Machine) // takes over what a machine that renewal returned has left on the key
	release() protocol.Machine  // only one of them is under way
}

// bridgeHold is a lock of the stages Bridge and Modern.
type bridgeHold struct {
	acquire protocol.BridgeAcquire // says what the lock's keys are
	giving  protocol.BridgeRelease // one release runs at a time
	opts    *Options
}

func (h *bridgeHold) value() string            { return h.acquire.Value }
func (h *bridgeHold) span() time.Duration      { return h.opts.TTL }
func (h *bridgeHold) every() time.Duration     { return h.opts.renewEvery }
func (h *bridgeHold) alone() bool              { return false }
func (h *bridgeHold) renewed(protocol.Machine) {}

func (h *bridgeHold) renewal(notAfter protocol.Instant) protocol.Machine {
	a := &h.acquire
	return &protocol.BridgeRenew{
		Key: a.Key, Guard: a.Guard, Fence: a.Fence, FenceTTL: a.FenceTTL,
		Value: a.Value, TTL: a.TTL, NotAfter: notAfter,
	}
}

func (h *bridgeHold) release() protocol.Machine { return h.giveBack() }

func (h *bridgeHold) giveBack() *protocol.BridgeRelease {
	m, a := &h.giving, &h.acquire
	*m = protocol.BridgeRelease{
		Key: a.Key, Guard: a.Guard, Value: a.Value, Yield: a.Yield, Taken: a.Won(),
		Queue: a.Queue, Hand: true, Fence: a.Fence, FenceTTL: a.FenceTTL,
		Leftover: a.Dialect.Leftover(), Breath: a.Dialect.Breath(),
	}
	return m
}

// legacyHold is a lock of stage Legacy. It is given back by compare-and-delete, so that it never
// deletes a successor's key.
type legacyHold struct {
	key, owner string
	opts       *Options

	mu sync.Mutex
	// What stands on the key. After a renewal without an answer it is text or pending.
	text, pending         string
	expiry, pendingExpiry protocol.Instant
}

func (h *legacyHold) alone() bool { return true }
func (h *legacyHold) value() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text
}
func (h *legacyHold) span() time.Duration  { return h.opts.Lease }
func (h *legacyHold) every() time.Duration { return h.opts.Lease / 3 }

func (h *legacyHold) renewal(notAfter protocol.Instant) protocol.Machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &protocol.LegacyRenew{
		Dialect: h.opts.rules, Key: h.key, Owner: h.owner, Lease: h.opts.Lease, NotAfter: notAfter,
		Value: h.text, ValueExpiry: h.expiry, Pending: h.pending, PendingExpiry: h.pendingExpiry,
	}
}

func (h *legacyHold) renewed(m protocol.Machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := m.(*protocol.LegacyRenew)
	h.text, h.expiry, h.pending, h.pendingExpiry = r.Value, r.ValueExpiry, r.Pending, r.PendingExpiry
}

func (h *legacyHold) release() protocol.Machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &protocol.LegacyRelease{
		Dialect: h.opts.rules, Key: h.key, Policy: protocol.ReleaseCompare, Value: h.text, Pending: h.pending, Expiry: h.expiry,
	}
}
