package compat

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// gate is what stands between a Locker and its stage: every attempt passes it, and it knows the
// stages that something may be held of.
//
// Two things make the count trustworthy. The stage of an attempt is chosen and counted in one step, so
// a report never leaves out an attempt that has begun. And an attempt is counted until nothing of it
// can be on the server any more.
type gate struct {
	mu       sync.Mutex
	order    stages.Order
	opts     *Options // as the record makes them; never changed, only replaced
	ready    bool     // an order has come, or the stage is fixed
	fixed    bool
	until    time.Time // the end of the member's lease on the local monotonic clock
	why      error     // what went wrong with the last report
	hopeless bool      // waiting does not mend it: see cannotRun
	over     bool      // the Locker is closed
	inUse    [3]int
	acting   int             // attempts under way that began under the order that stands
	earlier  int             // ... and those that began under an earlier one
	before   int64           // the epoch of the earliest of these, or of an order before it
	changed  context.Context // ends, and is replaced, when an order changes what attempts may do
	change   context.CancelFunc
	drained  chan struct{} // gets a token when the last use of a stage, or the last attempt of an earlier order, ends
}

// permit is one attempt's, and then one lock's, right to a stage.
type permit struct {
	gate     *gate
	stage    stages.Stage
	epoch    int64
	opts     *Options
	notAfter protocol.Instant
	until    time.Time // notAfter on the local monotonic clock, or earlier; zero without a namespace
	left     atomic.Bool
	kept     bool // by somebody who ends it later than the attempt that is under way
	acting   bool // guarded by the gate's mu
}

func newGate(opts Options) *gate {
	opts = opts.withDefaults()
	g := &gate{opts: &opts, drained: make(chan struct{}, 1)}
	g.changed, g.change = context.WithCancel(context.Background())
	return g
}

// fix sets a stage that no record governs.
func (g *gate) fix(s stages.Stage) {
	g.order.Stage, g.ready, g.fixed = s, true, true
}

// enter lets an attempt on a key begin, in the stage that stands now: it fills in its permit.
func (g *gate) enter(key string, p *permit) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.closed(); err != nil {
		return err
	}
	if !g.fixed && !g.order.Covers(key) {
		return fmt.Errorf("%w %s: %q", errOtherNamespace, g.order.Namespace, g.order.Patterns)
	}
	g.inUse[g.order.Stage]++
	g.acting++
	p.acting = true
	p.gate, p.stage, p.epoch, p.opts, p.notAfter, p.until = g, g.order.Stage, g.order.Epoch, g.opts, g.bound(), g.until
	return nil
}

// stay lets a waiter with a place in the queue go on: its permit gets the bound that stands now. A waiter of another
// order has to leave its place.
func (g *gate) stay(p *permit) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.closed(); err != nil {
		return err
	}
	if p.epoch != g.order.Epoch || p.stage != g.order.Stage {
		return errChanged
	}
	p.notAfter, p.until = g.bound(), g.until
	return nil
}

// closed says why no attempt may begin.
func (g *gate) closed() error {
	switch {
	case g.over:
		return errClosed
	case g.fixed:
		return nil
	}
	now := time.Now()
	switch {
	case g.hopeless:
		return &cannotRun{g.why}
	case !g.ready && g.why != nil:
		return fmt.Errorf("the stage is not known yet: %w", g.why)
	case !g.ready:
		return errNotJoined
	case now.Before(g.until):
		return nil
	case g.why != nil:
		return fmt.Errorf("this member could not report for %v, its lease is over: %w", now.Sub(g.until).Round(time.Millisecond), g.why)
	default:
		return fmt.Errorf("this member's lease has been over for %v", now.Sub(g.until).Round(time.Millisecond))
	}
}

var (
	errNotJoined      = errors.New("this member has not joined its namespace yet")
	errOtherNamespace = errors.New("the key is not of namespace")
)

// unfit says that the record and the Locker's options do not go together.
type unfit struct{ error }

func (u *unfit) Unwrap() error { return u.error }

// cannotRun is the error of a closed gate that no waiting opens: somebody has to change the options or the record.
// Reports go on, so the Locker works once that is done.
type cannotRun struct{ error }

func (c *cannotRun) Unwrap() error { return c.error }

func isHopeless(err error) bool {
	var c *cannotRun
	return errors.As(err, &c) || errors.Is(err, errOtherNamespace) || errors.Is(err, errClosed)
}

// bound returns the last instant of the server's clock at which a command of this member may act.
func (g *gate) bound() protocol.Instant {
	if g.fixed {
		return 0
	}
	return protocol.InstantOf(g.order.Ends)
}

// boundNow is bound for what does not pass the gate again: renewals.
func (g *gate) boundNow() protocol.Instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bound()
}

