package topology

import (
	"cmp"
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

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
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

// Options of a Router; Find and Dial are required.
type Options struct {
	// Find asks for a new table. Known are the servers of the last one, the stale one last.
	Find func(ctx context.Context, known []string) (*Table, error)
	// Dial connects to one of them.
	Dial func(ctx context.Context, addr string) (redis.Conn, error)

	// Map translates addresses that servers tell. Nil: as they are.
	Map func(addr string) string

	Patience  time.Duration // zero: 20 s; negative: none
	MaxIdle   int           // per server; zero: 8
	MaxActive int           // per server; zero: no limit
}

// findTimeout bounds the asking for a table, also of a command that outlives its connection's context.
const findTimeout = 3 * time.Second

// CheckAddrs wants host:port each.
func CheckAddrs(addrs []string) error {
	for _, a := range addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("address %q: %w", a, err)
		}
	}
	return nil
}

// Plain dials servers without TLS and without a password, over what dial gives.
func Plain(dial func(ctx context.Context, network, addr string) (net.Conn, error), timeout time.Duration) func(ctx context.Context, addr string) (redis.Conn, error) {
	return func(ctx context.Context, addr string) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialContextFunc(func(ctx context.Context, network, addr string) (net.Conn, error) {
			bounded, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return dial(bounded, network, addr)
		}))
	}
}

// AsTold is the Map of servers that clients see under the addresses that they tell.
func AsTold(addr string) string { return addr }

// Router is a pool of connections to Servers. It is safe for concurrent use.
type Router struct {
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

// NewRouter returns a router that asks for its table when it is used.
func NewRouter(opts Options) *Router {
	opts.Patience, opts.MaxIdle = cmp.Or(opts.Patience, 20*time.Second), cmp.Or(opts.MaxIdle, 8)
	return &Router{opts: opts, wanted: true, pools: make(map[string]*redis.Pool)}
}

// Routed is what a pool of several servers embeds: the lock packages find its Router by RouterOf, and users see nothing of it.
type Routed struct{ router *Router }

// NewRouted returns a Routed with a new Router.
func NewRouted(opts Options) Routed { return Routed{NewRouter(opts)} }

func (r Routed) routes() *Router { return r.router }

// RouterOf returns the Router of a pool that embeds a Routed; nil for any other pool.
func RouterOf(pool lockmigrate.Pool) *Router {
	if r, ok := pool.(interface{ routes() *Router }); ok {
		return r.routes()
	}
	return nil
}

// ErrClosed is what a closed pool answers.
var ErrClosed = errors.New("the pool is closed")

// Close closes the idle connections, and those in use when they come back.
func (r *Router) Close() error {
	r.mu.Lock()
	r.closed = true
	pools := r.pools
	r.pools = make(map[string]*redis.Pool)
	r.mu.Unlock()
	var errs []error
	for _, p := range pools {
		errs = append(errs, p.Close())
	}
	r.background.Wait()
	return errors.Join(errs...)
}

// Address implements Servers.
func (r *Router) Address(told string) string {
	if r.opts.Map == nil {
		return told
	}
	return r.opts.Map(told)
}

// Patience implements Servers.
func (r *Router) Patience() time.Duration { return max(r.opts.Patience, 0) }

// DialAddr implements Servers.
func (r *Router) DialAddr(ctx context.Context, addr string) (redis.Conn, error) {
	conn, err := r.opts.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &watched{Conn: conn, router: r, addr: addr}, nil
}

// Masters returns the addresses of all masters.
func (r *Router) Masters(ctx context.Context) ([]string, error) {
	table, err := r.current(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock() // Moved writes to it
	defer r.mu.Unlock()
	return slices.Clone(table.Masters), nil
}

// Locate implements Servers.
func (r *Router) Locate(ctx context.Context, key string) (string, error) {
	table, err := r.current(ctx)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if key == "" {
		return r.anyOf(table), nil
	}
	if addr := table.At(protocol.Slot(key)); addr != "" {
		return addr, nil
	}
	r.wanted = true
	return "", notServed(key)
}

// suspectFor is for how long a master that led nowhere is not chosen where any will do.
const suspectFor = 10 * time.Second

// anyOf returns the first master that has not led nowhere lately, or else the one that did so longest ago. The
// caller holds mu.
func (r *Router) anyOf(table *Table) string {
	best := table.Masters[0]
	for _, addr := range table.Masters {
		failed, suspected := r.suspect[addr]
		if !suspected || time.Since(failed) > suspectFor {
			return addr
		}
		if failed.Before(r.suspect[best]) {
			best = addr
		}
	}
	return best
}

// Moved implements Servers.
func (r *Router) Moved(slot int, addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table != nil && r.table.owner != nil && slot >= 0 && slot < slots {
		r.table.Assign(slot, slot, addr)
	}
}

// Stale implements Servers.
func (r *Router) Stale(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stale, r.wanted = addr, true
	if r.suspect == nil {
		r.suspect = make(map[string]time.Time)
	}
	r.suspect[addr] = time.Now()
}

// Refresh has the table asked for again now, whether or not anybody waits for an address: connections to
// servers that are in it no more are dropped then.
func (r *Router) Refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
	case r.finding != nil:
		r.again = true
	default:
		r.ask()
	}
}

