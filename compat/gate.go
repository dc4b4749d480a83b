package compat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// gate is what stands between a Locker and its stage: every attempt passes it, and it knows of which
// stages something may be held.
//
// Two things make the count trustworthy. The stage of an attempt is chosen and counted in one step, so
// a report never leaves out an attempt that has begun. And an attempt is counted until nothing of it
// can be on the server any more.
type gate struct {
	mu      sync.Mutex
	order   stages.Order
	opts    *Options // as the record makes them; never changed, only replaced
	ready   bool     // an order has come, or the stage is fixed
	fixed   bool
	until   time.Time // the end of the member's lease on the local monotonic clock
	why     error     // what went wrong with the last report
	inUse   [3]int
	changed context.Context // ends, and is replaced, when an order changes what attempts may do
	change  context.CancelFunc
	drained chan struct{} // gets a token when the last use of a stage ends
}

// permit is one attempt's, and then one lock's, right to a stage.
type permit struct {
	gate     *gate
	stage    stages.Stage
	opts     *Options
	notAfter protocol.Instant
	left     atomic.Bool
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
	p.gate, p.stage, p.opts, p.notAfter = g, g.order.Stage, g.opts, g.bound()
	return nil
}

// closed says why no attempt may begin.
func (g *gate) closed() error {
	if g.fixed {
		return nil
	}
	now := time.Now()
	switch {
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
	if g.inUse[p.stage] == 0 && p.stage != g.order.Stage {
		select {
		case g.drained <- struct{}{}:
		default:
		}
	}
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

// report fills in what the member runs and holds.
func (g *gate) report(r *stages.Report) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.Epoch, r.Stage, r.Lowest, r.Highest = -1, -1, -1, -1
	if g.ready && time.Now().Before(g.until) {
		r.Epoch, r.Stage = g.order.Epoch, g.order.Stage
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
	g.order, g.opts, g.until, g.why, g.ready = o, &opts, until, nil, true
	if news || wasClosed {
		g.change()
		g.changed, g.change = context.WithCancel(context.Background())
	}
	return news
}

// failed notes why a report did not succeed. A lease that still lasts goes on lasting, unless the
// record is gone or forbids us: then nothing may be acquired from now on.
func (g *gate) failed(err error, closes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.why = err
	if closes && g.ready {
		g.until = time.Now()
	}
}

// idle tells that nothing of any stage is in use.
func (g *gate) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inUse == [3]int{}
}
