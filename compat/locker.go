package compat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Locker takes locks in the stage that stands, whatever it is at the moment. Close leaves the namespace too. Locks that are still
// held then stay on the server until their TTL or lease is over. A stage change has to wait for that.
type Locker interface {
	lockmigrate.Locker

	// Ready returns nil when the Locker can acquire: at once without a Namespace, else as soon as it has joined. It returns
	// ErrStage at once, with the reason, when it never will as things are: no namespace has this name; its dialect is another;
	// its record and the Options do not go together; the user may not read or write it. Call it when the service starts. When
	// ctx ends first the error matches ErrStage and the context's cause.
	Ready(ctx context.Context) error

	// Stage returns the stage that an Acquire would run now, and its epoch, 0 without a Namespace. ErrStage says why none would.
	Stage() (lockmigrate.Stage, int64, error)
}

// locker is the one implementation of Locker.
type locker struct {
	*lockers.Client
	opts        Options // as given, with defaults; what a record changes is in the gate
	gate        *gate
	member      *stages.Follower[*Options] // nil without a Namespace
	serverClock *lockers.ServerClock
	random      lockers.Random
	contended   *waiting.Contended
	channel     string // where this Locker hears that a lock was handed to it
	stop        context.CancelFunc
}

// gate says whether the Locker may act, at which stage, and until when; permit is the right to it.
type (
	gate   = stages.Gate[*Options]
	permit = stages.Permit[*Options]
)

// New returns a Locker over a server. With a Namespace it joins it in the background; until it has,
// Acquire waits and TryAcquire waits for ReplyTimeout. What can only be judged with the namespace's record is
// judged then: Ready tells, and so does the first Acquire.
//
// TryAcquire is one command in the stages Bridge and Modern; after a takeover it takes the time to settle too.
func New(pool lockmigrate.Pool, opts Options) (Locker, error) {
	if err := errors.Join(lockers.CheckPool(pool), opts.Validate()); err != nil {
		return nil, fmt.Errorf("compat: %w", err)
	}
	l := &locker{opts: opts.withDefaults(), gate: stages.NewGate[*Options](errClosed), contended: waiting.NewContended(), channel: "lockmigrate:wake:" + lockers.UUID()}
	l.Client = lockers.Connect(lockers.Options{
		Package: "compat", TTL: l.opts.TTL, ReplyTimeout: l.opts.ReplyTimeout, Observer: opts.Observer,
		Waits: true, Channel: l.channel, Poll: l.opts.poll, GiveBack: l.giveBackOver, FenceTTL: l.opts.FenceTTL,
	}, pool)
	pool = l.Servers[0].Pool
	// The values of stage Legacy are written by the server's clock, so that at least this member's are right.
	l.serverClock = lockers.NewServerClock(pool, l.opts.ReplyTimeout)
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	if opts.Namespace == "" {
		l.gate.Fix(stages.Bridge, &l.opts)
		return l, nil
	}
	store := &stages.Store{Pool: pool, Namespace: opts.Namespace, ReplyTimeout: l.opts.ReplyTimeout}
	l.member = &stages.Follower[*Options]{
		Gate: l.gate, Membership: stages.NewMembership(store, opts.Member), Lease: l.opts.memberLease,
		Under: func(order stages.Order) (*Options, time.Duration, error) {
			under, misfit := opts.under(order)
			if misfit != nil {
				return nil, 0, misfit
			}
			return &under, under.longest(), nil
		},
		Obeyed: func(o *Options) { l.Renewer.Hasten(o.renewEvery) },
		Heard:  l.serverClock.Heard,
		Seen:   l.Seen,
	}
	l.Background.Go(func() { l.member.Run(ctx) })
	return l, nil
}

// Close implements Locker. An attempt that is under way is finished, or undone.
func (l *locker) Close() error {
	l.stop()
	l.gate.Close()
	if l.member != nil {
		defer l.member.Leave()
	}
	return l.Client.Close()
}

// Ready implements Locker.
func (l *locker) Ready(ctx context.Context) error { return l.gate.Ready(ctx, l.opts.Namespace) }

// Stage implements Locker.
func (l *locker) Stage() (lockmigrate.Stage, int64, error) { return l.gate.Told(l.opts.Namespace) }

// TryAcquire implements Locker.
func (l *locker) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	if err := lockers.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	began := l.Clock.Now()
	lock, err := l.tryAcquire(ctx, key)
	return l.acquired(key, lock, began, false, err)
}

func (l *locker) tryAcquire(ctx context.Context, key string) (*lock, error) {
	k := l.newLock(ctx, key)
	if err := l.gate.Wait(ctx, l.opts.Namespace, key, &k.permit, l.opts.ReplyTimeout, false); err != nil {
		return nil, err
	}
	if _, err := l.attempt(ctx, k, l.runner(k.permit.Terms.rules)); err != nil {
		return nil, err
	}
	return k, nil
}

// Acquire implements Locker.
func (l *locker) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	if err := lockers.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	began := l.Clock.Now()
	lock, queued, err := l.acquire(ctx, key)
	return l.acquired(key, lock, began, queued, err)
}

