// Package sidecar locks for one service whose code nobody changes: it says what goes to the server in place of the service's
// commands on the keys of a namespace (protocol.Sidecar, the scripts sidecar_*.lua), and looks after what is held. The
// connections are package proxy's.
//
// A Sidecar is a full member of its namespace. It follows the stage, each of its commands ends with its lease, and it reports the stages
// of what it may hold. Its state is on the server, so one that is started again under the same name goes on where it was.
package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a Sidecar.
type Options struct {
	Pool      lockmigrate.Pool // for the sidecar's own commands, in the database of the service's keys
	Namespace string
	// Name is the service's: no other sidecar has it, and it is the same after a restart. Letters, digits and . _ : - only.
	Name string
	// Lease is for how long a lock lasts whose client wrote no expiry, counted from the last renewal. It is renewed while the service is
	// connected. Default 30 s.
	Lease time.Duration
	// KeepFor is for how long such a lock is renewed once all connections have ended that were open when it was taken. The process
	// that took it may be gone, or only its connections, and work on. Default 0: while the service is connected, and after 10
	// minutes it is told. Where the sidecar or the server ended the connections, or the sidecar is started again, such locks
	// are renewed for KeepFor, or 10 minutes, whether the service is connected or not.
	KeepFor time.Duration
	// MemberLease is how long commands may act after the last report to the namespace. Default 15 s.
	MemberLease time.Duration
	// ReplyTimeout bounds each command of the sidecar itself. Default 2 s.
	ReplyTimeout time.Duration
	// Hold is for how long at most the answer to an attempt waits for the lock to be handed over. It must be well below the
	// socket timeout of the service's client. Default 250 ms; negative: not at all.
	Hold time.Duration
	// Clock is the wall clock of the service's host. Default time.Now: the sidecar runs there too.
	Clock func() time.Time
	// Database is where Pool's connections are. Commands on locks that a client sends in another one are refused. Default 0.
	Database int
	// Old, if set, is the server from which the locks move to Pool's: Namespace is a handover's record, on Pool's server.
	Old lockmigrate.Pool
	// DataOld tells that the service's other keys are still on Old.
	DataOld bool
	Log     *slog.Logger // nil: nowhere
}

// Sidecar translates the commands of one service. Its methods are safe for concurrent use.
type Sidecar struct {
	opts    Options
	source  lockers.Random
	member  *stages.Membership
	order   atomic.Pointer[order]
	clients clients
	counts  counts
	keys    keys
	bodies  bodies
	asking  chan struct{} // a word for each attempt for which the server is being asked
	hears   atomic.Bool   // messages to this sidecar come
	listing chan struct{} // the list of keys has changed
	adopts  chan struct{} // it is to be read again

	news    chan struct{}
	leaving atomic.Bool // it takes no new clients: it ends
	twins   twins

	old        *oldConns
	stripes    [64]sync.Mutex
	fitted     *stages.Halves // of a record: they are those of this process; of the goroutine that reports
	misfit     string         // why it cannot follow the record that it has heard last; of the same
	dialectsMu sync.Mutex
	dialects   []*protocol.Dialect // of the listeners

	waking sync.Mutex
	woken  chan struct{} // closed and replaced when a lock was handed over
	handed time.Time     // when that was last
}

// askAtOnce is for how many attempts that wait the server is asked at once: as many connections are taken. Others wait for their turn.
const askAtOnce = 4

// order is what the namespace says.
type order struct {
	stages.Following
	fleet    *protocol.Dialect
	notAfter protocol.Instant // of this member's commands, on the server's clock
	acting   time.Time        // until when a command of an earlier order may act
}

// New asks the namespace for its record. Run must go on for as long as clients are served.
func New(ctx context.Context, opts Options) (*Sidecar, error) {
	opts.Lease, opts.MemberLease = cmp.Or(opts.Lease, 30*time.Second), cmp.Or(opts.MemberLease, 15*time.Second)
	opts.ReplyTimeout, opts.Hold = cmp.Or(opts.ReplyTimeout, 2*time.Second), cmp.Or(opts.Hold, 250*time.Millisecond)
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	if err := errors.Join(stages.CheckName(opts.Namespace), checkName(opts.Name)); err != nil {
		return nil, err
	}
	for _, d := range []time.Duration{opts.Lease, opts.MemberLease, opts.ReplyTimeout} {
		if d < time.Second {
			return nil, fmt.Errorf("sidecar: Lease, MemberLease and ReplyTimeout are at least a second, not %v", d)
		}
	}
	if opts.KeepFor < 0 {
		return nil, fmt.Errorf("sidecar: KeepFor is 0 or more, not %v", opts.KeepFor)
	}
	store := &stages.Store{Pool: opts.Pool, Namespace: opts.Namespace, ReplyTimeout: opts.ReplyTimeout}
	s := &Sidecar{opts: opts, member: stages.NewMembership(store, memberPrefix+opts.Name), woken: make(chan struct{}), news: make(chan struct{}, 1),
		asking: make(chan struct{}, askAtOnce), listing: make(chan struct{}, 1), adopts: make(chan struct{}, 1), twins: twins{}, old: &oldConns{}}
	s.counts.commands = newCounts()
	s.keys.all, s.keys.changes = map[string]*watched{}, map[string]string{}
	s.clients = clients{open: map[int64]bool{}, newest: before, cut: before, cutAt: time.Now()}
	if opts.Old != nil {
		s.keys.first = stages.Old
		s.old.from(opts.Old, opts.ReplyTimeout)
		s.old.opened.Tell(s.tellNews)
	}
	asked, err := s.member.Hello(ctx)
	if err == nil {
		err = s.fits(ctx, asked)
	}
	if err != nil {
		return nil, fmt.Errorf("sidecar: %w", err)
	}
	fleet := protocol.JedisMS // of a handover's tokens
	if opts.Old == nil {
		if fleet, err = protocol.DialectNamed(asked.Dialect); err != nil {
			return nil, fmt.Errorf("sidecar: namespace %s: %w", opts.Namespace, err)
		}
	}
	s.order.Store(&order{Following: stages.Following{Order: asked}, fleet: fleet, notAfter: protocol.Instant(time.Millisecond)})
	return s, nil
}

