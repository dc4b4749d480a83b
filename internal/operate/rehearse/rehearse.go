// Package rehearse plays a fleet's migration on a private server: the shipped protocol code of old clients with their own clocks, members of package
// compat, sidecars, and a record that moves through the stages and back. It measures each act.
package rehearse

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/behind"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a rehearsal.
type Options struct {
	Pool     lockmigrate.Pool
	End      *endpoint.Endpoint
	Embedded bool          // the server is in this process: it has no figures of its own
	Clients  []Client      // their keys match Record's patterns once Prefix stands before them
	Record   stages.Record // of the namespace, at stage legacy
	Act      time.Duration // how long each act is measured
	Seed     uint64
	Told     func(a Act)       // after each act
	Begins   func(name string) // before it
}

// Millis is a time in milliseconds; JSON has it with three decimals.
type Millis float64

func millis(d time.Duration) Millis { return Millis(float64(d.Microseconds()) / 1000) }

// Spread is a quantile or two.
type Spread struct {
	N   int    `json:"n"`
	P50 Millis `json:"p50_ms"`
	P95 Millis `json:"p95_ms"`
	Max Millis `json:"max_ms"`
}

func spread(all []time.Duration) (s Spread) {
	if s.N = len(all); s.N == 0 {
		return s
	}
	slices.Sort(all)
	at := func(share float64) Millis { return millis(all[int(share*float64(len(all)-1))]) }
	return Spread{len(all), at(0.5), at(0.95), at(1)}
}

// Act is what was measured while the fleet stood so.
type Act struct {
	Name     string  `json:"name"`
	Stage    string  `json:"stage"`
	What     string  `json:"what"`
	Like     string  `json:"forecast_stage"`    // which of forecast's stages it is
	Command  string  `json:"command,omitempty"` // what an operator runs to get there
	MoveMS   Millis  `json:"move_ms"`           // how long the step took: the record's move, and clients that came and went
	Seconds  float64 `json:"seconds"`
	Turns    int     `json:"turns"`
	Overlaps int     `json:"overlaps"`
	Old      int     `json:"old_clients"` // that worked on the server directly
	// WithMembers are those of Overlaps in which one of the two was a member of the namespace, or behind a sidecar.
	WithMembers int    `json:"overlaps_with_members"`
	Waits       Spread `json:"wait"`
	Handovers   Spread `json:"hand_over"` // from a holder's end of work to the next one's entrance, where somebody waited
	Lost        int    `json:"lost"`      // holders that were told that their lock is over
	// Failures are what clients were told, with how often.
	Failures map[string]int `json:"failures,omitempty"`
	// ServerUS is the server's time for each turn in microseconds, MemoryBytes what it holds at the act's end; nil: it does not say.
	ServerUS    *float64 `json:"server_us_per_turn,omitempty"`
	MemoryBytes *int64   `json:"memory_bytes,omitempty"`
}

// act is one of the acts to play. The share of the old clients that are members by then; the rest is as it is, or behind sidecars.
type act struct {
	name, what, like string
	stage            stages.Stage
	members          float64
	behind           bool
}

var acts = []act{
	{"today", "the fleet as it was observed", "legacy", stages.Legacy, 0, false},
	{"Go joins", "half of the old clients have become members of package compat; the stage is legacy", "", stages.Legacy, 0.5, false},
	{"bridge", "the same at stage bridge, beside old clients", "bridge, half", stages.Bridge, 0.5, false},
	{"all moved", "all old clients have become members", "bridge", stages.Bridge, 1, false},
	{"modern", "tokens only", "modern", stages.Modern, 1, false},
	{"way back", "back at the bridge, and half of the old clients are back", "bridge, half", stages.Bridge, 0.5, false},
	{"sidecars", "all old clients are as they were, each behind a sidecar, which has its clock; both are true here", "sidecar", stages.Bridge, 0, true},
}

// Prefix stands before every key of a rehearsal.
const Prefix = "rehearsal:"

// ErrNotEmpty says that the server holds something.
var ErrNotEmpty = errors.New("the server is not empty")

