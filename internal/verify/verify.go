package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/census"
	"github.com/lockmigrate/lockmigrate/internal/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/glob"
	"github.com/lockmigrate/lockmigrate/internal/observe"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a verification.
type Options struct {
	Window    time.Duration
	Longest   time.Duration // the longest lease or pause between two runs of a job: the window must be longer
	Match     []string      // globs of the lock keys; of the namespace's record where there is one
	Namespace string
	Look      time.Duration // between two looks at the counters; 0: a second, or a tenth of a short window
	Burst     time.Duration // of MONITOR; 0 for none
	Every     time.Duration // from one burst to the next
	Census    bool

	Progress func(left time.Duration, seen int)
}

// inquiry is one run.
type inquiry struct {
	end     *endpoint.Endpoint
	opts    Options
	cert    Certificate
	masters []*master
	began   time.Time

	before     map[string]string // legacy values at the start, by server and key
	legacyOps  int64             // that bursts saw
	otherOps   int64
	bursts     int
	burstTime  time.Duration
	holes      []string // each makes the verdict inconclusive
	burstHoles []string // of a source that covers only a part anyway
	clients    map[string]Client
}

// Run watches for the window and writes the certificate. An interrupted run has one too: inconclusive,
// unless a legacy client was seen before.
func Run(ctx context.Context, end *endpoint.Endpoint, opts Options) (Certificate, error) {
	q := &inquiry{end: end, opts: opts, clients: map[string]Client{}, before: map[string]string{}}
	if q.opts.Look == 0 {
		q.opts.Look = min(time.Second, max(opts.Window/10, 10*time.Millisecond))
	}
	q.cert = Certificate{Format: Format, Namespace: opts.Namespace, Servers: []Server{}, Sources: []Source{}, LegacyClients: []Client{}}
	if err := q.members(ctx); err != nil {
		return q.cert, err
	}
	q.cert.Patterns = q.opts.Match
	addrs, err := end.Masters(ctx)
	if err != nil {
		return q.cert, err
	}
	defer func() {
		for _, m := range q.masters {
			_ = m.conn.Close()
		}
	}()
	for _, addr := range addrs {
		m, err := newMaster(ctx, end, addr)
		if err != nil {
			return q.cert, err
		}
		q.masters = append(q.masters, m)
	}
	q.began = time.Now()
	q.cert.Started = q.began.UTC()
	if opts.Census {
		q.census(ctx, q.before, nil)
	}
	q.watch(ctx)
	q.finish(ctx, addrs)
	return q.cert, nil
}

// watch looks until the window is over.
func (q *inquiry) watch(ctx context.Context) {
	tick := time.NewTicker(q.opts.Look)
	defer tick.Stop()
	over := time.NewTimer(time.Until(q.began.Add(q.opts.Window)))
	defer over.Stop()
	next, running := time.Duration(0), false
	bursts := make(chan func(), 1)
	defer func() {
		if running {
			(<-bursts)()
		}
	}()
	for {
		if q.opts.Burst > 0 && !running && time.Since(q.began) >= next {
			next, running = time.Since(q.began)+q.opts.Every, true
			go func() { bursts <- q.burst(ctx) }() // beside the looks: ACL LOG must not wait
		}
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case take := <-bursts:
			take()
			running = false
			continue
		case <-tick.C:
		}
		for _, m := range q.masters {
			m.look(ctx)
		}
		if q.opts.Progress != nil {
			q.opts.Progress(time.Until(q.began.Add(q.opts.Window)), len(q.clients))
		}
	}
}

// burst runs MONITOR for a moment on every master, and returns what takes in what it found.
func (q *inquiry) burst(ctx context.Context) (take func()) {
	opts := observe.Options{}
	if len(q.opts.Match) > 0 {
		opts.Match = q.matches
	}
	length := min(q.opts.Burst, time.Until(q.began.Add(q.opts.Window)))
	if length <= 0 {
		return func() {}
	}
	began := time.Now()
	var watches []*observe.Watch
	var holes []string
	for _, m := range q.masters {
		w, err := observe.Start(ctx, q.end, m.addr, opts, observe.Limits{For: length, Commands: 2_000_000, Snapshot: -1})
		if err != nil {
			holes = append(holes, "a MONITOR burst was not possible: "+err.Error())
			continue
		}
		watches = append(watches, w)
	}
	var reports []observe.Report
	for _, w := range watches {
		if err := w.Wait(); err != nil && ctx.Err() == nil {
			holes = append(holes, "a MONITOR burst ended early: "+err.Error())
		}
		reports = append(reports, w.Report())
	}
	took := time.Since(began)
	return func() {
		for _, h := range holes {
			if !slices.Contains(q.burstHoles, h) {
				q.burstHoles = append(q.burstHoles, h)
			}
		}
		if len(watches) > 0 {
			q.bursts++
			q.burstTime += took
		}
		for _, r := range reports {
			q.attribute(r)
		}
	}
}

