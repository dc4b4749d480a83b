package modern

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/background"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/limits"
	"github.com/lockmigrate/lockmigrate/internal/client/pipeline"
	"github.com/lockmigrate/lockmigrate/internal/client/random"
	"github.com/lockmigrate/lockmigrate/internal/client/renewal"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/topology"
)

// pingIdle is how long a line may be unused before it is asked whether it lives.
const pingIdle = 2 * time.Minute

// Locker takes locks on one server. A process needs one for each server and set of Options.
type Locker struct {
	opts    Options
	id      string // unique to this Locker; in layout Redisson the client's
	channel string // where this Locker is told of grants
	tokens  random.Source
	clock   renewal.Clock
	runner  waiting.Runner
	pool    *driver.Driver
	line    pipeline.Way // nil when every attempt takes a connection from the pool
	renewer *renewal.Renewer
	hub     *waiting.Hub
	native  native
	hot     *waiting.Heat
	threads atomic.Uint64 // layout Redisson: the numbers that stand for threads
	seen    lockmigrate.Observer
	lives   lifetime.Locker

	mu    sync.Mutex
	owned map[ownership]*hold // what owners in contexts hold

	life       context.Context // of waits: ends with errClosed
	end        context.CancelCauseFunc
	background background.Group
	closing    sync.Once
	closed     atomic.Bool
	proven     atomic.Bool // the server runs the scripts of the queue
}

// New returns a Locker over a server. It sends nothing and starts nothing yet.
func New(pool lockmigrate.Pool, opts Options) (*Locker, error) {
	if err := errors.Join(limits.Pool(pool), opts.Validate()); err != nil {
		return nil, fmt.Errorf("modern: %w", err)
	}
	dial := opts.dialer(pool)
	servers, _ := pool.(topology.Servers)
	own := dial != nil || servers != nil // connections outside of the pool
	opts = opts.withDefaults()
	pool = topology.Leaving(pool)
	l := &Locker{opts: opts, clock: renewal.NewClock(), owned: make(map[ownership]*hold), seen: opts.Observer}
	l.hot = waiting.NewHeat()
	l.life, l.end = context.WithCancelCause(context.Background())
	if l.seen == nil {
		l.seen = lockmigrate.ObserverFunc(func(lockmigrate.Event) {})
	}
	var id [16]byte
	l.tokens.Read(id[:])
	l.id = hex.EncodeToString(id[:])
	l.channel = "lockmigrate:wake:" + l.id

	l.pool = &driver.Driver{Pool: pool, Now: l.clock.Time, ReplyTimeout: opts.ReplyTimeout}
	l.runner = l.pool
	var way func(patience time.Duration) pipeline.Way
	if own {
		way = func(patience time.Duration) pipeline.Way {
			return pipeline.Over(servers, pipeline.Options{Dial: dial, Now: l.clock.Now, ReplyTimeout: patience, Ping: pingIdle})
		}
	}
	if own && !opts.Pooled {
		l.line = way(opts.ReplyTimeout)
		l.runner = l.line
	}
	l.renewer = renewal.New(renewal.Options{
		Now: l.clock.Now, Lines: []renewal.Batcher{l.renewals(pool, way)}, ReplyTimeout: opts.ReplyTimeout,
	})
	l.lives = lifetime.Locker{
		Now: l.clock.Now, At: l.clock.At, Seen: l.seen, Watch: l.renewer, Background: &l.background, ReplyTimeout: opts.ReplyTimeout,
	}
	l.hub = waiting.New(waiting.Options{
		Dial: dial, Servers: servers, Runner: l.runner, Now: l.clock.Now, Channel: l.channel,
		NoTracking: opts.NoTracking, ReplyTimeout: opts.ReplyTimeout, Poll: opts.Poll,
		Changed: func(m waiting.Mode, why error) {
			l.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventMode, Note: m.String(), Err: why})
		},
	})
	return l, nil
}

// Close ends the renewals, closes the Locker's own connections, and returns when nothing of it runs any
// more. Locks that are still held end with ErrLost and stay on the server until their TTL is over:
// release them first. Nobody should be waiting by then: a caller who still is gets an error at once, and gives up its
// place in the queue. What an attempt may have left on the server is reported as ErrUnknownOutcome.
func (l *Locker) Close() {
	l.closing.Do(func() {
		time.AfterFunc(l.opts.ReplyTimeout, func() { topology.Leave(l.pool.Pool, errClosed) }) // where a pool is exhausted
		l.closed.Store(true)
		l.end(errClosed)
		l.background.Close() // before the renewer: a lock whose release is under way is not lost
		l.renewer.Close()
		l.hub.Close()
		if l.line != nil {
			l.line.Close()
			l.line.Wait()
		}
		l.pool.Close()
	})
}

// Waiting returns what wakes this process's waiters at present: idle, polling, messages or tracking.
func (l *Locker) Waiting() string { return l.hub.Mode().String() }

