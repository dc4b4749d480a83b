// Package lockers is what every Locker is made of: the wiring of its connections (Connect), the checks of its options, the
// randomness of its tokens, and a clock that follows the server's. Locker is the one of a token with a TTL on one server, which
// modern and modern/redisson share.
//
// # Connections
//
// Commands and renewals of a server share one pipelined connection, in which a batch of renewals has room of its own. It gives
// a silent connection up after ReplyTimeout. Where that is more than a quarter of the TTL, no time would be left for another
// try: the renewals then have a connection of their own, which is less patient.
package lockers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/waiting"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// pingIdle is how long a pipelined connection may be unused before it is asked whether it lives.
const pingIdle = 2 * time.Minute

// Options of a Client. Channel, Poll and Drift may be zero.
type Options struct {
	Package      string // of the Locker, for errors
	TTL          time.Duration
	ReplyTimeout time.Duration
	Observer     lockmigrate.Observer // nil: none

	Waits bool // callers wait in a queue of the process, and are woken
	// GiveBack is called with a key that was granted to a token of ours whose lock is over: the key's queue went back in time.
	GiveBack func(key, token string)
	Channel  string        // where this process is told of grants; empty: nowhere
	Poll     time.Duration // the longest sleep of a waiter without tracking

	Quorum int           // how many servers decide a renewal; zero: one
	Drift  time.Duration // taken off every deadline

	FenceTTL time.Duration // of the fencing counters; zero: none are kept
}

// patience is how long a renewal waits for its reply: another try must be left.
func (o Options) patience() time.Duration { return min(o.ReplyTimeout, o.TTL/4) }

// Server is one server, or all that are behind one pool.
type Server struct {
	Pool       lockmigrate.Pool   // nobody waits for its connections after Close
	PerAttempt *driver.PerAttempt // over a connection of the pool, for commands that need one to themselves
	Commands   waiting.Runner     // over the pipelined connection
	own        []*driver.Shared
}

// Client is the wiring of one Locker. Connect makes one, Close ends it.
type Client struct {
	Clock      lifetime.Clock // of the deadlines
	Seen       lockmigrate.Observer
	Lives      lifetime.Locker
	Servers    []Server
	Renewer    *lifetime.Renewer
	Hub        *waiting.Hub    // nil unless Options.Waits
	Life       context.Context // of waits: ends with lifetime.ErrClosed
	Background driver.Background

	opened   Opened
	pools    context.Context // of waits for a connection of a pool
	endPools context.CancelCauseFunc
	name     string
	fenceTTL time.Duration
	end      context.CancelCauseFunc
	closing  sync.Once
	left     error
}

// Connect wires a Locker over pools that CheckPool accepts. It sends nothing and starts nothing yet.
func Connect(o Options, pools ...lockmigrate.Pool) *Client {
	c := &Client{Clock: lifetime.NewClock(), Seen: Observer(o.Observer), name: o.Package, fenceTTL: o.FenceTTL}
	c.Life, c.end = context.WithCancelCause(context.Background())
	c.pools, c.endPools = context.WithCancelCause(context.Background())
	var renewals []lifetime.Batcher
	for _, pool := range pools {
		s, batches := c.server(pool, o)
		c.Servers = append(c.Servers, s)
		renewals = append(renewals, batches)
	}
	c.Renewer = lifetime.NewRenewer(lifetime.RenewerOptions{
		Now: c.Clock.Now, Servers: renewals, Quorum: o.Quorum, Drift: o.Drift, ReplyTimeout: o.patience(),
	})
	c.Lives = lifetime.Locker{
		Now: c.Clock.Now, At: c.Clock.At, Seen: c.Seen, Watch: c.Renewer, Background: &c.Background,
		ReplyTimeout: o.ReplyTimeout, Drift: o.Drift,
	}
	if o.Waits {
		c.Hub = waiting.New(waiting.Options{
			Dial: topology.Dialler(pools[0]), Servers: serversOf(pools[0]), Opened: c.asks(o), Runner: c.Servers[0].Commands, Now: c.Clock.Now, Channel: o.Channel,
			ReplyTimeout: o.ReplyTimeout, Poll: o.Poll, GiveBack: o.GiveBack,
			Changed: func(m waiting.Mode, why error) {
				c.Seen(lockmigrate.Event{Kind: lockmigrate.EventMode, Mode: string(m), Err: why})
			},
		})
	}
	return c
}

