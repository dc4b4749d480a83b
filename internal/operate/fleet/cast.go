package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/modern"
)

// Client is one client of the fleet. It takes turns on its keys as a Worker, with the old scheme or as a member of package compat.
type Client struct {
	Worker
	Old
	Go bool // it is a member from the beginning
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

// cast is what the clients are in an act.
type cast struct {
	share  float64 // of the old clients, those first whose clocks are farthest off
	these  role    // what they are
	others role    // what the other old clients are
	golang role    // and those of Go
}

// role is what a client is in a cast.
func (p *player) role(c *Client, in cast) role {
	switch n := int(float64(len(p.order))*in.share + 0.5); {
	case c.Go:
		return in.golang
	case slices.Contains(p.order[:n], c):
		return in.these
	default:
		return in.others
	}
}

// worker makes a client one that an act wants.
func (p *player) worker(ctx context.Context, c *Client, is role) (*Worker, error) {
	w, o := c.Worker, c.Old
	w.Member, w.role, w.Key = is > old, is, func() string { return p.prefix + c.Key() }
	if is == member || is == elsewhere {
		locker, err := compat.New(p.pool, compat.Options{
			Namespace: p.Record.Namespace, Member: c.Name, TTL: c.Lease, Lease: max(c.Lease, p.Record.Shortest),
			ShortestLease: p.Record.Shortest, ClockLag: p.Record.ClockLag, CommandDelay: p.Record.CommandDelay, Yield: p.Record.Yield,
		})
		if err != nil {
			return nil, err
		}
		w.Take, w.Dies = Of(locker.Acquire), nil // it has no way here to be killed alone
		if w.Close = func() { _ = locker.Close() }; is == elsewhere {
			err = p.handOver(ctx, &w, c, locker)
		}
		return &w, err
	}
	o.Pool, w.Take = p.pool, o.Acquire
	if is == behind {
		s, err := StartSidecar(ctx, sidecar.Options{Pool: p.pool, Namespace: p.Record.Namespace, Name: name(c.Name), Lease: c.Lease}, p.End, w.Key(), sidecar.Listener{})
		if err != nil {
			return nil, err
		}
		p.say("lockmigrate sidecar --namespace %s --name %s --listen %s", p.Record.Namespace, name(c.Name), s.Addr)
		o.Pool, o.Offset, w.Close = s.Pool(), 0, s.Close // service and sidecar share a machine and its clock
	}
	return &w, nil
}

// handOver makes a worker with a lock here a member of the handover: it also takes a token on the other server. It returns when it has joined.
func (p *player) handOver(ctx context.Context, w *Worker, c *Client, here compat.Locker) (err error) {
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	there, err := modern.New(p.other, modern.Options{TTL: c.Lease})
	if err != nil {
		return err
	}
	both, err := handover.New(p.other, handover.Options{Namespace: p.moved.Namespace, Member: c.Name, Lease: 3 * time.Second, Old: here, New: there})
	if err != nil {
		return errors.Join(err, there.Close())
	}
	w.Take, w.Close = Of(both.Acquire), func() { _, _, _ = both.Close(), there.Close(), here.Close() }
	return both.Ready(ctx)
}
