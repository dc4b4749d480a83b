// Package redisson is Redisson's RLock for Go: services in Java and Go exclude and wake each other on the same keys.
//
//	locker, err := redisson.New(pool, modern.Options{})
//	...
//	err = locker.Do(ctx, "orders", func(ctx context.Context) error {
//		return ship(ctx) // ctx ends when the lock is lost
//	})
//
// # Guarantees
//
// They are those of package modern as far as the format allows:
//
// R1. Of all clients on a key one holds it, Java's RLock and ours alike (TestLeasesOfRedissonsFormat in this package; with real
// Redisson in internal/evidence/suites/clients).
//
// R2. The holder's context ends no later than the lease, as G2 of package modern says (internal/evidence/suites/kinds).
//
// R3. A waiter subscribes to RLock's channel. It looks at the key when the holder's TTL is over, and every 30 s.
//
// # Not guaranteed
//
//   - Waiters have no order. One of them may wait for ever while others take turns.
//   - RLock knows no fencing tokens: nothing keeps the writes of an overtaken holder out.
//   - What package modern does not guarantee about failovers, pauses and unknown outcomes.
//
// # Wire format
//
//   - key: a hash with one field, "<client uuid>:<number>", and a TTL. The field's value is 1, the hold count: each hold has a
//     number of its own.
//   - redisson_lock__channel:{key}: a release is announced there.
//
// The lock is reentrant for an owner in the context, see modern.WithOwner. The Locks of one hold are counted here and not on the
// server: a release that arrives late, or twice, could otherwise take away a hold that is still in use.
package redisson

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/modern"
)

func terms(o modern.Options) lockers.Terms {
	return lockers.Terms{TTL: o.TTL, Wait: o.Wait, RenewEvery: o.RenewEvery, MaxHold: o.MaxHold, ReplyTimeout: o.ReplyTimeout, Poll: o.Poll}
}

func validate(o modern.Options) error {
	wrong := terms(o).Validate()
	if o.FenceTTL != 0 || o.Unfair || o.Yield != 0 || o.Replicas != 0 {
		return errors.Join(wrong, errors.New("FenceTTL, Unfair, Yield, Replicas: only package modern has them; leave them zero"))
	}
	return wrong
}

// locker is a lockmigrate.Locker over one server.
type locker struct {
	lockers.Locker
	id      string        // of this client
	threads atomic.Uint64 // the numbers that stand for threads
}

// New returns a Locker over a server. It sends nothing and starts nothing yet. A key of another type is ErrForeignFormat. The zero
// options hold a lock for 30 s and renew it every 10 s, as Redisson does. FenceTTL, Unfair, Yield and Replicas are refused.
func New(pool lockmigrate.Pool, opts modern.Options) (lockmigrate.Locker, error) {
	if err := errors.Join(lockers.CheckPool(pool), validate(opts)); err != nil {
		return nil, fmt.Errorf("redisson: %w", err)
	}
	terms := terms(opts).WithDefaults()
	l := &locker{id: lockers.UUID()}
	l.Locker = lockers.Locker{
		Client: lockers.Connect(lockers.Options{
			Package: "redisson", TTL: terms.TTL, ReplyTimeout: terms.ReplyTimeout, Observer: opts.Observer, Waits: true, Poll: terms.Poll,
		}, pool),
		Terms: terms, New: l.newHold, Contended: waiting.NewContended(),
	}
	return l, nil
}

// hold is what is on the server.
type hold struct {
	lockers.Hold
	locker *locker
}

func (l *locker) newHold(ctx context.Context, key string) *lockers.Hold {
	h := &hold{locker: l}
	h.Init(&l.Locker, h, ctx, key, l.id+":"+strconv.FormatUint(l.threads.Add(1), 10))
	return &h.Hold
}

func (h *hold) taking() *protocol.ModernAcquire {
	return &protocol.ModernAcquire{Key: h.Key(), Token: h.Token, TTL: h.locker.TTL, Redisson: true}
}

func (h *hold) releasing() *protocol.ModernRelease {
	return &protocol.ModernRelease{Key: h.Key(), Token: h.Token, Redisson: true}
}

// Attempt implements lockers.Kind.
func (h *hold) Attempt(ctx context.Context) error {
	_, err := h.Try(ctx, h.taking())
	return err
}

// Wait implements lockers.Kind, as RLock does: subscribe, try, sleep until an announcement or the holder's TTL.
func (h *hold) Wait(ctx context.Context, turn *waiting.Turn) error {
	if err := turn.Subscribe(ctx, protocol.RedissonChannel(h.Key())); err != nil {
		return lockers.Left(h.Key(), err)
	}
	return h.Compete(ctx, turn, h.taking)
}

// Confirm implements lockers.Kind.
func (h *hold) Confirm(context.Context) error { return nil }

// Renewing implements lockers.Kind.
func (h *hold) Renewing() protocol.ModernRenew {
	return protocol.ModernRenew{Key: h.Key(), Token: h.Token, TTL: h.locker.TTL, Redisson: true}
}

// Releasing implements lockers.Kind.
func (h *hold) Releasing() protocol.Machine { return h.releasing() }

// GivingBack implements lockers.Kind.
func (h *hold) GivingBack(bool) protocol.Machine { return h.releasing() }
