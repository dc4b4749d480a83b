package lockers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Outcome is how a machine's run ended.
type Outcome = driver.Outcome

// Kind is what differs between the kinds of lock, for one acquisition and the hold that it becomes.
type Kind interface {
	// Attempt makes one attempt; without an error, Begin was called.
	Attempt(ctx context.Context) error

	// Wait waits for the key, as the front of those in this process who do; as Attempt.
	Wait(ctx context.Context, turn *waiting.Turn) error

	// Confirm is the last step of an acquisition.
	Confirm(ctx context.Context) error

	// Renewing, Releasing and GivingBack return the machines that extend the lock, release it, and remove what an
	// acquisition may have left. Queued tells that we may stand in a queue on the server.
	Renewing() protocol.ModernRenew
	Releasing() protocol.Machine
	GivingBack(queued bool) protocol.Machine
}

// Hold is what is on the server, or is to be. The lock of each kind embeds it, and calls Init and Begin before anything else.
type Hold struct {
	lifetime.Life
	Token  string
	Fence  int64
	Handed bool // to us, by a release

	locker *Locker
	kind   Kind
	key    string
	owner  ownership // set where an owner holds it
	queued bool      // it stood in the key's queue on the server

	mu    sync.Mutex
	count int    // Locks that are not released
	seen  string // what the key holds in place of our token, if a renewal was told

	first lock // what the acquisition returns: one allocation for both
}

// Init prepares an acquisition.
func (h *Hold) Init(l *Locker, kind Kind, ctx context.Context, key, token string) {
	h.locker, h.kind, h.key, h.Token, h.count = l, kind, key, token, 1
	h.first.hold = h
	h.Life.Init(&l.Lives, h, ctx)
	s := &h.Lease
	s.Owner, s.Span, s.Every, s.Max = h, l.TTL, max(l.RenewEvery, 0), l.MaxHold
}

// Begin starts the hold; the renewer has it only after that.
func (h *Hold) Begin(until protocol.Instant) { h.Lease.Begin(h.locker.Clock.Now(), until) }

// Commands is what the machines of the hold run over.
func (h *Hold) Commands() waiting.Runner { return h.locker.Servers[0].Commands }

// Count returns how many Locks of the hold are not released.
func (h *Hold) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// last counts one Lock off and tells whether it was the last one of the hold.
func (h *Hold) last() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count = max(h.count-1, 0)
	return h.count == 0
}

// Unknown is the error when no reply came to anything that was asked: the token may be on the key, for a
// TTL from when the server runs the command. One reply timeout is allowed for that; a server that was
// frozen for longer and then runs it makes it later.
func (h *Hold) Unknown(cause error) error {
	e := h.Fail("acquire", lockmigrate.ErrUnknownOutcome, cause)
	e.Until, e.Note = time.Now().Add(h.locker.ReplyTimeout+h.locker.TTL), "the key may hold our token "+h.Token
	return e
}

// GiveBack removes the token from the key, and from the key's queue if it may stand there, on a context of its own. What cannot
// be confirmed is reported to the observer as an unknown outcome, and tried again until the TTL is over.
func (h *Hold) GiveBack(queued bool) error {
	confirmed, cause := h.giveBack(queued)
	if confirmed {
		return nil
	}
	h.locker.Background.Again(time.Now().Add(h.locker.ReplyTimeout+h.locker.TTL), func() bool {
		confirmed, _ := h.giveBack(queued)
		return confirmed
	})
	return h.notGivenBack(cause)
}

func (h *Hold) giveBack(queued bool) (confirmed bool, cause error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*h.locker.ReplyTimeout)
	defer cancel()
	outcome, _ := h.Commands().Advance(ctx, h.kind.GivingBack(queued), protocol.Reply{}, func(driver.Outcome) {})
	if confirmed = Confirmed(outcome.Step.Verdict); confirmed {
		h.Gone()
	}
	return confirmed, outcome.Err
}

// notGivenBack tells the observer, and returns, that the key may have our token for a TTL yet.
func (h *Hold) notGivenBack(cause error) error {
	err := h.Unknown(cause)
	h.locker.Seen(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "give back", Key: h.key, Err: err})
	return err
}

// GiveBackLater is GiveBack for a caller who does not wait for it. A closed Locker has nothing left to do it with: then it
// is reported like one that could not be confirmed.
func (h *Hold) GiveBackLater(queued bool) {
	if !h.locker.Background.Go(func() { _ = h.GiveBack(queued) }) {
		_ = h.notGivenBack(lifetime.ErrClosed)
	}
}

