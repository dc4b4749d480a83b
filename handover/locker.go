package handover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Locker takes both halves, or one of them, as the record says.
type Locker interface {
	lockmigrate.Locker

	// Ready returns nil when the Locker can acquire, as soon as it has joined. It returns ErrStage at once, with the reason, when it never
	// will as things are. When ctx ends first the error matches ErrStage and the context's cause.
	Ready(ctx context.Context) error

	// Stage returns which halves an Acquire would take now, StageOld, StageBoth or StageNew, and the record's epoch. ErrStage says why it
	// would take none.
	Stage() (lockmigrate.Stage, int64, error)
}

type (
	gate   = stages.Gate[struct{}]
	permit = stages.Permit[struct{}]
)

type locker struct {
	opts       Options
	gate       *gate
	member     *stages.Follower[struct{}]
	seen       lockmigrate.Observer
	background driver.Background
	life       context.Context
	stop       context.CancelFunc
	closing    sync.Once
	left       error          // what Close says
	known      *stages.Halves // that this process has, once they have been read; of the goroutine that reports

	mu   sync.Mutex
	held map[*lock]bool
}

// New returns a Locker that joins its namespace in the background. Until it has, Acquire waits, and TryAcquire waits for ReplyTimeout.
// What can only be judged with the record, or with the marks on the servers, is judged then: Ready tells, and so does the first Acquire.
func New(pool lockmigrate.Pool, opts Options) (Locker, error) {
	if err := opts.validate(pool); err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	opts = opts.withDefaults()
	l := &locker{
		opts: opts, gate: stages.NewGate[struct{}](lifetime.ErrClosed), seen: lockers.Observer(opts.Observer),
		held: map[*lock]bool{},
	}
	store := &stages.Store{Pool: pool, Namespace: opts.Namespace, ReplyTimeout: opts.ReplyTimeout}
	ctx, cancel := context.WithCancel(context.Background())
	l.life, l.stop = ctx, cancel
	l.member = &stages.Follower[struct{}]{
		Gate: l.gate, Membership: stages.NewMembership(store, opts.Member), Lease: opts.Lease,
		Under:  func(o stages.Order) (struct{}, time.Duration, error) { return struct{}{}, 0, l.misfit(ctx, o) },
		Obeyed: func(struct{}) {},
		Heard:  func(time.Time, time.Time) {},
		Seen:   l.seen, Says: l.connections(),
	}
	l.background.Go(func() { l.member.Run(ctx) })
	return l, nil
}

// connections has the connections told that the halves are taken over.
func (l *locker) connections() func(info *stages.Info) {
	var over []*lockers.Opened
	for _, locker := range []lockmigrate.Locker{l.opts.Old, l.opts.New} {
		if half := lockers.HalfOf(locker); half != nil {
			over = append(over, half.Announce(l.gate.Tell))
		}
	}
	if c := l.opts.OldConnections; c != nil {
		c.opened.Tell(l.gate.Tell)
		over = append(over, &c.opened)
	}
	return func(info *stages.Info) {
		info.Connections = nil
		for _, o := range over {
			info.Connections = append(info.Connections, o.All()...)
		}
	}
}

// misfit says why this member cannot run a record: it is of another kind, or its halves are not those of this process.
func (l *locker) misfit(ctx context.Context, o stages.Order) error {
	if o.Handover == nil {
		return fmt.Errorf("namespace %s moves from legacy to modern: package compat follows it; a handover's record is made by `lockmigrate stage init --handover`", o.Namespace)
	}
	fresh := l.known == nil
	if fresh {
		ours := &stages.Halves{}
		for _, half := range []struct {
			locker lockmigrate.Locker
			name   string
			is     *stages.Half
		}{{l.opts.Old, l.opts.OldName, &ours.Old}, {l.opts.New, l.opts.NewName, &ours.New}} {
			half.is.Name = nameOf(half.locker, half.name)
			of := lockers.HalfOf(half.locker)
			if of == nil {
				continue
			}
			mark, err := stages.ReadMark(ctx, of.Home(), o.Namespace, l.opts.ReplyTimeout)
			if err != nil {
				return err
			}
			half.is.Mark = mark
		}
		if ours.Old.Mark != "" && ours.Old.Mark == ours.New.Mark && l.opts.NewKey("k") == "k" {
			return errors.New("the halves Old and New are on one server and have one key: New would wait for Old for ever; give Options.NewKey")
		}
		l.known = ours
	}
	if err := o.Handover.Differs(*l.known); err != nil {
		l.known = nil // the mark may be put right
		if !fresh {   // it was: the server came back without a memory, and has another mark. Waiters need not hear of it
			return l.misfit(ctx, o)
		}
		return err
	}
	return nil
}

// Close implements lockmigrate.Locker: what is held is lost to its holders, and given back.
func (l *locker) Close() error {
	l.closing.Do(func() {
		l.stop()
		l.gate.Close()
		l.background.Close() // before what is held: a lock whose release is under way is not lost
		l.mu.Lock()
		held := slices.Collect(maps.Keys(l.held))
		l.mu.Unlock()
		for _, k := range held {
			k.lose(lockmigrate.ReasonClosed, lifetime.ErrClosed)
		}
		l.background.Close()
		l.member.Leave()
		l.left = lockers.StillHeld("handover", len(held))
	})
	return l.left
}

// Ready implements Locker.
func (l *locker) Ready(ctx context.Context) error { return l.gate.Ready(ctx, l.opts.Namespace) }

// Stage implements Locker.
func (l *locker) Stage() (lockmigrate.Stage, int64, error) { return l.gate.Told(l.opts.Namespace) }
