package stages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// Gate stands between a Locker and its stage: it says whether a member of a namespace may act, at which stage, and until when. Every attempt passes
// it. T is what attempts need to know of an order.
//
// Two things make the count trustworthy. The stage of an attempt is chosen and counted in one step, so a report never leaves out an attempt
// that has begun. And an attempt is counted until nothing of it can be on the server any more.
type Gate[T any] struct {
	closedBy error // what the attempts of a closed Locker are told

	mu        sync.Mutex
	following Following
	terms     T
	fixed     bool      // no record governs the stage
	lasts     time.Time // the end of the lease of what is held, on the local monotonic clock: it may outlast what may begin
	why       error     // what went wrong with the last report
	hopeless  bool      // waiting does not mend it: see Hopeless
	over      bool      // the Locker is closed
	inUse     [3]int
	acting    int                                    // attempts under way that began under the order that stands
	earlier   int                                    // ... and those that began under an earlier one
	during    map[*Permit[T]]context.CancelCauseFunc // attempts that end with their order
	changed   context.Context                        // ends, and is replaced, when an order changes what attempts may do
	change    context.CancelFunc
	drained   chan struct{} // gets a token when the last use of a stage, or the last attempt of an earlier order, ends
}

// Permit is one attempt's, and then one lock's, right to a stage.
type Permit[T any] struct {
	Stage    Stage
	Terms    T
	NotAfter protocol.Instant // on the server's clock: no command of the attempt may act later; 0 without a record
	Until    time.Time        // the same on the local monotonic clock, or earlier
	Kept     bool             // by somebody who ends it later than the attempt that is under way

	gate   *Gate[T]
	epoch  int64
	left   atomic.Bool
	acting bool // guarded by the gate's mu
}

// NewGate returns a gate that is closed until a Follower has joined, or Fix has set a stage. Attempts of a closed Locker are told closed.
func NewGate[T any](closed error) *Gate[T] {
	g := &Gate[T]{closedBy: closed, drained: make(chan struct{}, 1), during: map[*Permit[T]]context.CancelCauseFunc{}}
	g.changed, g.change = context.WithCancel(context.Background())
	return g
}

// Fix sets a stage that no record governs.
func (g *Gate[T]) Fix(s Stage, terms T) {
	g.following.Stage, g.following.Ready, g.fixed, g.terms = s, true, true, terms
}

// Enter lets an attempt on a key begin, in the stage that stands now: it fills in its permit.
func (g *Gate[T]) Enter(key string, p *Permit[T]) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.closed(); err != nil {
		return err
	}
	o := &g.following
	if !g.fixed && !o.Covers(key) {
		return fmt.Errorf("%w %s: %q", errOtherNamespace, o.Namespace, o.Patterns)
	}
	g.inUse[Number(o.Stage)]++
	g.acting++
	p.acting = true
	p.gate, p.Stage, p.epoch, p.Terms, p.NotAfter, p.Until = g, o.Stage, o.Epoch, g.terms, g.bound(), o.Until
	return nil
}

// Wait is Enter where the gate may be closed for a while: it waits for the next order, for ever if patient; else for a time, and only as long as
// the member has not joined yet. Its error is the attempt's.
func (g *Gate[T]) Wait(ctx context.Context, namespace, key string, p *Permit[T], patience time.Duration, patient bool) error {
	err := g.wait(ctx, key, p, patience, patient)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, g.closedBy):
		return &lockmigrate.Error{Op: "acquire", Key: key, Cause: g.closedBy}
	case ctx.Err() != nil && !g.Hopeless(err): // a cancelled wait, which says why it waited
		why := &lockmigrate.Error{Op: "enter", Key: namespace, Kind: lockmigrate.ErrStage, Cause: err}
		return &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrNotAcquired, Cause: errors.Join(why, context.Cause(ctx))}
	}
	return &lockmigrate.Error{Op: "acquire", Key: key, Kind: lockmigrate.ErrStage, Cause: err}
}

func (g *Gate[T]) wait(ctx context.Context, key string, p *Permit[T], patience time.Duration, patient bool) error {
	err := g.Enter(key, p)
	if err == nil {
		return nil
	}
	if !patient {
		bounded, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		ctx = bounded
	}
	_, err = g.await(ctx, func() (over bool, err error) {
		err = g.Enter(key, p)
		return err == nil || g.Hopeless(err) || !patient && !errors.Is(err, ErrNotJoined), err
	})
	return err
}

// await tries again with each order that changes something, until a try is over. When ctx ends first, the error is what the reports that failed
// meanwhile say.
func (g *Gate[T]) await(ctx context.Context, try func() (over bool, err error)) (over bool, err error) {
	for {
		changed := g.Changed()
		if over, err = try(); over {
			return true, err
		}
		select {
		case <-changed.Done():
		case <-ctx.Done():
			return false, cmp.Or(g.Refusal(), err)
		}
	}
}