// attribute takes in the legacy clients of a burst.
func (q *inquiry) attribute(r observe.Report) {
	q.legacyOps += r.LegacyOps
	q.otherOps += r.OtherOps
	for _, row := range r.Clients {
		if row.Kind == observe.Legacy {
			q.sees(Client{Addr: row.Addr, Name: row.Name, User: row.User, Dialect: row.Dialect, Keys: row.Keys, Evidence: "MONITOR: it sent SETNX or GETSET"})
		}
	}
}

func (q *inquiry) matches(key string) bool {
	if len(q.opts.Match) == 0 {
		return true
	}
	return slices.ContainsFunc(q.opts.Match, func(p string) bool { return glob.Match(p, key) })
}

// sees notes a legacy client.
func (q *inquiry) sees(c Client) {
	id := c.Addr + " " + c.User + " " + c.Evidence
	if _, known := q.clients[id]; !known && len(q.clients) < 1000 {
		q.clients[id] = c
	}
}

// members reads the namespace: its patterns, and who still runs stage legacy.
func (q *inquiry) members(ctx context.Context) error {
	if q.opts.Namespace == "" {
		return nil
	}
	pool := q.end.LocksOrNone() // in a cluster the record is on one master
	defer pool.Close()
	store := stages.Store{Pool: pool, Namespace: q.opts.Namespace, ReplyTimeout: 5 * time.Second}
	view, err := store.Show(ctx)
	if err != nil {
		if errors.Is(err, stages.ErrNoRecord) {
			return &endpoint.Error{What: fmt.Sprintf("there is no namespace %q", q.opts.Namespace), Advice: "lockmigrate stage init makes one; or verify by --match alone", BadInput: true}
		}
		return endpoint.Explain(err)
	}
	q.cert.Epoch = view.Record.Epoch
	if len(q.opts.Match) == 0 {
		q.opts.Match = view.Record.Patterns
	}
	if q.opts.Longest == 0 {
		q.opts.Longest = view.Record.Shortest
	}
	for _, m := range view.Members {
		if m.Lowest == stages.Legacy || m.Stage == stages.Legacy {
			q.sees(Client{Addr: m.Info.Host, Name: m.ID, Evidence: "a member of the namespace that runs stage legacy, or holds a lock of it"})
		}
	}
	return nil
}

// census notes the legacy values among the lock keys; changed is told of each that was not there before, or
// is live.
func (q *inquiry) census(ctx context.Context, into map[string]string, changed func(server, key string, row *census.Row)) {
	for _, m := range q.masters {
		conn, err := q.end.DialRaw(ctx, m.addr)
		if err != nil {
			q.holes = append(q.holes, "the census could not begin: "+err.Error())
			continue
		}
		opts := census.Options{Match: q.opts.Match, Confidence: census.Medium, GhostAfter: time.Hour, Emit: func(r *census.Row) error {
			if len(r.Dialects) == 0 || !r.Format.Legacy() || len(into) > 100_000 {
				return nil
			}
			id := m.addr + " " + string(r.Key)
			into[id] = fmt.Sprint(r.Expires)
			if changed != nil {
				changed(m.addr, string(r.Key), r)
			}
			return nil
		}}
		if err := census.New(opts).Scan(ctx, conn); err != nil && ctx.Err() == nil {
			q.holes = append(q.holes, "the census is not whole: "+err.Error())
		}
	}
}