// server wires one pool.
func (c *Client) server(pool lockmigrate.Pool, o Options) (Server, lifetime.Batcher) {
	dial, servers := topology.Dialler(pool), serversOf(pool)
	pool = topology.Ending(pool, c.pools)
	opened := c.asks(o)
	s := Server{Pool: pool, PerAttempt: &driver.PerAttempt{Pool: pool, Now: c.Clock.Time, ReplyTimeout: o.ReplyTimeout, Opened: opened}}
	patience := o.patience()
	open := func(timeout time.Duration) *driver.Shared {
		conn := driver.NewShared(driver.SharedOptions{Dial: dial, Servers: servers, Now: c.Clock.Now, ReplyTimeout: timeout, Ping: pingIdle,
			Setup: func(_ string, conn redis.Conn) error { opened(conn); return nil }})
		s.own = append(s.own, conn)
		return conn
	}
	commands := open(o.ReplyTimeout)
	s.Commands = commands
	if patience == o.ReplyTimeout {
		return s, commands
	}
	renewals := open(patience)
	return s, renewals
}

// asks has a connection asked who it is.
func (c *Client) asks(o Options) func(redis.Conn) {
	return func(conn redis.Conn) { c.opened.Ask(conn, o.ReplyTimeout) }
}

// Observer returns an observer that may be told: one that does nothing in place of nil.
func Observer(o lockmigrate.Observer) lockmigrate.Observer {
	if o == nil {
		return func(lockmigrate.Event) {}
	}
	return o
}

// serversOf returns the servers of a pool that has several; nil for any other pool.
func serversOf(pool lockmigrate.Pool) topology.Servers {
	if r := topology.RouterOf(pool); r != nil {
		return r
	}
	return nil
}

// Closed tells that Close has been called.
func (c *Client) Closed() bool { return c.Life.Err() != nil }

// Close ends waits, renewals and connections, and returns when nothing runs any more. Who waits for a connection of an exhausted
// pool gets an error after ReplyTimeout. Close's error says how many locks were still held.
func (c *Client) Close() error {
	c.closing.Do(func() {
		time.AfterFunc(c.Lives.ReplyTimeout, func() { c.endPools(lifetime.ErrClosed) }) // where a pool is exhausted
		c.end(lifetime.ErrClosed)
		c.Background.Close() // before the renewer: a lock whose release is under way is not lost
		defer func() {       // an observer that is told of a loss may panic
			for _, s := range c.Servers {
				for _, conn := range s.own {
					conn.Close()
					conn.Wait()
				}
				s.PerAttempt.Close()
			}
		}()
		if c.Hub != nil {
			defer c.Hub.Close()
		}
		c.left = StillHeld(c.name, c.Renewer.Close())
	})
	return c.left
}

// StillHeld is the error of a Close that has found locks held; nil for none.
func StillHeld(name string, locks int) error {
	if locks == 0 {
		return nil
	}
	return fmt.Errorf("%s: closed with locks held: %d; release them first, they stay on the server until their leases end", name, locks)
}

// Ask is over's Advance for somebody who is counted in Background. What goes on after the caller has left is counted there too, until abandoned has
// counted it off.
func (c *Client) Ask(ctx context.Context, over waiting.Runner, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	c.Background.Extend()
	goesOn := false
	defer func() {
		if !goesOn {
			c.Background.End()
		}
	}()
	outcome, err := over.Advance(ctx, m, reply, abandoned)
	goesOn = err != nil && outcome.Step.Verdict != protocol.Failed
	return outcome, err
}

// CheckCall refuses a nil context and the empty key. That is a fault of the calling code, and the observer is not told of it.
func CheckCall(ctx context.Context, key string) error {
	switch {
	case ctx == nil:
		return &lockmigrate.Error{Op: "acquire", Key: key, Cause: lifetime.ErrNoContext}
	case key == "":
		return &lockmigrate.Error{Op: "acquire", Key: key, Cause: lifetime.ErrEmptyKey}
	}
	return nil
}

// Concluded tells the observer how an acquisition ended that began at start. Its lock, if there is one, is to be watched from
// then on.
func (c *Client) Concluded(e lockmigrate.Event, start protocol.Instant) {
	e.Op, e.Took, e.Kind = "acquire", c.Clock.Now().Sub(start), EndOf(e.Err)
	c.Seen(e)
}

// How says in an event how a lock was acquired.
func How(waited, handed bool) string {
	switch {
	case handed:
		return "handed"
	case waited:
		return "wait"
	default:
		return "try"
	}
}

// EndOf is the kind of event that ends an acquisition with an error, or with nil.
func EndOf(err error) lockmigrate.EventKind {
	switch {
	case err == nil:
		return lockmigrate.EventAcquired
	case errors.Is(err, lockmigrate.ErrNotAcquired):
		return lockmigrate.EventWaited
	default:
		return lockmigrate.EventFailed
	}
}