// Ready returns nil when attempts may begin, and ErrStage at once when they never will as things are, or when ctx ends first.
func (g *Gate[T]) Ready(ctx context.Context, namespace string) error {
	if ctx == nil {
		return &lockmigrate.Error{Op: "join", Key: namespace, Kind: lockmigrate.ErrStage, Cause: errors.New("the context is nil")}
	}
	over, err := g.await(ctx, func() (over bool, err error) {
		err = g.Refusal()
		return err == nil || g.Hopeless(err), err
	})
	if !over {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		err = &lockmigrate.Error{Op: "join", Key: namespace, Kind: lockmigrate.ErrStage, Cause: err}
	}
	return err
}

// Told is Stage with an error for the Locker's caller.
func (g *Gate[T]) Told(namespace string) (Stage, int64, error) {
	stage, epoch, err := g.Stage()
	if err != nil {
		err = &lockmigrate.Error{Op: "stage", Key: namespace, Kind: lockmigrate.ErrStage, Cause: err}
	}
	return stage, epoch, err
}

// Stay lets a waiter with a place in the queue go on: its permit gets the bound that stands now. A waiter of another
// order has to leave its place.
func (g *Gate[T]) Stay(p *Permit[T]) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.closed(); err != nil {
		return err
	}
	if p.epoch != g.following.Epoch || p.Stage != g.following.Stage {
		return ErrChanged
	}
	p.NotAfter, p.Until = g.bound(), g.following.Until
	return nil
}

// During returns a context that ends, with ErrChanged, when the permit's order is replaced by another, and when the gate is closed for good. Call end
// when the attempt is over, with why it must not go on, or nil.
func (g *Gate[T]) During(ctx context.Context, p *Permit[T]) (attempt context.Context, end func(why error)) {
	attempt, cancel := context.WithCancelCause(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.during[p] = cancel
	g.endOutdated(p, cancel)
	return attempt, func(why error) {
		g.mu.Lock()
		delete(g.during, p)
		g.mu.Unlock()
		cancel(why)
	}
}

// endOutdated ends an attempt of another order than the one that stands. Where the gate is closed, the order that opens it again decides, and after
// Close none does. The caller holds mu.
func (g *Gate[T]) endOutdated(p *Permit[T], cancel context.CancelCauseFunc) {
	switch {
	case g.over:
		cancel(g.closedBy)
	case (p.epoch != g.following.Epoch || p.Stage != g.following.Stage) && g.closed() == nil:
		cancel(ErrChanged)
	}
}

// ErrChanged is a waiter's whose stage is no more.
var ErrChanged = errors.New("the stage has changed")

// closed says why no attempt may begin.
func (g *Gate[T]) closed() error {
	late := time.Since(g.following.Until)
	switch {
	case g.over:
		return g.closedBy
	case g.fixed:
		return nil
	case g.hopeless:
		return &Never{g.why}
	case !g.following.Ready && g.why != nil:
		return fmt.Errorf("the stage is not known yet: %w", g.why)
	case !g.following.Ready:
		return ErrNotJoined
	case late < 0:
		return nil
	case g.why != nil:
		return fmt.Errorf("this member could not report for %v, its lease is over: %w", late.Round(time.Millisecond), g.why)
	default:
		return fmt.Errorf("this member's lease has been over for %v", late.Round(time.Millisecond))
	}
}

var (
	ErrNotJoined      = errors.New("this member has not joined its namespace yet")
	errOtherNamespace = errors.New("the key is not of namespace")
)

// misfit says that the record and the Locker's options do not go together.
type misfit struct{ error }

func (u *misfit) Unwrap() error { return u.error }

// Never is the error of a closed gate that no waiting opens: somebody has to change the options or the record.
// Reports go on, so the Locker works once that is done.
type Never struct{ Cause error }

func (c *Never) Error() string { return c.Cause.Error() }
func (c *Never) Unwrap() error { return c.Cause }

// Hopeless tells that no waiting helps against why an attempt did not pass.
func (g *Gate[T]) Hopeless(err error) bool {
	var never *Never
	return errors.As(err, &never) || errors.Is(err, errOtherNamespace) || errors.Is(err, g.closedBy)
}

// bound returns the last instant of the server's clock at which a command of this member may act.
func (g *Gate[T]) bound() protocol.Instant {
	if g.fixed {
		return 0
	}
	return protocol.InstantOf(g.following.Ends)
}

// Bound is the bound for what does not pass the gate again: renewals.
func (g *Gate[T]) Bound() protocol.Instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bound()
}