// player plays.
type player struct {
	Options
	store    *stages.Store
	referee  *referee
	workers  map[string]*worker
	sidecars map[string]*behind.Sidecar
	conn     redis.Conn
}

// Run plays all acts, and tells of each. The server is empty again afterwards, also when an error or ctx ended it early.
func Run(ctx context.Context, o Options) (err error) {
	conn, err := o.Pool.GetContext(ctx)
	if err != nil {
		return endpoint.Explain(err)
	}
	defer conn.Close()
	if n, err := redis.Int(redis.DoContext(conn, ctx, "DBSIZE")); err != nil {
		return endpoint.Explain(err)
	} else if n > 0 {
		return fmt.Errorf("%w: it has %d keys", ErrNotEmpty, n)
	}
	o.Record.Namespace = "rehearsal-" + strings.ToLower(rand.Text()[:8])
	o.Record.Stage, o.Record.Patterns = stages.Legacy, []string{Prefix + "*"}
	p := &player{Options: o, store: &stages.Store{Pool: o.Pool, Namespace: o.Record.Namespace, ReplyTimeout: time.Second}, referee: newReferee(),
		workers: map[string]*worker{}, sidecars: map[string]*behind.Sidecar{}, conn: conn}
	defer func() { err = errors.Join(err, p.clean(ctx)) }()
	if err := p.store.Init(ctx, o.Record); err != nil {
		return endpoint.Explain(err)
	}
	for _, a := range acts {
		p.Begins(a.name)
		measured, err := p.play(ctx, a)
		if err != nil {
			return err
		}
		p.Told(measured)
	}
	return nil
}

// play changes the fleet and the stage, and measures.
func (p *player) play(ctx context.Context, a act) (Act, error) {
	out := Act{Name: a.name, Stage: a.stage.String(), What: a.what, Like: a.like}
	began := time.Now()
	view, err := p.store.Show(ctx)
	if err != nil {
		return out, err
	}
	// Old clients leave before stage modern, and come back after it.
	if a.stage == stages.Modern {
		if err := p.cast(ctx, a); err != nil {
			return out, err
		}
	}
	if from := view.Record.Stage; from != a.stage {
		verb := "advance"
		if a.stage < from {
			verb = "rollback"
		}
		out.Command = fmt.Sprintf("lockmigrate stage %s --namespace NAME --to %v --wait --execute", verb, a.stage)
		mover := &stages.Mover{Store: p.store, Look: 20 * time.Millisecond, Note: "rehearsal"}
		if err := mover.Run(ctx, a.stage, func(stages.View, []stages.Blocker) {}); err != nil {
			return out, err
		}
	}
	if err := p.cast(ctx, a); err != nil {
		return out, err
	}
	out.MoveMS = millis(time.Since(began))
	p.referee.since()
	cpu, _ := p.figures(ctx)
	began = time.Now()
	if err := lifetime.Sleep(ctx, p.Act); err != nil {
		return out, context.Cause(ctx)
	}
	s := p.referee.since()
	cpuThen, memory := p.figures(ctx)
	out.Seconds, out.Turns, out.Overlaps, out.WithMembers, out.Lost, out.Failures = time.Since(began).Seconds(), s.turns, s.overlaps, s.withMembers, s.lost, s.failures
	for _, w := range p.workers {
		if !w.new && !w.through {
			out.Old++
		}
	}
	out.Waits, out.Handovers, out.MemoryBytes = spread(s.waits), spread(s.handovers), memory
	if cpu != nil && cpuThen != nil && s.turns > 0 {
		per := 1e6 * (*cpuThen - *cpu) / float64(s.turns)
		out.ServerUS = &per
	}
	return out, nil
}

