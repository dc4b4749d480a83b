package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

const slots = 16384

// Table says who serves what.
type Table struct {
	Masters []string       // addresses
	Nodes   []string       // of all servers that may be asked for the next table
	owner   *[slots]uint16 // index in Masters plus one, 0 for nobody; nil: the only master serves all
}

// NewTable returns a table in which no slot is served yet.
func NewTable() *Table { return &Table{owner: new([slots]uint16)} }

// Single returns the table of one master.
func Single(addr string) *Table { return &Table{Masters: []string{addr}} }

// Assign gives a range of slots to a master.
func (t *Table) Assign(from, to int, addr string) {
	i := slices.Index(t.Masters, addr)
	if i < 0 {
		i = len(t.Masters)
		t.Masters = append(t.Masters, addr)
	}
	for s := max(from, 0); s <= min(to, slots-1); s++ {
		t.owner[s] = uint16(i + 1)
	}
}

// Served returns how many slots are.
func (t *Table) Served() (n int) {
	if t.owner == nil {
		return slots
	}
	for _, i := range t.owner {
		if i > 0 {
			n++
		}
	}
	return n
}

// At returns the master of a slot, empty for none.
func (t *Table) At(slot int) string {
	switch {
	case t.owner == nil:
		return t.Masters[0]
	case t.owner[slot] == 0:
		return ""
	default:
		return t.Masters[t.owner[slot]-1]
	}
}

// Options of a Fleet; Find and Dial are required.
type Options struct {
	// Find asks for a new table. Known are the servers of the last one, the stale one last.
	Find func(ctx context.Context, known []string) (*Table, error)
	// Dial connects to one of them.
	Dial func(ctx context.Context, addr string) (redis.Conn, error)

	// Map translates addresses that servers tell. Nil: as they are.
	Map func(addr string) string

	Patience    time.Duration // zero: 20 s; negative: none
	FindTimeout time.Duration // zero: 3 s
	MaxIdle     int           // per server; zero: 8
	MaxActive   int           // per server; zero: no limit
	IdleTimeout time.Duration // zero: 1 min
}

// CheckAddrs wants host:port each.
func CheckAddrs(addrs []string) error {
	for _, a := range addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("address %q: %w", a, err)
		}
	}
	return nil
}

// Plain dials servers without TLS and without a password.
func Plain(timeout time.Duration) func(ctx context.Context, addr string) (redis.Conn, error) {
	return func(ctx context.Context, addr string) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialContextFunc(func(ctx context.Context, network, addr string) (net.Conn, error) {
			bounded, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return rawconn.DialContext(bounded, network, addr)
		}))
	}
}

// AsTold is the Map of servers that clients see under the addresses that they tell.
func AsTold(addr string) string { return addr }

func (o Options) withDefaults() Options {
	if o.Patience == 0 {
		o.Patience = 20 * time.Second
	}
	if o.FindTimeout == 0 {
		o.FindTimeout = 3 * time.Second
	}
	if o.MaxIdle == 0 {
		o.MaxIdle = 8
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = time.Minute
	}
	return o
}

// Fleet is a pool of connections to Servers. It is safe for concurrent use.
type Fleet struct {
	opts Options

	mu      sync.Mutex
	table   *Table
	stale   string               // an address that led nowhere
	suspect map[string]time.Time // when an address has last led nowhere
	wanted  bool                 // a table must be asked for before anybody is told an address
	finding chan struct{}        // closed when the attempt that is under way is over
	again   bool                 // another attempt is to follow it
	findErr error
	found   time.Time
	pools   map[string]*redis.Pool
	told    map[*func(addr string)]bool // of masters that are none any more
	closed  bool

	background sync.WaitGroup
}

// NewFleet returns a fleet that asks for its table when it is used.
func NewFleet(opts Options) *Fleet {
	return &Fleet{opts: opts.withDefaults(), wanted: true, pools: make(map[string]*redis.Pool)}
}

// ErrClosed is what a closed pool answers.
var ErrClosed = errors.New("the pool is closed")

