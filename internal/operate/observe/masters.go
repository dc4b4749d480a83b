package observe

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// Masters is a live observation of all masters behind an endpoint. It goes along with failovers of a
// cluster, or of what sentinels watch over: a server that becomes a master is watched from when that is
// seen, and one that is no master any more is not watched further, as what it executes then are copies.
// What was sent in between is in no report; Holes say so. Its methods are safe for concurrent use.
type Masters struct {
	end    *endpoint.Endpoint
	opts   Options
	limits Limits

	ctx    context.Context // of the window
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu sync.Mutex
	// peers are the addresses of the servers. A server that has just been demoted shows in its MONITOR what
	// the new master sends it, from that one's address.
	peers   map[string]bool
	watches []*watch          // in the order in which they began
	current map[string]*watch // those of masters, as far as is known, by address
	holes   notes
	window  window

	restarts int // of goAlong alone
}

const (
	lookAtMasters = 250 * time.Millisecond // how often a failover is looked for
	mostRestarts  = 50                     // watches of masters that came up within one window
)

// StartMasters watches every master until a limit is reached or ctx ends; limits are for each of them.
func StartMasters(ctx context.Context, end *endpoint.Endpoint, opts Options, limits Limits) (*Masters, error) {
	nodes, err := end.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	m := &Masters{end: end, opts: opts, limits: limits, peers: map[string]bool{}, current: map[string]*watch{}}
	m.opts.Ignore = m.isPeer
	m.ctx, m.cancel = context.WithCancel(ctx)
	addrs := m.know(nodes)
	watches, errs := make([]*watch, len(addrs)), make([]error, len(addrs))
	var starting sync.WaitGroup
	for i, addr := range addrs { // at once: each first measures its server's load for a moment
		starting.Go(func() { watches[i], errs[i] = newWatch(m.ctx, end, addr, m.opts, limits) })
	}
	starting.Wait()
	for _, w := range watches {
		if w != nil {
			m.add(w)
		}
	}
	if err := cmp.Or(errs...); err != nil {
		m.cancel()
		_ = m.Wait()
		return nil, err
	}
	m.window.began = time.Now()
	if m.several() {
		m.group.Go(m.goAlong)
	}
	return m, nil
}

// know notes the servers' addresses, and returns those of the masters.
func (m *Masters) know(nodes []endpoint.Node) (masters []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range nodes {
		m.peers[n.Addr] = true
		if !n.Replica {
			masters = append(masters, n.Addr)
		}
	}
	return masters
}

// isPeer tells the address of a server.
func (m *Masters) isPeer(addr string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peers[addr]
}

// goAlong looks for failovers until the window is over, or limits have ended every watch.
func (m *Masters) goAlong() {
	for lifetime.Sleep(m.ctx, lookAtMasters) == nil {
		left := time.Until(m.window.began.Add(m.limits.For))
		if m.limits.For > 0 && left <= 0 || m.limited() {
			return
		}
		ctx, cancel := context.WithTimeout(m.ctx, 2*time.Second)
		nodes, err := m.end.Nodes(ctx)
		cancel()
		if err == nil { // else it is in the middle of a failover
			m.adjust(m.know(nodes), left)
		}
	}
}

// limited tells that limits ended the watch of every master.
func (m *Masters) limited() bool {
	now := m.now()
	for _, w := range now {
		if !w.ending() || w.lost() {
			return false
		}
	}
	return len(now) > 0
}

// now returns the watches of those that are masters, by address.
func (m *Masters) now() map[string]*watch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.current)
}

// adjust watches the masters that stand, and no others.
func (m *Masters) adjust(masters []string, left time.Duration) {
	now := m.now()
	for addr, w := range now {
		if !slices.Contains(masters, addr) {
			m.mu.Lock()
			delete(m.current, addr)
			m.mu.Unlock()
			m.holes.add("%s is no master any more", addr)
			w.cancel(errOver)
		}
	}
	for _, addr := range masters {
		w := now[addr]
		if w != nil && (!w.ending() || !w.lost()) || m.restarts >= mostRestarts {
			continue
		}
		limits := m.limits
		if limits.For > 0 {
			limits.For = left
		}
		began := time.Since(m.window.began)
		if w, err := newWatch(m.ctx, m.end, addr, m.opts, limits); err == nil {
			m.restarts++
			m.holes.add("%s is watched from %.1f s on only", addr, began.Seconds())
			m.add(w)
		}
	}
}

func (m *Masters) add(w *watch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watches = append(m.watches, w)
	m.current[w.addr] = w
}

func (m *Masters) all() []*watch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.watches)
}

// Wait waits for the end and returns why it was not as planned: a *Stopped, the context's cause, or
// what broke the connection to the only server.
func (m *Masters) Wait() error {
	m.group.Wait()
	var first error
	for _, w := range m.all() {
		err := w.wait()
		if w.lost() && m.several() {
			m.holes.add("the connection to %s broke", w.addr)
		} else if first == nil {
			first = err
		}
	}
	m.cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.window.end()
	return first
}

// Holes are what was not seen so far.
func (m *Masters) Holes() []string { return m.holes.all() }

// several tells that another server may take a master's place.
func (m *Masters) several() bool {
	return m.end.Kind == endpoint.Cluster || m.end.Kind == endpoint.Sentinel
}

// observed calls use with the observers of all watches, while none of them takes anything in, and the window so far.
func (m *Masters) observed(use func(observers, *window)) {
	var all observers
	for _, w := range m.all() {
		w.mu.Lock()
		defer w.mu.Unlock()
		all = append(all, w.obs)
	}
	m.mu.Lock()
	window := m.window
	m.mu.Unlock()
	use(all, &window)
}

// Report says what is known so far, of all servers.
func (m *Masters) Report() (r Report) {
	m.observed(func(all observers, window *window) { r = all.report(window) })
	for _, w := range m.all() {
		for _, why := range w.probe.refused.all() {
			if !slices.Contains(r.Refused, why) {
				r.Refused = append(r.Refused, why)
			}
		}
	}
	return r
}

// Profile writes down the fleet of all servers as it was measured so far.
func (m *Masters) Profile() (p profile.Profile) {
	m.observed(func(all observers, window *window) { p = all.profile(window) })
	for _, w := range m.now() { // what a former master remembers its successor does
		p.Failovers = p.Failovers.Beside(w.guard.failovers)
	}
	return p
}

// Cost says what the watches did cost so far; loads are those of the busiest server.
func (m *Masters) Cost() Cost {
	var sum Cost
	for _, w := range m.all() {
		c := w.costs()
		sum.Commands += c.Commands
		sum.Bytes += c.Bytes
		sum.ReadsOfOurs += c.ReadsOfOurs
		sum.BufferPeak = max(sum.BufferPeak, c.BufferPeak)
		sum.CPUBefore = max(sum.CPUBefore, c.CPUBefore)
		sum.CPUDuring = max(sum.CPUDuring, c.CPUDuring)
		sum.LoadUnknown = cmp.Or(sum.LoadUnknown, c.LoadUnknown)
		sum.BufferUnknown = cmp.Or(sum.BufferUnknown, c.BufferUnknown)
	}
	return sum
}