// cast makes each client what the act wants it to be. Who changes ends its turn first.
func (p *player) cast(ctx context.Context, a act) error {
	order := p.order()
	moved := order[:int(float64(len(order))*a.members+0.5)]
	type change struct {
		c     *Client
		isNew bool
	}
	var changes []change
	for i := range p.Clients {
		c := &p.Clients[i]
		isNew := !c.Old || slices.Contains(moved, c)
		w := p.workers[c.Name]
		if w != nil && w.new == isNew && (p.sidecars[c.Name] != nil) == (a.behind && c.Old) {
			continue
		}
		if w != nil {
			w.stop()
		}
		changes = append(changes, change{c, isNew})
	}
	for i, ch := range changes {
		if w := p.workers[ch.c.Name]; w != nil {
			select {
			case <-w.ended:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		w, err := p.start(ctx, ch.c, ch.isNew, a.behind && ch.c.Old)
		if err != nil {
			return fmt.Errorf("%s: %w", ch.c.Name, err)
		}
		working, stop := context.WithCancel(ctx)
		w.stop, w.ended = stop, make(chan struct{})
		p.workers[ch.c.Name] = w
		go w.work(working, p.referee, mathrand.New(mathrand.NewPCG(p.Seed, uint64(len(p.workers)*1000+i))))
	}
	return nil
}

// order is that in which old clients move: those first whose clocks are farthest from the middle, as forecast has it where skew is to blame.
func (p *player) order() (all []*Client) {
	var clocks []time.Duration
	for i := range p.Clients {
		if c := &p.Clients[i]; c.Old {
			all, clocks = append(all, c), append(clocks, c.Offset)
		}
	}
	if slices.Sort(clocks); len(clocks) > 0 {
		middle := clocks[len(clocks)/2]
		slices.SortStableFunc(all, func(a, b *Client) int { return cmp.Compare((b.Offset - middle).Abs(), (a.Offset - middle).Abs()) })
	}
	return all
}

func (p *player) start(ctx context.Context, c *Client, isNew, through bool) (*worker, error) {
	if isNew {
		return member(c, p.Pool, &p.Record)
	}
	pool := p.Pool
	if through {
		s, err := behind.Start(ctx, p.Pool, p.End, sidecar.Options{Namespace: p.Record.Namespace, Name: name(c.Name), Lease: c.Lease}, Prefix+"any")
		if err != nil {
			return nil, err
		}
		p.sidecars[c.Name] = s
		pool = s.Pool()
	}
	o := &old{*c, pool}
	if through { // service and sidecar share a machine and its clock
		o.Offset = 0
	}
	return &worker{Client: c, through: through, take: o.acquire, close: func() {}}, nil
}

// name is a client's name as a sidecar may have it.
func name(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, text)
}

// figures are the server's processor time in seconds and its memory; nil where it does not say.
func (p *player) figures(ctx context.Context) (cpu *float64, memory *int64) {
	if p.Embedded {
		return nil, nil
	}
	text, err := redis.String(redis.DoContext(p.conn, ctx, "INFO"))
	if err != nil {
		return nil, nil
	}
	var user, system float64
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch key {
		case "used_cpu_user":
			user, _ = strconv.ParseFloat(value, 64)
		case "used_cpu_sys":
			system, _ = strconv.ParseFloat(value, 64)
		case "used_memory":
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				memory = &n
			}
		}
	}
	if sum := user + system; sum > 0 {
		cpu = &sum
	}
	return cpu, memory
}

// clean stops everybody and removes what the rehearsal has written.
func (p *player) clean(ctx context.Context) error {
	for _, w := range p.workers {
		w.stop()
	}
	for _, w := range p.workers {
		<-w.ended
	}
	for _, s := range p.sidecars {
		s.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for cursor := "0"; ; {
		page, err := redis.Values(redis.DoContext(p.conn, ctx, "SCAN", cursor, "COUNT", 1000))
		if err != nil {
			return fmt.Errorf("keys of the rehearsal may be left on the server: %w", err)
		}
		keys, _ := redis.Strings(page[1], nil)
		for _, key := range keys {
			if strings.HasPrefix(strings.TrimPrefix(key, "{"), Prefix) || strings.Contains(key, p.Record.Namespace) || strings.HasPrefix(key, "lockmigrate:") {
				if _, err := redis.DoContext(p.conn, ctx, "DEL", key); err != nil {
					return fmt.Errorf("%s is left on the server: %w", key, err)
				}
			}
		}
		if cursor, _ = redis.String(page[0], nil); cursor == "0" {
			return nil
		}
	}
}