// TryAcquire makes one attempt. When another holds the lock, that is one command.
func (l *Locker) TryAcquire(ctx context.Context, key string) (*Lock, error) {
	if again, ok, err := l.reenter(ctx, key); ok {
		return again, err
	}
	start := l.clock.Now()
	k, err := l.attempt(ctx, key)
	return l.acquired(ctx, k, start, false, err)
}

// Acquire waits until the lock is ours, Options.Wait is over or ctx ends. A connection that breaks under a waiter, or a
// server that is away for a while, does not end its wait; one that the first attempt meets is its error. A key of another type, such as
// a lock of another layout, is ErrForeignFormat: whoever holds that will not hand it to us.
func (l *Locker) Acquire(ctx context.Context, key string) (*Lock, error) {
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if l.opts.Wait > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, l.opts.Wait, errWaitOver)
	}
	defer cancel()
	if again, ok, err := l.reenter(bounded, key); ok {
		return again, err
	}
	start := l.clock.Now()
	if l.hub.Waiting(key) == 0 && !l.hot.Hot(key, l.clock.Now) { // else the key is hardly free
		k, err := l.attempt(bounded, key)
		if err == nil || !errors.Is(err, ErrNotAcquired) || bounded.Err() != nil {
			return l.acquired(bounded, k, start, false, err)
		}
	}
	k, err := l.wait(bounded, key)
	return l.acquired(bounded, k, start, true, err)
}

// errWaitOver ends a wait when Options.Wait does.
var errWaitOver = errors.New("Options.Wait is over")

// Do holds the lock while it runs work, whose context ends when ctx or the lease does, and gives the
// lock back on every way out of it, panics included. The error is work's own; without one, it is that of
// the release. If the lock was lost, the error matches ErrLost whatever work returned: the work may have
// overlapped another holder's. When ctx is over, Do returns
// within 250 ms of the end of work, whatever the server does.
func (l *Locker) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	lock, err := l.Acquire(ctx, key)
	if err != nil {
		return err
	}
	return lifetime.Section(ctx, lock, 2*l.opts.ReplyTimeout, work)
}

// refuses tells why nothing can be acquired: for the empty key, which has no companions of its own, and after Close.
func (l *Locker) refuses(key string) error {
	switch {
	case key == "":
		return &Error{Op: "acquire", Key: key, Cause: lifetime.ErrEmptyKey}
	case l.closed.Load():
		return &Error{Op: "acquire", Key: key, Cause: errClosed}
	}
	return nil
}

// attempt is one try: one command when it fails.
func (l *Locker) attempt(ctx context.Context, key string) (*Lock, error) {
	if err := l.refuses(key); err != nil {
		return nil, err
	}
	k := l.newLock(ctx, key)
	if l.opts.Layout == Redisson {
		return k, l.attemptRedisson(ctx, k)
	}
	m := &k.own.acquire
	*m = protocol.ModernAcquire{
		Key: key, Token: k.own.token, TTL: l.opts.TTL, Fence: k.own.fenceKey, FenceTTL: l.opts.FenceTTL,
		Queues: !l.opts.Unfair && !l.proven.Load(),
	}
	outcome, err := l.runner.Advance(ctx, m, protocol.Reply{}, k.own.life.Left())
	if err != nil {
		return nil, l.gaveUp(k, err)
	}
	switch outcome.Step.Verdict {
	case protocol.Acquired:
		l.prove(m)
		k.own.begin(m.Deadline(), m.FenceToken())
		return k, nil
	case protocol.Busy:
		l.prove(m)
		return nil, k.own.fail("acquire", ErrNotAcquired, nil)
	case protocol.Unsure:
		return nil, l.cleanUp(ctx, k, outcome.Err, func() error { return l.giveBack(k, false) })
	default:
		return nil, k.own.fail("acquire", nil, outcome.Err)
	}
}

// prove notes that the server runs the scripts of the queue. The first attempt asks for that, and where it finds the key free it
// asks for the right to DEL too. Without it a server that is too old would take part until the first contention, and a user
// without that right would leave each lock until its TTL ends.
func (l *Locker) prove(m *protocol.ModernAcquire) {
	if m.Queues {
		l.proven.Store(true)
	}
}

// cleanUp gives back what an acquisition without an answer may have taken, on a context of its own, and
// returns the acquisition's error: an unknown outcome if that cannot be confirmed while the caller waits.
func (l *Locker) cleanUp(ctx context.Context, k *Lock, cause error, giveBack func() error) error {
	confirmed := make(chan error, 1)
	if !l.background.Go(func() { confirmed <- giveBack() }) {
		return l.notGivenBack(k, errors.Join(cause, errClosed))
	}
	select {
	case err := <-confirmed:
		if err == nil {
			failed := k.own.fail("acquire", nil, cause)
			failed.Note = "what it may have taken was given back"
			return failed
		}
	case <-ctx.Done():
	}
	return l.unknown(k, cause)
}

