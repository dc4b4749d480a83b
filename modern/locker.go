package modern

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/connect"
	"github.com/lockmigrate/lockmigrate/internal/client/leased"
	"github.com/lockmigrate/lockmigrate/internal/client/limits"
	"github.com/lockmigrate/lockmigrate/internal/client/random"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Locker takes locks on one server. A process needs one for each server and set of Options.
type Locker struct {
	base    leased.Locker
	opts    Options
	tokens  random.Source
	channel string      // where this Locker is told of grants
	proven  atomic.Bool // the server runs the scripts of the queue
}

// New returns a Locker over a server. It sends nothing and starts nothing yet.
func New(pool lockmigrate.Pool, opts Options) (*Locker, error) {
	if err := errors.Join(limits.Pool(pool), opts.Validate()); err != nil {
		return nil, fmt.Errorf("modern: %w", err)
	}
	opts = opts.withDefaults()
	l := &Locker{opts: opts, channel: "lockmigrate:wake:" + random.UUID()}
	l.base = leased.Locker{
		Client: connect.New(connect.Options{
			Package: "modern", TTL: opts.TTL, ReplyTimeout: opts.ReplyTimeout, Observer: opts.Observer,
			Waits: true, Channel: l.channel, Poll: opts.Poll,
		}, pool),
		Terms: opts.terms(), Wait: opts.Wait, New: l.newHold, Hot: waiting.NewHeat(),
	}
	return l, nil
}

// Close ends the renewals, closes the Locker's own connections, and returns when nothing of it runs any more. Release locks first:
// those that are still held end with ErrLost and stay on the server until their TTL is over. The error says how many they are.
// Callers who still wait get an error at once and give up their places in the queue. What an attempt may have left on the server
// is told to the observer as ErrUnknownOutcome.
func (l *Locker) Close() error { return l.base.Close() }

// Waiting returns what wakes this process's waiters at present.
func (l *Locker) Waiting() lockmigrate.Mode { return l.base.Hub.Mode() }

// TryAcquire makes one attempt. When another holds the lock, that is one command.
func (l *Locker) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	return l.base.TryAcquire(ctx, key)
}

// Acquire waits until the lock is ours, Options.Wait is over or ctx ends. A connection that breaks, or a server that is away for a
// while, does not end a wait; one that the first attempt meets is its error. A key of another type, such as a lock of another
// format, is ErrForeignFormat: its holder will not hand it to us.
func (l *Locker) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	return l.base.Acquire(ctx, key)
}

// Do holds the lock while it runs work. The context of the work ends when ctx or the lease does. The lock is given back on every
// way out, panics included. The error is work's own; without one, it is that of the release. If the lock was lost, the error
// matches ErrLost whatever work returned: the work may have overlapped another holder's. When ctx is over, Do returns within 250
// ms of the end of work, whatever the server does.
func (l *Locker) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return l.base.Do(ctx, key, work)
}

// newHold prepares an acquisition.
func (l *Locker) newHold(ctx context.Context, key string) *leased.Hold {
	h := &hold{locker: l}
	h.Init(&l.base, h, ctx, key, strconv.FormatInt(l.tokens.Between(protocol.BridgeLow, protocol.BridgeHigh), 10))
	if l.opts.FenceTTL > 0 {
		h.fenceKey = protocol.FenceKey(key)
	}
	return &h.Hold
}

// Attempt implements leased.Kind: one command when it fails.
func (h *hold) Attempt(ctx context.Context) error {
	l, m := h.locker, &h.acquire
	*m = protocol.ModernAcquire{
		Key: h.Key(), Token: h.Token, TTL: l.opts.TTL, Fence: h.fenceKey, FenceTTL: l.opts.FenceTTL,
		Queues: !l.opts.Unfair && !l.proven.Load(),
	}
	answered, err := h.Try(ctx, m)
	// The first attempt asks whether the server runs the scripts of the queue, and where it finds the key free it asks for the
	// right to DEL too. Without it a server that is too old would take part until the first contention, and a user without that
	// right would leave each lock until its TTL ends.
	if answered && m.Queues {
		l.proven.Store(true)
	}
	return err
}

// needsQueue explains the error of a waiter who may not use the queue.
func needsQueue(err error) error {
	var e *lockmigrate.Error
	if errors.As(err, &e) && e.Cause != nil && strings.Contains(e.Cause.Error(), "NOPERM") {
		e.Note = "the queue needs its key and its channel: grant them, or set Options.Unfair"
	}
	return err
}
