package modern

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// locker is a lockmigrate.Locker over one server.
type locker struct {
	lockers.Locker
	opts    Options
	tokens  lockers.Random
	channel string      // where this Locker is told of grants
	proven  atomic.Bool // the server runs the scripts of the queue
}

// New returns a Locker over a server. A process needs one for each server and set of Options. It sends nothing and starts nothing
// yet. A TryAcquire that finds the lock held is one command. A key of another type, such as a lock of another format, is
// ErrForeignFormat: its holder will not hand it to us.
func New(pool lockmigrate.Pool, opts Options) (lockmigrate.Locker, error) {
	if err := errors.Join(lockers.CheckPool(pool), opts.validate()); err != nil {
		return nil, fmt.Errorf("modern: %w", err)
	}
	opts = opts.withDefaults()
	l := &locker{opts: opts, channel: "lockmigrate:wake:" + lockers.UUID()}
	l.Locker = lockers.Locker{
		Client: lockers.Connect(lockers.Options{
			Package: "modern", TTL: opts.TTL, ReplyTimeout: opts.ReplyTimeout, Observer: opts.Observer,
			Waits: true, Channel: l.channel, Poll: opts.Poll, GiveBack: l.giveBack, FenceTTL: opts.FenceTTL,
		}, pool),
		Terms: opts.terms(), New: l.newHold, Contended: waiting.NewContended(),
	}
	return l, nil
}

// giveBack gives a key back that was granted to a token whose lock is over.
func (l *locker) giveBack(key, token string) {
	h := l.newHold(context.Background(), key)
	h.Token = token
	h.GiveBackLater(false)
}

// WithOwner makes acquisitions with the context reentrant, here and in package modern/redisson: what an owner holds on a Locker, it
// acquires again at once, as another Lock of the same hold. The key is given back with the last of them. Without an owner every
// acquisition stands for itself, and acquiring twice waits for oneself.
//
// The empty id is no owner. Carry an owner no further than the work that may share its locks: two goroutines with one owner do
// not exclude each other.
func WithOwner(ctx context.Context, id string) context.Context { return lockers.WithOwner(ctx, id) }

// newHold prepares an acquisition.
func (l *locker) newHold(ctx context.Context, key string) *lockers.Hold {
	h := &hold{locker: l}
	h.Init(&l.Locker, h, ctx, key, strconv.FormatInt(l.tokens.Between(protocol.BridgeLow, protocol.BridgeHigh), 10))
	if l.opts.FenceTTL > 0 {
		h.fenceKey = protocol.FenceKey(key)
	}
	return &h.Hold
}

// Attempt implements lockers.Kind: one command when it fails.
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