// Close closes the idle connections, and those in use when they come back.
func (f *Fleet) Close() error {
	f.mu.Lock()
	f.closed = true
	pools := f.pools
	f.pools = make(map[string]*redis.Pool)
	f.mu.Unlock()
	var errs []error
	for _, p := range pools {
		errs = append(errs, p.Close())
	}
	f.background.Wait()
	return errors.Join(errs...)
}

// Address implements Servers.
func (f *Fleet) Address(told string) string {
	if f.opts.Map == nil {
		return told
	}
	return f.opts.Map(told)
}

// Patience implements Servers.
func (f *Fleet) Patience() time.Duration { return max(f.opts.Patience, 0) }

// DialAddr implements Servers.
func (f *Fleet) DialAddr(ctx context.Context, addr string) (redis.Conn, error) {
	conn, err := f.opts.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &watched{Conn: conn, fleet: f, addr: addr}, nil
}

// Masters returns the addresses of all masters.
func (f *Fleet) Masters(ctx context.Context) ([]string, error) {
	table, err := f.current(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock() // Moved writes to it
	defer f.mu.Unlock()
	return slices.Clone(table.Masters), nil
}

// Locate implements Servers.
func (f *Fleet) Locate(ctx context.Context, key string) (string, error) {
	table, err := f.current(ctx)
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if key == "" {
		return f.anyOf(table), nil
	}
	if addr := table.At(protocol.Slot(key)); addr != "" {
		return addr, nil
	}
	f.wanted = true
	return "", notServed(key)
}

// suspectFor is for how long a master that led nowhere is not chosen where any will do.
const suspectFor = 10 * time.Second

// anyOf returns the first master that has not led nowhere lately, or else the one that did so longest ago. The
// caller holds mu.
func (f *Fleet) anyOf(table *Table) string {
	best := table.Masters[0]
	for _, addr := range table.Masters {
		failed, suspected := f.suspect[addr]
		if !suspected || time.Since(failed) > suspectFor {
			return addr
		}
		if failed.Before(f.suspect[best]) {
			best = addr
		}
	}
	return best
}

// Moved implements Servers.
func (f *Fleet) Moved(slot int, addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.table != nil && f.table.owner != nil && slot >= 0 && slot < slots {
		f.table.Assign(slot, slot, addr)
	}
}

// Stale implements Servers.
func (f *Fleet) Stale(addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stale, f.wanted = addr, true
	if f.suspect == nil {
		f.suspect = make(map[string]time.Time)
	}
	f.suspect[addr] = time.Now()
}

// Refresh has the table asked for anew now, whether or not anybody waits for an address: connections to
// servers that are in it no more are dropped then.
func (f *Fleet) Refresh() {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
	case f.finding != nil:
		f.again = true
	default:
		f.ask()
	}
}

// ask starts an attempt to get a table. The caller holds mu, and there is none.
func (f *Fleet) ask() {
	f.finding = make(chan struct{})
	f.wanted, f.again = false, false
	f.background.Go(f.find)
}

// findEvery is the least time between two tables.
const findEvery = 20 * time.Millisecond