// Leave ends a permit: nothing that it allowed is on the server, or will be.
func (p *Permit[T]) Leave() {
	if p.left.Swap(true) {
		return
	}
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	used := Number(p.Stage)
	g.inUse[used]--
	if g.acted(p) || g.inUse[used] == 0 && p.Stage != g.following.Stage {
		g.Tell()
	}
}

// LeaveAt ends a permit at a later time, when something may be on the server until then.
func (p *Permit[T]) LeaveAt(t time.Time) { time.AfterFunc(time.Until(t), p.Leave) }

// Acquired ends a permit's attempt: the lock lasts, and keeps it.
func (p *Permit[T]) Acquired() {
	p.Kept = true
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.acted(p) {
		g.Tell()
	}
}

// Tell has the member report: something has ended that the record may be waiting for.
func (g *Gate[T]) Tell() {
	select {
	case g.drained <- struct{}{}:
	default:
	}
}

// acted ends the attempt of a permit, once, and tells whether it was the last one of an earlier order.
func (g *Gate[T]) acted(p *Permit[T]) bool {
	switch {
	case !p.acting:
		return false
	case p.epoch == g.following.Epoch:
		p.acting = false
		g.acting--
		return false
	}
	p.acting = false
	g.earlier--
	return g.earlier == 0
}

// Changed returns a context that ends when the next order changes something.
func (g *Gate[T]) Changed() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// Stage returns what attempts run now, or why none may begin.
func (g *Gate[T]) Stage() (Stage, int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.following.Stage, g.following.Epoch, g.closed()
}

// Refusal says why no attempt may begin now, nil if one may.
func (g *Gate[T]) Refusal() error {
	_, _, err := g.Stage()
	return err
}

// report fills in what the member runs and holds.
func (g *Gate[T]) report(r *Report) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.following.Says(r, g.earlier > 0)
	r.Lowest, r.Highest = -1, -1
	for s, n := range g.inUse {
		if n > 0 {
			if r.Lowest < 0 {
				r.Lowest = Stage(s)
			}
			r.Highest = Stage(s)
		}
	}
}

// obey takes an order that answers a report.
func (g *Gate[T]) obey(o Order, terms T, until time.Time) (news bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	wasClosed, epoch := g.closed() != nil, g.following.Epoch
	news = g.following.Obey(o, until, g.earlier > 0)
	if epoch != o.Epoch {
		g.earlier, g.acting = g.earlier+g.acting, 0
	}
	g.terms, g.why, g.hopeless, g.lasts = terms, nil, false, until
	if news || wasClosed {
		g.announce()
	}
	return news
}

// extend lets what is held be renewed until the end of a lease that allows nothing new: the member cannot run the
// record any more, and the record still counts what it holds.
func (g *Gate[T]) extend(o Order, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.following.Ready && o.Ends.After(g.following.Ends) {
		g.following.Ends, g.lasts = o.Ends, until
	}
}

// Lasts returns until when what is held may last, if no further report comes through: on the local monotonic clock.
func (g *Gate[T]) Lasts() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lasts
}

// failed notes why a report did not succeed. A lease that still lasts goes on lasting, unless the record is gone or
// does not fit, or of a protocol that this build does not know: then nothing may be acquired from now on. A record that never was there is a misspelt namespace,
// or one that nobody has created, and rights that never were there are missing: waiters get the error at once. What
// was there and is gone may come back.
func (g *Gate[T]) failed(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var wrong *misfit
	ready, gone, unfit := g.following.Ready, errors.Is(err, ErrNoRecord), errors.As(err, &wrong)
	before := g.hopeless
	g.why, g.hopeless = err, unfit || errors.Is(err, ErrNewer) || !ready && (gone || isRefusal(err))
	if gone && !ready {
		g.why = fmt.Errorf("%w; correct Options.Namespace, or create it with `lockmigrate stage init`", err)
	}
	if (Ends(err) || unfit) && ready {
		g.following.End()
	}
	if g.hopeless && !before {
		g.announce()
	}
}

// isRefusal tells that the server answered, and will give the same answer until somebody changes a right, a password
// or a key, or replaces the server.
func isRefusal(err error) bool {
	var refused redis.Error
	signs := []string{"NOPERM", "NOAUTH", "WRONGPASS", "WRONGTYPE", servers.OldReply, "unknown command", "can't run this command", "can't access"}
	return errors.As(err, &refused) && slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(string(refused), sign) })
}

// Close lets nothing begin any more, and wakes everybody who waits.
func (g *Gate[T]) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	g.announce()
}

// announce wakes those who wait for a change.
func (g *Gate[T]) announce() {
	for p, cancel := range g.during {
		g.endOutdated(p, cancel)
	}
	g.change()
	g.changed, g.change = context.WithCancel(context.Background())
}

// idle tells that nothing of any stage is in use.
func (g *Gate[T]) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inUse == [3]int{}
}