// before stands for all connections of other processes of this name.
const before = 1

// clients are the open connections of the service.
type clients struct {
	mu     sync.Mutex
	open   map[int64]bool
	newest int64 // ever
	cut    int64 // that had come last when the sidecar or the server last ended one
	cutAt  time.Time
}

func (c *clients) came(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[id], c.newest = true, max(c.newest, id)
}

// went notes the end of a connection, and whether it was not the client who ended it.
func (c *clients) went(id int64, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id)
	if cut {
		c.cut, c.cutAt = c.newest, time.Now()
	}
}

// followed notes that another process ends connections, whose clients may come here.
func (c *clients) followed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cutAt = time.Now()
}

// cutSince is when the sidecar or the server last ended a connection, and the one that had come last by then; 0 when that was before t.
func (c *clients) cutSince(t time.Time) (newest int64, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cutAt.Before(t) {
		return 0, c.cutAt
	}
	return c.cut, c.cutAt
}

// latest is the number of the connection that came last.
func (c *clients) latest() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// oldest is the number of the open connection that came first.
func (c *clients) oldest() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := int64(math.MaxInt64)
	for id := range c.open {
		first = min(first, id)
	}
	return first
}

// owner is what the server's record of a lock calls this sidecar: another namespace may have one of the same name.
func (s *Sidecar) owner() string { return s.opts.Namespace + "/" + s.opts.Name }

// Leaving tells that this process takes no new clients any more: another one may follow it.
func (s *Sidecar) Leaving() {
	s.leaving.Store(true)
	s.keys.listAll(s)
}

// Beside tells whether another process of this name lives.
func (s *Sidecar) Beside(ctx context.Context) bool {
	view, err := s.member.Store.Show(ctx)
	return err == nil && slices.ContainsFunc(view.Members, func(m stages.Member) bool {
		return m.Lives() && m.ID != s.member.ID && strings.HasPrefix(m.ID, memberPrefix+s.opts.Name+"/")
	})
}

// memberPrefix begins the ids of sidecars among a namespace's members.
const memberPrefix = "sidecar:"

func checkName(name string) error {
	if err := stages.CheckName(name); err != nil {
		return fmt.Errorf("a sidecar's name is up to 100 letters, digits and any of . _ : - (not %q)", name)
	}
	return nil
}

// Stage returns what the service's commands become now, and whether the member's lease lasts: after it all attempts are refused.
func (s *Sidecar) Stage() (stages.Stage, int64, bool) {
	o := s.order.Load()
	return o.Stage, o.Epoch, o.Lives()
}

// Patterns returns the patterns of the namespace's keys.
func (s *Sidecar) Patterns() []string { return s.order.Load().Patterns }

// covers tells whether a key is the namespace's, and no companion of one.
func (o *order) covers(key []byte) bool {
	for _, p := range o.Patterns {
		if servers.Match(p, key) {
			_, _, companion := protocol.Owner(key)
			return !companion
		}
	}
	return false
}

// DialectNone is the name of services that write no expiry: SETNX of a UUID, with an EXPIRE or none.
const DialectNone = "none"

// DialectNamed finds a dialect by its name; nil for DialectNone. It refuses what a sidecar does not translate.
func DialectNamed(name string) (*protocol.Dialect, error) {
	if strings.EqualFold(name, DialectNone) {
		return nil, nil
	}
	d, err := protocol.DialectNamed(name)
	if err == nil && d.Layout == protocol.FSTLong {
		err = fmt.Errorf("dialect %s is binary: a sidecar does not translate it", d.Name)
	}
	return d, err
}

// Rewriter returns what the proxy asks about the clients of one listener. They write a dialect of this name; empty: the namespace's own.
func (s *Sidecar) Rewriter(dialect string) (proxy.Rewriter, error) {
	d, err := DialectNamed(cmp.Or(dialect, s.order.Load().fleet.Name))
	if err != nil {
		return nil, err
	}
	s.dialectsMu.Lock()
	s.dialects = append(s.dialects, d)
	s.dialectsMu.Unlock()
	return &translator{sidecar: s, dialect: d, far: s.source.BridgeValue(cmp.Or(d, protocol.JedisMS))}, nil
}

// rules makes the translation of one listener under an order.
func (o *order) rules(t *translator) protocol.Sidecar {
	lag, delay := cmp.Or(o.ClockLag, stages.DefaultClockLag), cmp.Or(o.CommandDelay, stages.DefaultCommandDelay)
	rules := protocol.Sidecar{Name: t.sidecar.owner(), Dialect: t.dialect, Lease: t.sidecar.opts.Lease, Far: t.far, Alone: true, Grace: lag + delay, Settle: delay}
	if t.sidecar.opts.Old == nil {
		rules.Fleet, rules.Gap = o.fleet, cmp.Or(o.Yield, o.fleet.Poll*6/5)
		rules.Legacy, rules.Alone = o.Stage == stages.Legacy, o.Stage == stages.Modern
	}
	return rules
}