// acquired is the last step of every acquisition, for better or worse.
func (l *Locker) acquired(ctx context.Context, k *Lock, start protocol.Instant, queued bool, err error) (*Lock, error) {
	took := l.clock.Now().Sub(start)
	if err == nil && l.opts.Replicas > 0 {
		err = l.replicated(ctx, k)
	}
	if err == nil && l.clock.Now() >= k.own.life.Lease.Until() { // the process was stopped, or the reply took too long
		failed := k.own.fail("acquire", ErrLost, nil)
		failed.Reason, failed.Note = lockmigrate.ReasonDeadline, "the reply came after the TTL"
		err = failed
		l.giveBackLater(k, false)
	}
	if err == nil && l.closed.Load() {
		err = k.own.fail("acquire", nil, errClosed)
		l.giveBackLater(k, false)
	}
	if err != nil {
		kind := lockmigrate.EventFailed
		if errors.Is(err, ErrNotAcquired) {
			kind = lockmigrate.EventWaited
		}
		l.seen.Observe(lockmigrate.Event{Kind: kind, Op: "acquire", Key: keyOf(err), Took: took, Err: err})
		return nil, err
	}
	l.own(ctx, k)
	l.seen.Observe(lockmigrate.Event{
		Kind: lockmigrate.EventAcquired, Op: "acquire", Key: k.own.key, Fence: k.own.fence, Queued: queued, Handed: k.own.handed, Took: took,
	})
	l.renewer.Add(&k.own.life.Lease)
	return k, nil
}

func keyOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Key
	}
	return ""
}

// gaveUp is the error of a caller whose context ended while it tried or waited.
func (l *Locker) gaveUp(k *Lock, cause error) error {
	return k.own.fail("acquire", ErrNotAcquired, cause)
}

// unknown is the error when no reply came to anything that was asked: the token may be on the key, for a
// TTL from when the server runs the command. One reply timeout is allowed for that; a server that was
// frozen for longer and then runs it makes it later.
func (l *Locker) unknown(k *Lock, cause error) error {
	return &Error{
		Op: "acquire", Key: k.own.key, Kind: ErrUnknownOutcome, Cause: cause,
		Until: time.Now().Add(l.opts.ReplyTimeout + l.opts.TTL), Note: "the key may hold our token " + k.own.token,
	}
}

// abandoned is told how an attempt ended whose caller had left: what it got is given back, by token,
// on a context of its own.
func (l *Locker) abandoned(k *Lock, o driver.Outcome) {
	if o.Step.Kind != protocol.Done {
		return
	}
	switch o.Step.Verdict {
	case protocol.Acquired, protocol.Unsure:
		l.giveBack(k, false)
	}
}

// giveBackLater is giveBack for a caller who does not wait for it. A closed Locker has nothing left to do it with: then it
// is reported like one that could not be confirmed.
func (l *Locker) giveBackLater(k *Lock, queued bool) {
	if !l.background.Go(func() { _ = l.giveBack(k, queued) }) {
		_ = l.notGivenBack(k, errClosed)
	}
}

var errClosed = lifetime.ErrClosed

// giveBack removes the token from the key, and from the key's queue if it may stand there. What cannot
// be confirmed is reported to the observer as an unknown outcome.
func (l *Locker) giveBack(k *Lock, queued bool) error {
	if l.opts.Layout == Redisson {
		return l.giveBackRedisson(k)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*l.opts.ReplyTimeout)
	defer cancel()
	m := l.releaseOf(&k.own)
	if queued && m.Queue != "" {
		m.Entry, m.Held = true, false
	}
	outcome, _ := l.runner.Advance(ctx, &m, protocol.Reply{}, func(driver.Outcome) {})
	if v := outcome.Step.Verdict; v == protocol.Released || v == protocol.NotOurs {
		return nil
	}
	return l.notGivenBack(k, outcome.Err)
}

// notGivenBack tells the observer, and returns, that the key may have our token for a TTL yet.
func (l *Locker) notGivenBack(k *Lock, cause error) error {
	err := l.unknown(k, cause)
	l.seen.Observe(lockmigrate.Event{Kind: lockmigrate.EventFailed, Op: "give back", Key: k.own.key, Err: err})
	return err
}

// releaseOf returns the machine that gives a hold's key back.
func (l *Locker) releaseOf(h *hold) protocol.ModernRelease {
	m := protocol.ModernRelease{
		Key: h.key, Token: h.token, Channel: l.channelOf(h), Claim: l.opts.Claim, Share: l.opts.Share,
		Fence: h.fenceKey, FenceTTL: l.opts.FenceTTL, Entry: h.stands.Load(), Held: true,
	}
	if !l.opts.Unfair {
		m.Queue, m.Guard = protocol.QueueKey(h.key), protocol.GuardKey(h.key)
	}
	return m
}

// channelOf returns the channel that a hold's entry in the queue names.
func (l *Locker) channelOf(h *hold) string {
	if h.polls {
		return protocol.Polls
	}
	return l.channel
}

// newToken returns a fresh value for a key.
func (l *Locker) newToken() string {
	switch {
	case l.opts.Layout == Redisson:
		return l.id + ":" + strconv.FormatUint(l.threads.Add(1), 10)
	case l.opts.NewToken != nil:
		return l.opts.NewToken()
	default:
		return token(&l.tokens, l.opts.Token)
	}
}