// ask starts an attempt to get a table. The caller holds mu, and there is none.
func (r *Router) ask() {
	r.finding = make(chan struct{})
	r.wanted, r.again = false, false
	r.background.Go(r.find)
}

// findEvery is the least time between two tables.
const findEvery = 20 * time.Millisecond

// current returns a table; callers share the asking for it.
func (r *Router) current(ctx context.Context) (*Table, error) {
	for asked := false; ; asked = true {
		r.mu.Lock()
		switch {
		case r.closed:
			r.mu.Unlock()
			return nil, ErrClosed
		case r.table != nil && (!r.wanted || time.Since(r.found) < findEvery):
			table := r.table
			r.mu.Unlock()
			return table, nil
		case asked && r.finding == nil && r.findErr != nil:
			err := r.findErr
			r.mu.Unlock()
			return nil, err
		case r.finding == nil:
			r.ask()
		}
		finding := r.finding
		r.mu.Unlock()
		select {
		case <-finding:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (r *Router) find() {
	ctx, cancel := context.WithTimeout(context.Background(), findTimeout)
	defer cancel()
	table, err := r.opts.Find(ctx, r.known())
	if err == nil && len(table.Masters) == 0 {
		err = errors.New("no server serves anything")
	}
	r.mu.Lock()
	r.findErr = err
	var gone []string
	if err != nil {
		r.findErr = fmt.Errorf("find the servers: %w", err)
		r.wanted = true
	} else {
		if r.table != nil {
			gone = slices.DeleteFunc(slices.Clone(r.table.Masters), func(addr string) bool { return slices.Contains(table.Masters, addr) })
		}
		r.table, r.found = table, time.Now()
		r.forget()
	}
	told := slices.Collect(maps.Keys(r.told))
	close(r.finding)
	r.finding = nil
	if r.again && !r.closed {
		r.ask()
	}
	r.mu.Unlock()
	for _, addr := range gone {
		for _, tell := range told {
			(*tell)(addr)
		}
	}
}

// Gone implements Servers.
func (r *Router) Gone(tell func(addr string)) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told == nil {
		r.told = make(map[*func(addr string)]bool)
	}
	r.told[&tell] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.told, &tell)
	}
}

func (r *Router) known() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table == nil {
		return nil
	}
	known := slices.Clone(r.table.Nodes)
	slices.Sort(known)
	known = slices.Compact(known)
	// In another order each time: several that do not answer must not stand before the others for ever.
	rand.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
	if i := slices.Index(known, r.stale); i >= 0 {
		known = append(slices.Delete(known, i, i+1), r.stale)
	}
	return known
}

// forget closes the pools of servers that serve nothing any more. The caller holds mu.
func (r *Router) forget() {
	maps.DeleteFunc(r.suspect, func(addr string, _ time.Time) bool { return !slices.Contains(r.table.Masters, addr) })
	for addr, p := range r.pools {
		if !slices.Contains(r.table.Masters, addr) {
			delete(r.pools, addr)
			r.background.Go(func() { _ = p.Close() })
		}
	}
}

// pool returns the pool of one server.
func (r *Router) pool(addr string) (*redis.Pool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	p := r.pools[addr]
	if p == nil {
		p = &redis.Pool{
			MaxIdle: r.opts.MaxIdle, MaxActive: r.opts.MaxActive, IdleTimeout: time.Minute, Wait: r.opts.MaxActive > 0,
			DialContext: func(ctx context.Context) (redis.Conn, error) { return r.DialAddr(ctx, addr) },
		}
		r.pools[addr] = p
	}
	return p, nil
}

// watched is a connection to one server that ends itself when the server turns out to be no master any
// more: pools and lines then drop it.
type watched struct {
	redis.Conn
	router  *Router
	addr    string
	mu      sync.Mutex
	demoted error
}

// look notes a refusal that says so.
func (w *watched) look(reply any, err error) (any, error) {
	if refused, ok := err.(redis.Error); ok {
		if refusal, _, _ := Read(string(refused)); refusal == Demoted {
			w.mu.Lock()
			w.demoted = refused
			w.mu.Unlock()
			w.router.Stale(w.addr)
		}
	}
	return reply, err
}

func (w *watched) lost() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.demoted
}

func (w *watched) Err() error { return cmp.Or(w.lost(), w.Conn.Err()) }

func (w *watched) Do(name string, args ...any) (any, error) { return w.look(w.Conn.Do(name, args...)) }

func (w *watched) Receive() (any, error) { return w.look(w.Conn.Receive()) }

func (w *watched) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	return w.look(redis.DoWithTimeout(w.Conn, timeout, name, args...))
}

func (w *watched) ReceiveWithTimeout(timeout time.Duration) (any, error) {
	if err := w.lost(); err != nil { // the reply before this one said so: who reads on has to connect again
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