func (l *locker) acquire(ctx context.Context, key string) (lock *lock, queued bool, err error) {
	if l.opts.Wait > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, l.opts.Wait, lifetime.ErrWaitOver)
		defer cancel()
		ctx = bounded
	}
	if l.Hub.Waiting(key) == 0 && !l.contended.Lately(key, l.Clock.Now) { // else the key is hardly free
		if lock, _, err := l.tryOnce(ctx, key, nil); err == nil || !l.worthAnother(ctx, err) {
			return lock, false, over(ctx, err)
		}
	}
	if !l.Background.Begin() { // to the end of the wait: Close finds it over, and its place given up
		return nil, true, failed(key, errClosed)
	}
	defer l.Background.End()
	turn, err := l.Hub.Enter(ctx, key)
	if err != nil {
		return nil, true, notAcquired(key, err)
	}
	// Once the lock is ours, the next one of this process takes its place in the server's queue.
	defer turn.Leave()
	w := &wait{turn: turn}
	defer func() { l.leaveQueue(w) }()
	var met setbacks
	for {
		changed := l.gate.Changed()
		turn.Forget()
		lock, next, err := l.tryOnce(ctx, key, w)
		switch {
		case err == nil:
			return lock, true, nil
		case !l.worthAnother(ctx, err) && (ctx.Err() != nil || !broke(err)):
			return nil, true, met.end(ctx, key, over(ctx, err), nil)
		}
		if next.contended {
			l.contended.Mark(key, l.Clock.Now())
		}
		if next.gap && next.before == 0 && !w.watch.Listened() && turn.Mode() == waiting.Tracking {
			w.watch.Listen() // to the old client that takes the key, and gives it back
			continue
		}
		if cause := l.sleep(ctx, changed, w, met.take(err, next)); cause != nil {
			return nil, true, met.end(ctx, key, err, cause)
		}
	}
}

// wait is one who waits for a key.
type wait struct {
	turn  *waiting.Turn
	watch waiting.Watch
	lock  *lock          // the one whose place in the queue may stand there; nil: none
	woken protocol.Reply // what ended the last sleep
}

// leaveQueue gives the place in the queue up, in the background, and whatever was handed to it meanwhile. A place that
// cannot be given up is passed over by the others.
func (l *locker) leaveQueue(w *wait) {
	if k := w.lock; k != nil {
		w.lock = nil
		l.Background.Fork(func() { l.giveBack(k, l.Clock.Now()) })
	}
}

// acquired tells the observer how an acquisition ended.
func (l *locker) acquired(key string, lock *lock, began protocol.Instant, waited bool, err error) (lockmigrate.Lock, error) {
	e := lockmigrate.Event{Key: key, Err: err}
	if err != nil {
		l.Concluded(e, began)
		return nil, err
	}
	e.Fence, e.How = lock.fence, lockers.How(waited, lock.legacy == nil && lock.acquire.Handed())
	if lock.tookOver {
		e.Note = "taken over: the legacy value on the key had expired"
	}
	lock.Watched(func() { l.Concluded(e, began) })
	return lock.AsLock(), nil
}

// Do implements Locker.
func (l *locker) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return lifetime.Do(ctx, key, l.Acquire, 2*l.opts.ReplyTimeout, work)
}

var errClosed = lifetime.ErrClosed

// tryOnce passes the gate and makes one attempt: a first one, which leaves a free key to those who wait, or
// one of those, which goes over the hub's line when the key is to be watched.
func (l *locker) tryOnce(ctx context.Context, key string, w *wait) (*lock, retryHint, error) {
	var k *lock
	if w != nil && w.lock != nil {
		if k = w.lock; l.gate.Stay(&k.permit) != nil { // nothing that is handed to the place counts any more
			l.leaveQueue(w)
			k = nil
		}
	}
	if k == nil {
		k = l.newLock(ctx, key)
		k.wait, k.patient = w, true
		if err := l.gate.Wait(ctx, l.opts.Namespace, key, &k.permit, l.opts.ReplyTimeout, true); err != nil {
			return nil, retryHint{}, err
		}
	}
	runner := l.runner(k.permit.Terms.rules)
	if w != nil && k.permit.Stage != stages.Legacy {
		runner = w.watch.Over(runner, w.turn)
	}
	next, err := l.attempt(ctx, k, runner)
	if err != nil {
		return nil, next, err
	}
	return k, next, nil
}

// retryHint is when to look at a held key again.
type retryHint struct {
	after time.Duration // negative: unknown
	// pollOnly tells to come neither earlier nor later: clients of stage Legacy keep to the pace of the old
	// ones, or they would take every gap from them.
	pollOnly  bool
	old       bool         // a legacy client has the key
	gap       bool         // the key is left free to legacy clients for so long
	before    int          // how many stand before us in the queue, as far as it matters
	contended bool         // another bridge client has the key or waits for it
	left      *pendingUndo // what the attempt may have left on the server; nil: nothing
}

