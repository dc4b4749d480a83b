// Package lifetime is the life of a lock that we hold, whatever kind of lock it is: from the moment an acquisition returns it
// until nothing of it is on the server any more.
//
// # The holder is told
//
// A Life is watched from Begin on, by a Renewer. The watch ends in two ways only: the deadline, or the knowledge
// that nothing of ours is on the server. A release does not end it. A release may fail, be refused, stay without a reply, or
// be left by its caller; the lease then rests, which means that nothing renews it and its deadline is watched on. So the
// holder's context always ends, and each lock that the observer was told of ends in exactly one EventReleased or EventLost.
//
// # One command at a time
//
// Renew and Release of one lock do not cross. A command whose caller has left keeps its turn until its reply, or until its
// reply timeouts are over.
//
// # Renewals go together
//
// A Renewer keeps the leases of all locks of a Locker: one goroutine, and one round trip for all that are due. A lease has a
// deadline on the process's own monotonic clock, counted from before the last renewing command that came through was sent. When
// it is there, the lock's owner is told, whatever has become of commands and connections.
//
// # What the caller's code does
//
// An Observer and a pool are called on the goroutine of whoever acquires, renews or releases, and may panic there or end that goroutine.
// So what must happen after such a call is deferred.
package lifetime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// The causes of refusals that all Lockers share.
var (
	ErrClosed    = errors.New("the Locker is closed")
	ErrWaitOver  = errors.New("Options.Wait is over")
	ErrEmptyKey  = errors.New("the key is empty")
	ErrNoContext = errors.New("the context is nil: pass context.Background() where there is no other")
)

// Watch looks after deadlines: a Renewer.
type Watch interface {
	Add(s *Lease)
	Extend(s *Lease, until protocol.Instant) (why Loss, ok bool)
	Rest(s *Lease)
	Remove(s *Lease) bool
}

// Locker is what the locks of one Locker share.
type Locker struct {
	Now          func() protocol.Instant // monotonic
	At           func(t protocol.Instant) time.Time
	Seen         lockmigrate.Observer
	Watch        Watch
	Background   *driver.Background
	ReplyTimeout time.Duration
	Drift        time.Duration // taken off every deadline
	Pause        time.Duration // before a release that failed is tried again; it doubles up to 20 times that; zero: 50 ms
}

// Kind is what differs between kinds of lock. Renew and Release run one command each, as driver.PerAttempt's Advance does: with
// an error beside the verdict Unsure the run goes on in the background, and abandoned is called with its outcome. One of them
// runs at a time.
type Kind interface {
	// Key returns the lock's key.
	Key() string

	// Acquired is told how an acquisition ended whose caller had left, if Left was handed to it.
	Acquired(outcome driver.Outcome)

	Renew(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error)
	Release(ctx context.Context, abandoned func(driver.Outcome)) (driver.Outcome, error)

	// Explain completes the error of a renewal or release by what this kind of lock knows, such as the value behind
	// ReasonDisplaced.
	Explain(e *lockmigrate.Error)

	// Ended is called once, after the holder's context has ended: with the loss, or nil for a release.
	Ended(lost *lockmigrate.Error)

	// Gone is called once, when nothing of ours is on the server any more.
	Gone()
}

// Sole is a Kind whose acquisitions have one Lock each.
type Sole interface {
	Kind
	Token() string
	Fence() int64
	Stage() lockmigrate.Stage
}

// Life is one lock's. Its Kind embeds it, and calls Init and Begin before anything else.
type Life struct {
	Lease  Lease
	locker *Locker
	kind   Kind
	values context.Context
	asked  protocol.Instant     // when the renewal under way began; the turn's
	left   func(driver.Outcome) // outcome, once it is needed: one allocation for all commands

	mu      sync.Mutex
	turn    turn
	sent    uint16        // releases that may have run
	rests   bool          // a release was asked for: nothing renews the lock any more
	behind  bool          // a release goes on behind its caller
	waits   bool          // a release is going to be tried again
	failing bool          // the last caller of Release got an error and may ask again
	pause   time.Duration // before the last release that was tried again
	gone    bool          // nothing of ours is on the server any more
	ended   error         // why the holder's context has ended; nil while it has not
	failed  error         // how the last command failed; nil after one that did not
	ctx     context.Context
	cancel  context.CancelCauseFunc
	lost    func(cause error) // of WhenLost
}

