package lockers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Old is a lock of the old scheme that is held: by package legacy, and at stage legacy by package compat. It keeps what stands on the key.
type Old struct {
	dialect    *protocol.Dialect
	key, owner string
	lease      time.Duration

	mu sync.Mutex
	// After a renewal without an answer the key has text or pending.
	text, pending         string
	expiry, pendingExpiry protocol.Instant
	onItsWay              bool // a DEL that was sent may run yet
}

// NewOld is what an acquisition has won.
func NewOld(m *protocol.LegacyAcquire) *Old {
	return &Old{dialect: m.Dialect, key: m.Key, owner: m.Owner, lease: m.Lease, text: m.Value(), expiry: m.Expiry()}
}

// Value is what stands on the key, as far as is known.
func (o *Old) Value() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text
}

// Renewal returns the machine that extends the lock.
func (o *Old) Renewal(notAfter protocol.Instant) *protocol.LegacyRenew {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &protocol.LegacyRenew{
		Dialect: o.dialect, Key: o.key, Owner: o.owner, Lease: o.lease, NotAfter: notAfter,
		Value: o.text, ValueExpiry: o.expiry, Pending: o.pending, PendingExpiry: o.pendingExpiry,
	}
}

// Renewed takes over what a renewal that is over has left on the key.
func (o *Old) Renewed(m *protocol.LegacyRenew) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text, o.expiry, o.pending, o.pendingExpiry = m.Value, m.ValueExpiry, m.Pending, m.PendingExpiry
}

// Release returns the machine that gives the lock back.
func (o *Old) Release(policy protocol.Release, again bool) *protocol.LegacyRelease {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &protocol.LegacyRelease{
		Dialect: o.dialect, Key: o.key, Policy: policy, Value: o.text, Pending: o.pending, Expiry: o.expiry, Again: again, OnItsWay: o.onItsWay,
	}
}

// Released takes over what a release that did not succeed has left under way.
func (o *Old) Released(m *protocol.LegacyRelease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.onItsWay = m.OnItsWay
}

// GiveBackOld undoes an acquisition that ended with a verdict after its caller had left, and calls gone when nothing of it is left. It returns
// false where that is not known yet: the key cannot prove whose the value is, or the release was not confirmed, and is tried again for so long.
// The observer is told, as nobody else is there to be told.
func (c *Client) GiveBackOld(m *protocol.LegacyAcquire, o Outcome, now func() time.Time, until time.Time, gone func()) bool {
	cause := o.Err
	switch o.Step.Verdict {
	case protocol.Unsure:
	case protocol.Acquired:
		release := func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 4*c.Lives.ReplyTimeout)
			defer cancel()
			undo := OnClock(NewOld(m).Release(protocol.ReleaseCompare, false), now)
			released, err := c.Servers[0].Runner(m.Dialect).Advance(ctx, undo, protocol.Reply{}, func(Outcome) {})
			given := err == nil && Confirmed(released.Step.Verdict)
			if given {
				gone()
			} else {
				cause = errors.Join(err, released.Err)
			}
			return given
		}
		if release() {
			return true
		}
		defer c.Background.Again(until, release)
	default:
		gone()
		return true
	}
	c.Seen(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "give back", Key: m.Key, Err: &lockmigrate.Error{
		Op: "acquire", Key: m.Key, Kind: lockmigrate.ErrUnknownOutcome, Cause: cause, Until: m.Expiry().Time(),
		Note: "its caller had left; the value on the key may be ours",
	}})
	return false
}

// Confirmed tells that a release has run, or had nothing to remove.
func Confirmed(v protocol.Verdict) bool { return v == protocol.Released || v == protocol.NotOurs }

// Runner is what a dialect's machines run over: the shared connection, or one of the pool where the dialect needs it to itself.
func (s *Server) Runner(d *protocol.Dialect) waiting.Runner {
	if d.Transaction {
		return s.PerAttempt
	}
	return s.Commands
}

// Settled runs a machine, and has settle called with its outcome before anybody has it: the caller, or abandoned where the caller has left.
func Settled(ctx context.Context, over waiting.Runner, m protocol.Machine, abandoned, settle func(Outcome)) (Outcome, error) {
	outcome, err := over.Advance(ctx, m, protocol.Reply{}, func(o Outcome) {
		settle(o)
		abandoned(o)
	})
	if err == nil {
		settle(outcome)
	}
	return outcome, err
}

// OnClock has a machine live by a clock of its own: the machines of the old scheme write its times on keys.
func OnClock(m protocol.Machine, now func() time.Time) protocol.Machine { return onClock{m, now} }

type onClock struct {
	protocol.Machine
	now func() time.Time
}

func (m onClock) Next(_ protocol.Instant, reply protocol.Reply) protocol.Step {
	return m.Machine.Next(protocol.InstantOf(m.now()), reply)
}