// sleep sleeps until it is worth to look at the key again.
func (l *locker) sleep(ctx, changed context.Context, w *wait, next retryHint) error {
	d := next.after
	if d < 0 || d > protocol.LongestSleep {
		d = protocol.LongestSleep
	}
	either, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(changed, func() { cancel(stages.ErrChanged) })
	defer stop()
	var err error
	w.woken = protocol.Reply{Kind: protocol.Woke}
	if next.pollOnly {
		err = lifetime.Sleep(either, d)
	} else {
		if w.lock != nil && w.lock.acquire.Channel == protocol.Polls {
			// It may be given the key without a word, also where the hub has come to listen meanwhile, and keeps the others waiting
			// until it looks.
			if d = min(d, l.opts.poll); next.before < waiting.Soon {
				d = min(d, l.opts.poll/10)
			}
		} else if next.old && next.before > 0 {
			d += l.opts.poll / 2 // the first in the queue is to be the first to find it expired
		}
		var event waiting.Event
		event, err = w.watch.Sleep(either, w.turn, next.before, next.old, max(d, time.Millisecond))
		w.woken = event.Reply()
	}
	if errors.Is(err, stages.ErrChanged) {
		return nil
	}
	return err
}

// attempt makes one attempt with a permit, which the lock, or whatever is left of the attempt, keeps. It is counted in
// background to its end, which every wait in it bounds: Close finds the attempt done, or undone.
//
// The attempt ends with its permit left, unless somebody keeps it: the lock, the place in the queue, or the one who gives back. Where the
// caller's code ends the goroutine, or panics, nobody knows what may be left: it is given back.
func (l *locker) attempt(ctx context.Context, k *lock, over waiting.Runner) (retryHint, error) {
	began, p := l.Clock.Now(), &k.permit
	p.Kept = false
	if !l.Background.Begin() {
		p.Leave()
		return retryHint{}, failed(k.key, errClosed)
	}
	defer l.Background.End()
	returned := false
	defer func() {
		switch {
		case p.Kept:
		case returned:
			p.Leave()
		default:
			l.keep(k, began)
		}
	}()
	var next retryHint
	var err error
	if p.Stage == stages.Legacy {
		next, err = l.attemptLegacy(ctx, k, over)
	} else {
		next, err = l.attemptBridge(ctx, k, over)
	}
	returned = true
	return next, err
}

// worthAnother tells whether a failed attempt is worth another one.
func (l *locker) worthAnother(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	return errors.Is(err, lockmigrate.ErrNotAcquired) || errors.Is(err, lockmigrate.ErrForeignFormat) || errors.Is(err, lockmigrate.ErrStage) && !l.gate.Hopeless(err)
}

func notAcquired(key string, cause error) *lockmigrate.Error {
	return &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: cause}
}

// over adds to the answer of an attempt that its caller's context has ended since: that is why no other attempt follows.
func over(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	held := errors.Is(err, lockmigrate.ErrNotAcquired) || errors.Is(err, lockmigrate.ErrForeignFormat)
	if cause == nil || !held || errors.Is(err, cause) {
		return err
	}
	return withCause(err, cause)
}

// withCause adds why a wait ended to why it lasted.
func withCause(err, cause error) error {
	var known *lockmigrate.Error
	if !errors.As(err, &known) {
		return errors.Join(err, cause)
	}
	if errors.Is(known, lockmigrate.ErrNotAcquired) && known.Cause == nil {
		return &lockmigrate.Error{Op: known.Op, Key: known.Key, Kind: lockmigrate.ErrNotAcquired, Cause: cause, Note: known.Note}
	}
	return &lockmigrate.Error{Op: known.Op, Key: known.Key, Kind: lockmigrate.ErrNotAcquired, Cause: errors.Join(cause, known)}
}

func (l *locker) runner(d *protocol.Dialect) waiting.Runner { return l.Servers[0].Runner(d) }

// timed lets the machines of stage Legacy live by the server's clock; the others have none but that of the
// deadlines.
func (l *locker) timed(m protocol.Machine) protocol.Machine {
	switch m.(type) {
	case *protocol.BridgeAcquire, *protocol.BridgeRenew, *protocol.BridgeRelease:
		return m
	default:
		return lockers.OnClock(m, l.serverClock.Now)
	}
}

// advance runs a machine until it sleeps or is done. When ctx ends first it returns at once; the
// exchange that is under way is brought to its end, and then abandoned is told what came out: exactly
// once for each error. It must count itself off in background, which Close waits for. The caller is counted there too.
func (l *locker) advance(ctx context.Context, over waiting.Runner, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	out, err := l.Ask(ctx, over, m, reply, abandoned)
	if err != nil && out.Step.Verdict == protocol.Failed { // nothing is under way
		l.Background.Extend()
		go abandoned(out)
	}
	return out, err
}

// finish runs a machine whatever becomes of the caller; every wait in it is bounded.
func (l *locker) finish(over waiting.Runner, m protocol.Machine) driver.Outcome {
	// The longest run of a machine is four commands, each perhaps on a connection of its own.
	bounded, cancel := context.WithTimeout(context.Background(), 8*l.opts.ReplyTimeout)
	defer cancel()
	out, err := over.Advance(bounded, m, protocol.Reply{}, func(driver.Outcome) {})
	if err != nil {
		return driver.Ended(protocol.Unsure, err)
	}
	return out
}