// current returns a table; callers share the asking for it.
func (f *Fleet) current(ctx context.Context) (*Table, error) {
	for asked := false; ; asked = true {
		f.mu.Lock()
		switch {
		case f.closed:
			f.mu.Unlock()
			return nil, ErrClosed
		case f.table != nil && (!f.wanted || time.Since(f.found) < findEvery):
			table := f.table
			f.mu.Unlock()
			return table, nil
		case asked && f.finding == nil && f.findErr != nil:
			err := f.findErr
			f.mu.Unlock()
			return nil, err
		case f.finding == nil:
			f.ask()
		}
		finding := f.finding
		f.mu.Unlock()
		select {
		case <-finding:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (f *Fleet) find() {
	ctx, cancel := context.WithTimeout(context.Background(), f.opts.FindTimeout)
	defer cancel()
	table, err := f.opts.Find(ctx, f.known())
	if err == nil && len(table.Masters) == 0 {
		err = errors.New("no server serves anything")
	}
	f.mu.Lock()
	f.findErr = err
	var gone []string
	if err != nil {
		f.findErr = fmt.Errorf("find the servers: %w", err)
		f.wanted = true
	} else {
		if f.table != nil {
			for _, addr := range f.table.Masters {
				if !slices.Contains(table.Masters, addr) {
					gone = append(gone, addr)
				}
			}
		}
		f.table, f.found = table, time.Now()
		f.forget()
	}
	told := slices.Collect(maps.Keys(f.told))
	close(f.finding)
	f.finding = nil
	if f.again && !f.closed {
		f.ask()
	}
	f.mu.Unlock()
	for _, addr := range gone {
		for _, tell := range told {
			(*tell)(addr)
		}
	}
}

// Gone implements Servers.
func (f *Fleet) Gone(tell func(addr string)) (stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told == nil {
		f.told = make(map[*func(addr string)]bool)
	}
	f.told[&tell] = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.told, &tell)
	}
}

func (f *Fleet) known() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.table == nil {
		return nil
	}
	known := slices.Clone(f.table.Nodes)
	slices.Sort(known)
	known = slices.Compact(known)
	// In another order each time: several that do not answer must not stand before the others for ever.
	rand.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
	if i := slices.Index(known, f.stale); i >= 0 {
		known = append(slices.Delete(known, i, i+1), f.stale)
	}
	return known
}

// forget closes the pools of servers that serve nothing any more. The caller holds mu.
func (f *Fleet) forget() {
	for addr := range f.suspect {
		if !slices.Contains(f.table.Masters, addr) {
			delete(f.suspect, addr)
		}
	}
	for addr, p := range f.pools {
		if !slices.Contains(f.table.Masters, addr) {
			delete(f.pools, addr)
			f.background.Go(func() { _ = p.Close() })
		}
	}
}

// pool returns the pool of one server.
func (f *Fleet) pool(addr string) (*redis.Pool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	p := f.pools[addr]
	if p == nil {
		p = &redis.Pool{
			MaxIdle: f.opts.MaxIdle, MaxActive: f.opts.MaxActive, IdleTimeout: f.opts.IdleTimeout, Wait: f.opts.MaxActive > 0,
			DialContext: func(ctx context.Context) (redis.Conn, error) { return f.DialAddr(ctx, addr) },
		}
		f.pools[addr] = p
	}
	return p, nil
}

// watched is a connection to one server that ends itself when the server turns out to be no master any
// more: pools and lines then drop it.
type watched struct {
	redis.Conn
	fleet   *Fleet
	addr    string
	mu      sync.Mutex
	demoted error
}

func (w *watched) look(reply any, err error) (any, error) {
	if refused, ok := err.(redis.Error); ok {
		if r, _, _ := Read(string(refused)); r == Demoted {
			w.mu.Lock()
			w.demoted = refused
			w.mu.Unlock()
			w.fleet.Stale(w.addr)
		}
	}
	return reply, err
}

func (w *watched) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.demoted != nil {
		return w.demoted
	}
	return w.Conn.Err()
}

func (w *watched) Do(name string, args ...any) (any, error) { return w.look(w.Conn.Do(name, args...)) }

func (w *watched) Receive() (any, error) { return w.look(w.Conn.Receive()) }

func (w *watched) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	return w.look(redis.DoWithTimeout(w.Conn, timeout, name, args...))
}

func (w *watched) ReceiveWithTimeout(timeout time.Duration) (any, error) {
	w.mu.Lock()
	err := w.demoted
	w.mu.Unlock()
	if err != nil { // the reply before this one said so: whoever reads on is to connect anew
		return nil, fmt.Errorf("the server was demoted: %s", err.Error())
	}
	return w.look(redis.ReceiveWithTimeout(w.Conn, timeout))
}

func (w *watched) DoContext(ctx context.Context, name string, args ...any) (any, error) {
	return w.look(redis.DoContext(w.Conn, ctx, name, args...))
}

func (w *watched) ReceiveContext(ctx context.Context) (any, error) {
	return w.look(redis.ReceiveContext(w.Conn, ctx))
}