// Init prepares a lock on a key for the acquiring context. The Lease's terms are the owner's to set.
func (l *Life) Init(locker *Locker, kind Kind, values context.Context) {
	l.locker, l.kind, l.values = locker, kind, values
}

// Watched tells the observer of a lock that was acquired, and has its deadline watched. Where tell does not return, nobody gets the
// lock: it is given back.
func (l *Life) Watched(tell func()) {
	told := false
	defer func() {
		l.locker.Watch.Add(&l.Lease)
		if !told {
			_ = l.Release(ended)
		}
	}()
	tell()
	told = true
}

// ended is a context of nobody: a release goes on behind it.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// AsLock returns the Lock of a Life whose Kind is Sole: its holder sees the methods of a lockmigrate.Lock and no others.
func (l *Life) AsLock() lockmigrate.Lock { return (*lock)(l) }

// lock is a Life as its holder sees it.
type lock Life

func (k *lock) Key() string                       { return k.kind.Key() }
func (k *lock) Token() string                     { return k.kind.(Sole).Token() }
func (k *lock) Fence() int64                      { return k.kind.(Sole).Fence() }
func (k *lock) Stage() lockmigrate.Stage          { return k.kind.(Sole).Stage() }
func (k *lock) Expiry() time.Time                 { return (*Life)(k).Expiry() }
func (k *lock) Context() context.Context          { return (*Life)(k).Context() }
func (k *lock) Renew(ctx context.Context) error   { return (*Life)(k).Renew(ctx) }
func (k *lock) Release(ctx context.Context) error { return (*Life)(k).Release(ctx) }

func (k *lock) WhenLost(f func(cause error)) { (*Life)(k).WhenLost(f) }

// Acquired, Ended and Gone are those of a Kind that embeds a Life and has nothing to do then.

func (l *Life) Acquired(driver.Outcome)  {}
func (l *Life) Ended(*lockmigrate.Error) {}
func (l *Life) Gone()                    {}

// Renewal and Heard are those of a Kind whose lease is renewed alone, or by nobody.

func (l *Life) Renewal() protocol.Command   { return protocol.Command{} }
func (l *Life) Heard(protocol.Reply) Answer { return Unclear }

// Left returns the function that is told how a command ended whose caller had left.
func (l *Life) Left() func(driver.Outcome) {
	if l.left == nil {
		l.left = l.outcome
	}
	return l.left
}

// outcome tells the one that the command was for. Only acquisitions have no turn.
func (l *Life) outcome(o driver.Outcome) {
	l.mu.Lock()
	turn := l.turn.of
	l.mu.Unlock()
	if turn == nobody {
		l.kind.Acquired(o)
		return
	}
	defer l.locker.Background.End()
	defer l.unlock()
	if turn == renewing {
		_ = l.renewed(o)
	} else {
		_ = l.released(o)
	}
}

// turn is whose turn it is. It is a mutex whose waiters leave when their contexts end. One goroutine may lock it and another
// unlock it: a command whose caller has left keeps the turn until its reply. Life's mu guards it.
type turn struct {
	freed chan struct{} // closed at the next unlock; nil while nobody waits
	of    purpose
}

type purpose uint8

const (
	nobody purpose = iota
	renewing
	releasing
	retrying // a release that nobody has asked for again
)

func (l *Life) lock(ctx context.Context, of purpose) error {
	for {
		l.mu.Lock()
		if l.turn.of == nobody {
			l.turn.of = of
			l.mu.Unlock()
			return nil
		}
		if l.turn.freed == nil {
			l.turn.freed = make(chan struct{})
		}
		freed := l.turn.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *Life) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn.of = nobody
	if l.turn.freed != nil {
		close(l.turn.freed)
		l.turn.freed = nil
	}
}

// Expiry returns the deadline.
func (l *Life) Expiry() time.Time { return l.locker.At(l.Lease.Until()) }

// Context returns the holder's context, which is made for the first who asks.
func (l *Life) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		// The holder's context keeps the caller's values; its end is the lease's, not that of the wait.
		l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(l.values))
		if l.ended != nil {
			l.cancel(l.why())
		}
	}
	return l.ctx
}

// WhenLost has f called with the loss, at once if the lock is lost already. It costs less than a context: package handover asks for it with every
// lock. The f must not wait for anything.
func (l *Life) WhenLost(f func(cause error)) {
	l.mu.Lock()
	over, others := l.ended, l.lost
	l.lost = f
	if others != nil {
		l.lost = func(cause error) { others(cause); f(cause) }
	}
	l.mu.Unlock()
	if errors.Is(over, lockmigrate.ErrLost) {
		f(over)
	}
}

