package serve

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a page.
type Options struct {
	Namespace   string
	Match       []string
	Group       observe.Group
	Lease       time.Duration
	Burst       time.Duration // of MONITOR; 0 for none
	Every       time.Duration // from one burst to the next; the same as Burst is always
	CensusEvery time.Duration // 0 for none
	Look        time.Duration // at the counters and the namespace; 0: 2 s
}

// Collector keeps a state up to date.
type Collector struct {
	end  *endpoint.Endpoint
	opts Options

	mu      sync.Mutex
	state   State
	earlier State                    // after the bursts before this one
	clients map[string][]observe.Row // by address: clients of one host that do different things have a row each
}

// NewCollector returns a collector that has not begun.
func NewCollector(end *endpoint.Endpoint, opts Options) *Collector {
	opts.Look = cmp.Or(opts.Look, 2*time.Second)
	return &Collector{
		end: end, opts: opts, clients: map[string][]observe.Row{},
		state: State{Server: end.String(), Monitor: "off", Totals: map[string]float64{}, Acquired: map[string]int64{}, Hazards: map[string]int64{}},
	}
}

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { c.counters(ctx) })
	if c.opts.Burst > 0 {
		group.Go(func() { c.monitor(ctx) })
	}
	if c.opts.CensusEvery > 0 {
		group.Go(func() { c.every(ctx, c.opts.CensusEvery, c.census) })
	}
	if c.opts.Namespace != "" {
		pool, err := c.end.Locks()
		if err != nil {
			c.change(func(s *State) { s.unshown = err })
			return
		}
		store := &stages.Store{Pool: pool, Namespace: c.opts.Namespace, ReplyTimeout: 5 * time.Second}
		group.Go(func() {
			defer pool.Close()
			c.every(ctx, c.opts.Look, func(ctx context.Context) { c.namespace(ctx, store) })
		})
	}
}

func (c *Collector) every(ctx context.Context, d time.Duration, f func(context.Context)) {
	for {
		f(ctx)
		if lifetime.Sleep(ctx, d) != nil {
			return
		}
	}
}

// watched are the commands whose counts are shown.
var watched = []string{"setnx", "getset", "set", "get", "del", "eval", "evalsha"}

// counters reads commandstats of every master. One that cannot be read takes nothing away from the others, nor from its own count.
func (c *Collector) counters(ctx context.Context) {
	last := map[string]map[string]float64{}
	c.every(ctx, c.opts.Look, func(ctx context.Context) {
		masters, err := c.end.Masters(ctx)
		for _, addr := range masters {
			now, failed := c.counts(ctx, addr)
			if failed != nil {
				err = cmp.Or(err, failed)
				continue
			}
			if before, known := last[addr]; known {
				c.count(before, now)
			}
			last[addr] = now
		}
		if ctx.Err() == nil {
			c.change(func(s *State) { s.uncounted = err })
		}
	})
}

func (c *Collector) counts(ctx context.Context, addr string) (map[string]float64, error) {
	conn, err := c.end.DialAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	info, err := endpoint.Info(ctx, conn, "commandstats")
	if err != nil {
		return nil, endpoint.Explain(err)
	}
	counts := map[string]float64{}
	for _, name := range watched {
		calls := endpoint.CallsOf(info["cmdstat_"+name])
		counts[name] = float64(calls.Calls)
		if calls.Counts && (name == "setnx" || name == "getset") {
			counts["denied"] += float64(calls.Rejected)
		}
	}
	return counts, nil
}

// monitor watches in bursts. A burst that the server could not bear is not repeated at once.
func (c *Collector) monitor(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		holes, err := c.burst(ctx)
		pause := c.opts.Every - time.Since(began)
		var stopped *observe.Stopped
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &stopped):
			c.setMonitor("stopped: " + stopped.Why + "; tried again later")
			pause = max(pause, 30*time.Second)
		case err == nil && len(holes) > 0:
			c.setMonitor("not all was seen: " + strings.Join(holes, "; "))
		case err != nil:
			c.setMonitor("stopped: " + err.Error() + "; tried again later")
			pause = max(pause, 5*time.Second)
		case pause > 0:
			c.setMonitor("waiting for the next burst")
		}
		if pause > 0 {
			_ = lifetime.Sleep(ctx, pause)
		}
	}
}

func (c *Collector) setMonitor(text string) {
	c.change(func(s *State) { s.Monitor = text })
}

// burst runs MONITOR once. What it sees is shown while it runs and at its end.
func (c *Collector) burst(ctx context.Context) (holes []string, err error) {
	opts := observe.Options{Group: c.opts.Group, Lease: c.opts.Lease, Match: servers.Matcher(c.opts.Match)}
	masters, err := observe.StartMasters(ctx, c.end, opts, observe.Limits{For: c.opts.Burst})
	if err != nil {
		return nil, err
	}
	c.setMonitor("on")
	ended := make(chan error, 1)
	go func() { ended <- masters.Wait() }()
	since := time.Now()
	tick := time.NewTicker(c.opts.Look)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case err = <-ended:
			over = true
		case <-tick.C:
		}
		now := time.Now()
		c.saw(masters.Report(), now.Sub(since), over)
		since = now
	}
	return masters.Holes(), err
}

// census counts the locks on the keys.
func (c *Collector) census(ctx context.Context) {
	at := time.Now().UTC()
	counts := func(*census.Row) error { return nil }
	taken := census.New(census.Options{Match: c.opts.Match, Confidence: census.Medium, GhostAfter: time.Hour, Rate: 50_000, Emit: counts})
	if err := taken.All(ctx, c.end); err != nil { // the last one stays, with its time
		if ctx.Err() == nil {
			c.change(func(s *State) { s.Locks.Error = err.Error() })
		}
		return
	}
	c.change(func(s *State) { s.Locks = Locks{At: at, Summary: taken.Summary()} })
}

// namespace reads the stage and the members. What cannot be read is not shown: it may have changed.
func (c *Collector) namespace(ctx context.Context, store *stages.Store) {
	view, err := store.Show(ctx)
	if err != nil {
		if errors.Is(err, stages.ErrNoRecord) { // it may come
			err = nil
		}
		if ctx.Err() == nil {
			c.change(func(s *State) { s.Namespace, s.unshown = nil, err })
		}
		return
	}
	n := view.Document(nil)
	n.BlockedBy = nil // the way to the next stage is not looked at here
	c.change(func(s *State) { s.Namespace, s.unshown = &n, nil })
}