// finish takes the last looks, and judges.
func (q *inquiry) finish(ctx context.Context, addrs []string) {
	interrupted := ctx.Err() != nil
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 700*time.Millisecond)
	if !interrupted {
		cancel()
		last, cancel = context.WithTimeout(ctx, time.Minute)
	}
	defer cancel()
	for _, m := range q.masters {
		m.look(last)
	}
	q.cert.Ended = time.Now().UTC()
	q.cert.WindowSeconds = q.cert.Ended.Sub(q.cert.Started).Seconds()
	if interrupted {
		q.holes = append(q.holes, "it was interrupted")
	} else {
		if now, err := q.end.Masters(last); err != nil || !slices.Equal(slices.Sorted(slices.Values(now)), slices.Sorted(slices.Values(addrs))) {
			q.holes = append(q.holes, "the masters are not those of the start")
		}
		if q.opts.Namespace != "" {
			epoch := q.cert.Epoch
			if err := q.members(last); err != nil || q.cert.Epoch != epoch {
				q.holes = append(q.holes, "the namespace changed or could not be read at the end")
			}
		}
	}
	var held []string
	if q.opts.Census && !interrupted {
		held = q.lastCensus(last)
	}
	q.judge(held)
}

// lastCensus compares the values of the end with those of the start. It returns keys whose value is live and
// was there all the time: somebody may hold it.
func (q *inquiry) lastCensus(ctx context.Context) (held []string) {
	q.census(ctx, map[string]string{}, func(server, key string, r *census.Row) {
		before, known := q.before[server+" "+key]
		switch {
		case known && before == fmt.Sprint(r.Expires):
			if r.State == census.Held && len(held) < 10 {
				held = append(held, key)
			}
		default:
			q.sees(Client{Evidence: "census: a legacy value was written within the window", Dialect: r.Dialects[0], Keys: []string{key}})
		}
	})
	return held
}

// judge weighs the evidence.
func (q *inquiry) judge(held []string) {
	c := &q.cert
	var calls, rejected int64
	for _, m := range q.masters {
		s := m.server()
		c.Servers = append(c.Servers, s)
		calls += s.SetNX + s.GetSet
		rejected += s.Rejected
		q.holes = append(q.holes, m.holes...)
		for _, h := range m.hits {
			if h.Key != "" && !q.matches(h.Key) {
				continue
			}
			q.sees(Client{Addr: h.Addr, Name: h.Name, User: h.User, Evidence: fmt.Sprintf("ACL LOG: %s denied (%s)", h.Command, h.Context)})
		}
	}
	q.sources(calls, rejected, held)
	attributed := len(q.clients) > 0
	if !attributed && (rejected > 0 || calls > 0 && q.otherOps == 0) {
		evidence := fmt.Sprintf("commandstats: %d SETNX or GETSET were run", calls)
		if rejected > 0 {
			evidence = fmt.Sprintf("commandstats: %d SETNX or GETSET were run, %d denied", calls, rejected)
		}
		q.sees(Client{Evidence: evidence + "; no source names who"})
		attributed = true
	}
	for _, id := range slices.Sorted(mapKeys(q.clients)) {
		c.LegacyClients = append(c.LegacyClients, q.clients[id])
	}
	switch {
	case attributed:
		c.Verdict, c.Why = Seen, fmt.Sprintf("%d SETNX and GETSET on %d servers, %d denied; %s", calls, len(q.masters), rejected, nouns(len(c.LegacyClients), "finding"))
	case len(q.holes) > 0:
		c.Verdict, c.Why = Inconclusive, strings.Join(q.holes, "; ")
	case calls > 0:
		c.Verdict = Inconclusive
		c.Why = fmt.Sprintf("%d SETNX or GETSET were run; the %d that MONITOR saw were not on these lock keys, but it did not see all", calls, q.otherOps)
		if calls == q.otherOps {
			c.Verdict, c.Why = NoneSeen, fmt.Sprintf("all %d SETNX and GETSET of the window were seen by MONITOR, and none was on a lock key", calls)
		}
	case len(held) > 0:
		c.Verdict, c.Why = Inconclusive, fmt.Sprintf("a legacy client may hold %q: its value did not change and is not over; look for longer than the longest lease, or sweep", held)
	case q.opts.Longest > 0 && c.WindowSeconds < q.opts.Longest.Seconds():
		c.Verdict, c.Why = Inconclusive, fmt.Sprintf("nobody was seen in %.0f s, but a client may be silent for %v", c.WindowSeconds, q.opts.Longest)
	default:
		c.Verdict, c.Why = NoneSeen, fmt.Sprintf("no SETNX and no GETSET on %d servers in %.1f s", len(q.masters), c.WindowSeconds)
	}
	q.risks()
}