// leave ends a permit: nothing that it allowed is on the server, or will be.
func (p *permit) leave() {
	if p.left.Swap(true) {
		return
	}
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inUse[p.stage]--
	if g.acted(p) || g.inUse[p.stage] == 0 && p.stage != g.order.Stage {
		select {
		case g.drained <- struct{}{}:
		default:
		}
	}
}

// acquired ends a permit's attempt: the lock lasts.
func (p *permit) acquired() {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.acted(p) {
		select {
		case g.drained <- struct{}{}:
		default:
		}
	}
}

// acted ends the attempt of a permit, once, and tells whether it was the last one of an earlier order.
func (g *gate) acted(p *permit) bool {
	switch {
	case !p.acting:
		return false
	case p.epoch == g.order.Epoch:
		p.acting = false
		g.acting--
		return false
	}
	p.acting = false
	g.earlier--
	return g.earlier == 0
}

// leaveAt ends a permit at a later time, when something may be on the server until then.
func (p *permit) leaveAt(t time.Time) { time.AfterFunc(time.Until(t), p.leave) }

// wait returns a context that ends when the next order changes something.
func (g *gate) wait() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// stage returns what attempts run now.
func (g *gate) stage() (stages.Stage, int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.order.Stage, g.order.Epoch, g.closed()
}

// whyClosed says why no attempt may begin now, nil if one may.
func (g *gate) whyClosed() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed()
}

// report fills in what the member runs and holds. While an attempt of an earlier order is under way, the member runs that one:
// who waits for the record to be followed waits for the attempt too, which takes keys over by the times of the earlier record.
func (g *gate) report(r *stages.Report) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.Epoch, r.Stage, r.Lowest, r.Highest = -1, -1, -1, -1
	if g.ready && time.Now().Before(g.until) {
		r.Epoch, r.Stage = g.order.Epoch, g.order.Stage
		if g.earlier > 0 {
			r.Epoch = g.before
		}
	}
	for s, n := range g.inUse {
		if n > 0 {
			if r.Lowest < 0 {
				r.Lowest = stages.Stage(s)
			}
			r.Highest = stages.Stage(s)
		}
	}
}

// obey takes an order that answers a report sent at a local time. News tells that the member runs
// something else from now on, which the next report should say soon.
func (g *gate) obey(o stages.Order, opts Options, until time.Time) (news bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	news = !g.ready || g.order.Epoch != o.Epoch || g.order.Stage != o.Stage
	wasClosed := g.closed() != nil
	if g.order.Epoch != o.Epoch {
		if g.earlier == 0 {
			g.before = g.order.Epoch // else attempts of a still earlier one are under way
		}
		g.earlier, g.acting = g.earlier+g.acting, 0
	}
	g.order, g.opts, g.until, g.why, g.ready, g.hopeless = o, &opts, until, nil, true, false
	if news || wasClosed {
		g.announce()
	}
	return news
}

// extend lets what is held be renewed until the end of a lease that allows nothing new: the member cannot run the
// record any more, and the record still counts what it holds.
func (g *gate) extend(o stages.Order) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ready && o.Ends.After(g.order.Ends) {
		g.order.Ends = o.Ends
	}
}

// failed notes why a report did not succeed. A lease that still lasts goes on lasting, unless the record is gone or
// does not fit: then nothing may be acquired from now on. A record that never was there is a misspelt namespace,
// or one that nobody has created, and rights that never were there are missing: waiters get the error at once. What
// was there and is gone may come back.
func (g *gate) failed(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var misfit *unfit
	gone, fits := errors.Is(err, stages.ErrNoRecord) || errors.Is(err, stages.ErrApart), !errors.As(err, &misfit)
	before := g.hopeless
	g.why, g.hopeless = err, !fits || !g.ready && (gone || isRefusal(err))
	if gone && !g.ready {
		g.why = fmt.Errorf("%w; correct Options.Namespace, or create it with `lockmigrate stage init`", err)
	}
	if (gone || !fits) && g.ready {
		if now := time.Now(); now.Before(g.until) {
			g.until = now
		}
	}
	if g.hopeless && !before {
		g.announce()
	}
}

// isRefusal tells that the server answered, and will give the same answer until somebody changes a right, a password
// or a key, or replaces the server.
func isRefusal(err error) bool {
	var refused redis.Error
	if !errors.As(err, &refused) {
		return false
	}
	for _, sign := range []string{"NOPERM", "NOAUTH", "WRONGPASS", "WRONGTYPE", servers.OldReply, "unknown command", "can't run this command", "can't access"} {
		if strings.Contains(string(refused), sign) {
			return true
		}
	}
	return false
}

// close lets nothing begin any more, and wakes everybody who waits.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	g.announce()
}

// announce wakes those who wait for a change.
func (g *gate) announce() {
	g.change()
	g.changed, g.change = context.WithCancel(context.Background())
}

// idle tells that nothing of any stage is in use.
func (g *gate) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inUse == [3]int{}
}
