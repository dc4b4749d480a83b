package rehearse

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/wire"
	"github.com/lockmigrate/lockmigrate/modern"
)

// Client is one client of the fleet. It takes turns on its keys.
type Client struct {
	Name    string
	Old     bool // it speaks the old scheme; else it is a member of package compat from the beginning
	Dialect *protocol.Dialect
	Release protocol.Release
	Lease   time.Duration
	Poll    time.Duration
	Offset  time.Duration        // by how much an old client's clock is ahead
	Dies    float64              // the chance that it dies in a turn, as by kill -9; it is back at once
	Key     func() string        // of the next turn; one worker at a time asks it and those below
	Hold    func() time.Duration // how long the work takes
	Think   func() time.Duration // between two turns
}

// replyTimeout is when a reply counts as lost.
const replyTimeout = 5 * time.Second

// old is a client of the old scheme: the shipped machines with the code's own habits, on a clock of its own.
type old struct {
	Client
	pool lockmigrate.Pool
}

func (o *old) now() protocol.Instant { return protocol.InstantOf(time.Now()).Add(o.Offset) }

// drive runs a machine on one connection.
func (o *old) drive(ctx context.Context, m protocol.Machine) (protocol.Verdict, error) {
	conn, err := o.pool.GetContext(ctx)
	if err != nil {
		return protocol.Failed, err
	}
	defer conn.Close()
	var reply protocol.Reply
	for {
		switch step := m.Next(o.now(), reply); step.Kind {
		case protocol.Send:
			reply, err = wire.Do(conn, replyTimeout, step.Command)
		case protocol.Sleep:
			if err := lifetime.Sleep(ctx, step.Sleep); err != nil {
				return protocol.Busy, err
			}
			reply = protocol.Reply{Kind: protocol.Woke}
		default:
			return step.Verdict, err
		}
	}
}

func (o *old) acquire(ctx context.Context, key string) (fleet.Held, error) {
	m := &protocol.LegacyAcquire{
		Dialect: o.Dialect, Key: key, Owner: fmt.Sprintf("%08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint64()>>16), Lease: o.Lease, Poll: o.Poll,
		Patience: 1000 * time.Hour, Faithful: true,
	}
	verdict, err := o.drive(ctx, m)
	if verdict == protocol.Acquired {
		return &oldLock{o, m}, nil
	}
	return nil, cmp.Or(err, fmt.Errorf("the key is not to be had: verdict %d", verdict))
}

// oldLock is held for as long as the work takes: nobody tells an old client anything.
type oldLock struct {
	*old
	took *protocol.LegacyAcquire
}

func (l *oldLock) Context() context.Context { return context.Background() }

func (l *oldLock) Release(ctx context.Context) error {
	_, err := l.drive(ctx, &protocol.LegacyRelease{
		Dialect: l.Dialect, Key: l.took.Key, Policy: l.Client.Release, Value: l.took.Value(), Expiry: l.took.Expiry(), Faithful: true,
	})
	return err
}

// worker is a client at work in one act.
type worker struct {
	fleet.Worker
	new       bool // it is a member of the namespace
	through   bool // it is an old client behind a sidecar
	elsewhere bool // it is a member of package handover
}

// worker makes a client one that an act wants.
func (p *player) worker(ctx context.Context, c *Client, isNew bool, a act) (w *worker, err error) {
	w = &worker{Worker: fleet.Worker{Name: c.Name, Key: c.Key, Hold: c.Hold, Think: c.Think}, new: isNew, through: a.behind && !isNew, elsewhere: a.elsewhere}
	w.Member = isNew || w.through
	options := compat.Options{
		Namespace: p.Record.Namespace, Member: c.Name, TTL: c.Lease, Lease: max(c.Lease, p.Record.Shortest),
		ShortestLease: p.Record.Shortest, ClockLag: p.Record.ClockLag, CommandDelay: p.Record.CommandDelay, Yield: p.Record.Yield,
	}
	switch {
	case a.elsewhere:
		w.Take, w.Close, err = fleet.Both(ctx, p.Pool, p.Other, options, modern.Options{TTL: c.Lease},
			handover.Options{Namespace: p.moved.Namespace, Member: c.Name, Lease: 3 * time.Second})
		return w, err
	case isNew:
		locker, err := compat.New(p.Pool, options)
		if err == nil {
			w.Take, w.Close = fleet.Of(locker.Acquire), func() { _ = locker.Close() }
		}
		return w, err
	}
	o := &old{*c, p.Pool}
	w.Take, w.Dies = o.acquire, func() bool { return rand.Float64() < c.Dies } // a member has no way here to be killed alone
	if w.through {
		s, err := fleet.StartSidecar(ctx, p.Pool, p.End, sidecar.Options{Namespace: p.Record.Namespace, Name: name(c.Name), Lease: c.Lease}, Prefix+"any")
		if err != nil {
			return nil, err
		}
		o.pool, o.Offset, w.Close = s.Pool(), 0, s.Close // service and sidecar share a machine and its clock
	}
	return w, nil
}