// Leave is GiveBack for a waiter, who is counted in Background and does not wait for it.
func (h *Hold) Leave(queued bool) { h.locker.Background.Fork(func() { _ = h.GiveBack(queued) }) }

// CleanUp gives back what an acquisition without an answer may have taken, and returns the acquisition's error: an unknown
// outcome if that cannot be confirmed while the caller waits.
func (h *Hold) CleanUp(ctx context.Context, cause error, queued bool) error {
	confirmed := make(chan error, 1)
	if !h.locker.Background.Go(func() { confirmed <- h.GiveBack(queued) }) {
		return h.notGivenBack(errors.Join(cause, lifetime.ErrClosed))
	}
	select {
	case err := <-confirmed:
		if err == nil {
			failed := h.Fail("acquire", nil, cause)
			failed.Note = "what it may have taken was given back"
			return failed
		}
	case <-ctx.Done():
	}
	return h.Unknown(cause)
}

// abandoned is told how an attempt ended whose caller had left: what it got is given back.
func (h *Hold) abandoned(o driver.Outcome) {
	if o.Step.Kind == protocol.Done && (o.Step.Verdict == protocol.Acquired || o.Step.Verdict == protocol.Unsure) {
		_ = h.GiveBack(false)
	}
}

// Key implements lifetime.Kind.
func (h *Hold) Key() string { return h.key }

// Acquired implements lifetime.Kind.
func (h *Hold) Acquired(o driver.Outcome) { h.abandoned(o) }

// Renew implements lifetime.Kind.
func (h *Hold) Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	m := h.kind.Renewing()
	return Settled(ctx, h.Commands(), &m, abandoned, func(Outcome) { h.sees(m.Seen()) })
}

// Release implements lifetime.Kind.
func (h *Hold) Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	return h.Commands().Advance(ctx, h.kind.Releasing(), protocol.Reply{}, abandoned)
}

func (h *Hold) sees(value string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = value
}

// Explain implements lifetime.Kind: what the key was taken by.
func (h *Hold) Explain(e *lockmigrate.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Reason == lockmigrate.ReasonTaken && h.seen != "" {
		e.Value, e.Note = h.seen, fmt.Sprintf("the key is not ours any more; it holds %.120q", h.seen)
	}
}

// Gone implements lifetime.Kind.
func (h *Hold) Gone() {
	if h.queued {
		h.locker.Hub.Over(h.key, h.Token)
	}
}

// Queues notes that the hold is going to stand in the key's queue on the server.
func (h *Hold) Queues() { h.queued = true }

// Ended implements lifetime.Kind.
func (h *Hold) Ended(*lockmigrate.Error) { h.locker.disown(h) }

// Renewal implements lifetime.Held: the command that the machine begins with.
func (h *Hold) Renewal() protocol.Command {
	m := h.kind.Renewing()
	return m.Next(0, protocol.Reply{}).Command
}

// Heard implements lifetime.Held.
func (h *Hold) Heard(reply protocol.Reply) lifetime.Answer {
	answer := lifetime.Extension(reply)
	if answer == lifetime.Gone {
		h.sees(reply.Text)
	}
	return answer
}

// lock is one acquisition. Where an owner in the context acquires again what it holds, it gets another one of the same hold.
type lock struct {
	hold     *Hold
	released atomic.Bool
}

// The methods of lockmigrate.Lock.

func (k *lock) Key() string              { return k.hold.key }
func (k *lock) Token() string            { return k.hold.Token }
func (k *lock) Fence() int64             { return k.hold.Fence }
func (k *lock) Stage() lockmigrate.Stage { return lockmigrate.StageModern }
func (k *lock) Expiry() time.Time        { return k.hold.Expiry() }
func (k *lock) Context() context.Context { return k.hold.Context() }

// WhenLost is Life's.
func (k *lock) WhenLost(f func(cause error)) { k.hold.WhenLost(f) }

func (k *lock) Renew(ctx context.Context) error {
	if k.released.Load() {
		return k.over("renew")
	}
	return k.hold.Life.Renew(ctx)
}

// Release gives this lock back, and with the last one of the hold the key.
func (k *lock) Release(ctx context.Context) error {
	h := k.hold
	if !k.released.Swap(true) {
		if h.last() {
			return h.Life.Release(ctx)
		}
		return lost(h.Over()) // the work under an inner Lock is told of a loss like that under the outermost
	}
	if h.Count() > 0 { // others of the hold are not released
		return k.over("release")
	}
	return h.Life.Release(ctx)
}

func (k *lock) over(op string) error {
	if over := k.hold.Over(); over != nil {
		return over
	}
	return k.hold.Fail(op, lockmigrate.ErrReleased, nil)
}
