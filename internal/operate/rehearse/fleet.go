package rehearse

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
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
	o := &fleet.Old{Pool: p.Pool, Dialect: c.Dialect, Release: c.Release, Lease: c.Lease, Poll: c.Poll, Offset: c.Offset}
	w.Take, w.Dies = o.Acquire, func() bool { return rand.Float64() < c.Dies } // a member has no way here to be killed alone
	if w.through {
		s, err := fleet.StartSidecar(ctx, p.Pool, p.End, sidecar.Options{Namespace: p.Record.Namespace, Name: name(c.Name), Lease: c.Lease}, Prefix+"any")
		if err != nil {
			return nil, err
		}
		o.Pool, o.Offset, w.Close = s.Pool(), 0, s.Close // service and sidecar share a machine and its clock
	}
	return w, nil
}