// Over returns why the lock has ended; nil while it has not.
func (l *Life) Over() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why()
}

// why is Over for those who hold mu.
func (l *Life) why() error {
	if l.ended == error(errGivenBack) {
		return l.Fail("release", lockmigrate.ErrReleased, nil)
	}
	return l.ended
}

// handBack ends the turn of a command, and counts it off in background, unless the command goes on without its caller.
func (l *Life) handBack(goesOn *bool) {
	if !*goesOn {
		l.unlock()
		l.locker.Background.End()
	}
}

// orLost returns the loss of a lock that is lost, which a command that failed must not hide; otherwise e.
func (l *Life) orLost(e *lockmigrate.Error) error {
	if over := l.Over(); errors.Is(over, lockmigrate.ErrLost) {
		return over
	}
	return e
}

// LoseTo ends the lock because the server said that it is not ours any more: Lost, NotOurs or Displaced.
func (l *Life) LoseTo(v protocol.Verdict, op string) {
	e := l.Fail(op, lockmigrate.ErrLost, nil)
	e.Reason = lockmigrate.ReasonTaken
	switch {
	case v == protocol.Displaced:
		e.Reason = lockmigrate.ReasonDisplaced
		e.Note = "displaced: another client's value stands on the key"
	case op == "release":
		e.Note = "the key was not ours any more when it was released"
	default:
		e.Note = "the key is not ours any more"
	}
	l.kind.Explain(e)
	l.lose(e)
}

// Lost implements Held.
func (l *Life) Lost(why Loss) {
	e := l.Fail("hold", lockmigrate.ErrLost, nil)
	switch why {
	case Deadline:
		e.Reason = lockmigrate.ReasonDeadline
		l.mu.Lock()
		e.Cause = l.failed
		rests := l.rests
		l.mu.Unlock()
		span := l.Lease.Span
		// A lock that was handed over and never renewed had its claim only. Else slow replies make less of a whole span.
		if claim := l.Lease.Until().Sub(l.Lease.Began); claim < span/2 {
			span = claim.Round(time.Millisecond)
		}
		switch {
		case rests:
			e.Note = fmt.Sprintf("no release was confirmed before the deadline of the lease of %v", span)
		case l.Lease.Every > 0:
			e.Note = fmt.Sprintf("no renewal came through for %v", span)
			if asked := l.Lease.asked; asked != 0 {
				e.Note += fmt.Sprintf("; one was sent %v ago, and has had no answer", l.locker.Now().Sub(asked).Round(time.Millisecond))
			}
		default:
			e.Note = fmt.Sprintf("the lease of %v is over", span)
		}
	case Outlived:
		e.Reason = lockmigrate.ReasonMaxHold
		e.Note = fmt.Sprintf("held for longer than MaxHold %v", l.Lease.Max)
	case Taken:
		l.LoseTo(protocol.Lost, "hold")
		return
	default:
		e.Reason = lockmigrate.ReasonClosed
		e.Note = "the Locker was closed; the key stays until its TTL or lease is over"
	}
	l.lose(e)
}

func (l *Life) lose(e *lockmigrate.Error) {
	if !l.end(e) {
		return
	}
	defer l.kind.Ended(e)
	l.observe(lockmigrate.Event{Kind: lockmigrate.EventLost, Op: "hold", Err: e, Note: e.Note})
}

// end ends the holder's context, and tells whether it was this call that did; only the first cause counts.
func (l *Life) end(cause error) bool {
	l.mu.Lock()
	if l.ended != nil {
		l.mu.Unlock()
		return false
	}
	l.ended = cause
	cancel, lost := l.cancel, l.lost
	if cancel != nil {
		cause = l.why()
	}
	l.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
	if lost != nil && errors.Is(cause, lockmigrate.ErrLost) {
		lost(cause)
	}
	return true
}

// note keeps how the last command failed: it is why the deadline comes.
func (l *Life) note(failed error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = failed
}

func (l *Life) observe(e lockmigrate.Event) {
	e.Key = l.kind.Key()
	if e.Kind != lockmigrate.EventRenewed {
		e.Held = l.locker.Now().Sub(l.Lease.Began)
	}
	l.locker.Seen(e)
}

// Fail makes an error about the lock.
func (l *Life) Fail(op string, kind, cause error) *lockmigrate.Error {
	return &lockmigrate.Error{Op: op, Key: l.kind.Key(), Kind: kind, Cause: cause}
}
