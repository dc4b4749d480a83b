package compat

import (
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// hold is the way in which a lock was taken, and in which it is therefore renewed and released.
type hold interface {
	lockKey() string
	value() string
	span() time.Duration  // from one renewal to the end, if none follows
	every() time.Duration // between two renewals
	renewal(notAfter protocol.Instant) protocol.Machine
	renewed(m protocol.Machine) // by a machine that renewal returned
	release() protocol.Machine
}

// bridgeHold is a lock of the stages Bridge and Modern.
type bridgeHold struct {
	key, guard, fence, text string
	courtesy                protocol.Courtesy
	opts                    Options
}

func (h *bridgeHold) lockKey() string          { return h.key }
func (h *bridgeHold) value() string            { return h.text }
func (h *bridgeHold) span() time.Duration      { return h.opts.TTL }
func (h *bridgeHold) every() time.Duration     { return h.opts.RenewEvery }
func (h *bridgeHold) renewed(protocol.Machine) {}

func (h *bridgeHold) renewal(notAfter protocol.Instant) protocol.Machine {
	return &protocol.BridgeRenew{
		Key: h.key, Guard: h.guard, Fence: h.fence, FenceTTL: h.opts.FenceTTL,
		Value: h.text, TTL: h.opts.TTL, NotAfter: notAfter, Courtesy: h.courtesy,
	}
}

func (h *bridgeHold) release() protocol.Machine {
	return &protocol.BridgeRelease{Key: h.key, Guard: h.guard, Value: h.text, Courtesy: h.courtesy}
}

// legacyHold is a lock of stage Legacy. It is given back by compare-and-delete, so that it never
// deletes a successor's key.
type legacyHold struct {
	key, owner, text string
	expiry           protocol.Instant
	opts             Options
}

func (h *legacyHold) lockKey() string      { return h.key }
func (h *legacyHold) value() string        { return h.text }
func (h *legacyHold) span() time.Duration  { return h.opts.Lease }
func (h *legacyHold) every() time.Duration { return h.opts.Lease / 3 }

func (h *legacyHold) renewal(notAfter protocol.Instant) protocol.Machine {
	return &protocol.LegacyRenew{
		Dialect: h.opts.rules(), Key: h.key, Owner: h.owner, Lease: h.opts.Lease, Value: h.text, NotAfter: notAfter,
	}
}

func (h *legacyHold) renewed(m protocol.Machine) {
	r := m.(*protocol.LegacyRenew)
	h.text, h.expiry = r.Written(), r.Expiry()
}

func (h *legacyHold) release() protocol.Machine {
	return &protocol.LegacyRelease{
		Dialect: h.opts.rules(), Key: h.key, Policy: protocol.ReleaseCompare, Value: h.text, Expiry: h.expiry,
	}
}

// shown makes a stored value fit for a message.
func shown(value string) string { return lockmigrate.Quote(value) }
