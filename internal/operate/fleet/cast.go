package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
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
	Dies    func() bool          // it dies inside, as by kill -9, and is back at once; nil: never
	Key     func() string        // of the next turn; one worker at a time asks it and those below
	Hold    func() time.Duration // how long the work takes
	Think   func() time.Duration // between two turns
}

// role is what a client is in an act.
type role uint8

const (
	absent    role = iota
	old            // on the server, with the old scheme
	behind         // the same behind a sidecar
	member         // of package compat
	elsewhere      // of package handover
)

// worker makes a client one that an act wants.
func (p *player) worker(ctx context.Context, c *Client, is role) (w *Worker, err error) {
	key := func() string { return p.prefix + c.Key() }
	w = &Worker{Name: c.Name, Member: is > old, Key: key, Hold: c.Hold, Think: c.Think, role: is}
	if is == member || is == elsewhere {
		locker, err := compat.New(p.Pool, compat.Options{
			Namespace: p.Record.Namespace, Member: c.Name, TTL: c.Lease, Lease: max(c.Lease, p.Record.Shortest),
			ShortestLease: p.Record.Shortest, ClockLag: p.Record.ClockLag, CommandDelay: p.Record.CommandDelay, Yield: p.Record.Yield,
		})
		if err != nil {
			return nil, err
		}
		if w.Take, w.Close = Of(locker.Acquire), func() { _ = locker.Close() }; is == elsewhere {
			err = p.handOver(ctx, w, c, locker)
		}
		return w, err
	}
	o := &Old{Pool: p.Pool, Dialect: c.Dialect, Release: c.Release, Lease: c.Lease, Poll: c.Poll, Offset: c.Offset}
	w.Take, w.Dies = o.Acquire, c.Dies // a member has no way here to be killed alone
	if is == behind {
		s, err := StartSidecar(ctx, sidecar.Options{Pool: p.Pool, Namespace: p.Record.Namespace, Name: name(c.Name), Lease: c.Lease}, p.End, key(), sidecar.Listener{})
		if err != nil {
			return nil, err
		}
		p.say("lockmigrate sidecar --namespace %s --name %s --listen %s", p.Record.Namespace, name(c.Name), s.Addr)
		o.Pool, o.Offset, w.Close = s.Pool(), 0, s.Close // service and sidecar share a machine and its clock
	}
	return w, nil
}

// handOver makes a worker with a lock here a member of the handover: it also takes a token on the other server. It returns when it has joined.
func (p *player) handOver(ctx context.Context, w *Worker, c *Client, here compat.Locker) error {
	there, err := modern.New(p.Other, modern.Options{TTL: c.Lease})
	if err != nil {
		w.Close()
		return err
	}
	both, err := handover.New(p.Other, handover.Options{Namespace: p.moved.Namespace, Member: c.Name, Lease: 3 * time.Second, Old: here, New: there})
	if err != nil {
		w.Close()
		return errors.Join(err, there.Close())
	}
	w.Take, w.Close = Of(both.Acquire), func() { _, _, _ = both.Close(), there.Close(), here.Close() }
	if err = both.Ready(ctx); err != nil {
		w.Close()
	}
	return err
}
