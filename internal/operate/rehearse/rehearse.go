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
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a rehearsal.
type Options struct {
	Pool     lockmigrate.Pool
	End      *endpoint.Endpoint
	Other    lockmigrate.Pool  // another empty server, to which the fleet moves in the last two acts; nil: it does not
	Embedded bool              // the server is in this process: it has no figures of its own
	Clients  []Client          // their keys match Record's patterns once Prefix stands before them
	Record   stages.Record     // of the namespace, at stage legacy
	Act      time.Duration     // how long each act is measured
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
	// ServerUS is the servers' time for each turn in microseconds, MemoryBytes what they hold at the act's end; nil: they do not say.
	ServerUS    *float64 `json:"server_us_per_turn,omitempty"`
	MemoryBytes *int64   `json:"memory_bytes,omitempty"`
}

// act is one of the acts to play. The share of the old clients that are members by then; the rest is as it is, or behind sidecars.
type act struct {
	name, what, like string
	stage            stages.Stage
	members          float64
	behind           bool
	elsewhere        bool // members of package handover, of a record on the other server
}

var acts = []act{
	{"today", "the fleet as it was observed", "legacy", stages.Legacy, 0, false, false},
	{"Go joins", "half of the old clients have become members of package compat; the stage is legacy", "", stages.Legacy, 0.5, false, false},
	{"bridge", "the same at stage bridge, beside old clients", "bridge, half", stages.Bridge, 0.5, false, false},
	{"all moved", "all old clients have become members", "bridge", stages.Bridge, 1, false, false},
	{"modern", "tokens only", "modern", stages.Modern, 1, false, false},
	{"way back", "back at the bridge, and half of the old clients are back", "bridge, half", stages.Bridge, 0.5, false, false},
	{"sidecars", "all old clients are as they were, each behind a sidecar, which has its clock; both are true here", "sidecar", stages.Bridge, 0, true, false},
	{"both servers", "every client holds the lock here and a token on another server, by package handover", "", stages.Both, 1, false, true},
	{"other server", "the other server alone", "", stages.New, 1, false, true},
}

// Prefix stands before every key of a rehearsal.
const Prefix = "rehearsal:"

// ErrNotEmpty says that the server holds something.
var ErrNotEmpty = errors.New("the server is not empty")

// player plays.
type player struct {
	Options
	store   *stages.Store
	referee *fleet.Referee
	workers map[string]*worker
	conns   []redis.Conn // of the servers

	moved *stages.Store // of the handover's record; nil before the first of its acts
}

// Run plays all acts, and tells of each. The servers are empty again afterwards, also when an error or ctx ended it early.
func Run(ctx context.Context, o Options) (err error) {
	conn, err := empty(ctx, o.Pool)
	if err != nil {
		return err
	}
	defer conn.Close()
	conns := []redis.Conn{conn}
	if o.Other != nil {
		other, err := empty(ctx, o.Other)
		if err != nil {
			return err
		}
		defer other.Close()
		conns = append(conns, other)
	}
	o.Record.Namespace = "rehearsal-" + strings.ToLower(rand.Text()[:8])
	o.Record.Stage, o.Record.Patterns = stages.Legacy, []string{Prefix + "*"}
	p := &player{
		Options: o, store: &stages.Store{Pool: o.Pool, Namespace: o.Record.Namespace, ReplyTimeout: time.Second}, referee: fleet.NewReferee(),
		workers: map[string]*worker{}, conns: conns,
	}
	defer func() {
		p.end()
		for _, pool := range []lockmigrate.Pool{o.Pool, o.Other} {
			if pool != nil {
				err = errors.Join(err, remove(ctx, pool))
			}
		}
	}()
	if err := p.store.Init(ctx, o.Record); err != nil {
		return endpoint.Explain(err)
	}
	for _, a := range acts {
		if a.elsewhere && o.Other == nil {
			continue
		}
		p.Begins(a.name)
		measured, err := p.play(ctx, a)
		if err != nil {
			return err
		}
		p.Told(measured)
	}
	return nil
}

// empty connects to a server, and makes sure that it holds nothing.
func empty(ctx context.Context, pool lockmigrate.Pool) (redis.Conn, error) {
	conn, err := pool.GetContext(ctx)
	if err != nil {
		return nil, endpoint.Explain(err)
	}
	n, err := redis.Int(redis.DoContext(conn, ctx, "DBSIZE"))
	switch {
	case err != nil:
		err = endpoint.Explain(err)
	case n > 0:
		err = fmt.Errorf("%w: it has %d keys", ErrNotEmpty, n)
	default:
		return conn, nil
	}
	_ = conn.Close()
	return nil, err
}

// play changes the fleet and the stage, and measures.
func (p *player) play(ctx context.Context, a act) (Act, error) {
	out := Act{Name: a.name, Stage: a.stage.String(), What: a.what, Like: a.like}
	began := time.Now()
	store, where := p.store, ""
	if a.elsewhere {
		if err := p.prepare(ctx); err != nil {
			return out, err
		}
		store, where = p.moved, "-to-b --redis NEW"
	}
	view, err := store.Show(ctx)
	if err != nil {
		return out, err
	}
	// Old clients leave before stage modern, and come back after it; a handover moves when all its members are there.
	if a.stage == stages.Modern || a.elsewhere {
		if err := p.cast(ctx, a); err != nil {
			return out, err
		}
	}
	if from := view.Record.Stage; from != a.stage {
		verb := "advance"
		if a.stage < from {
			verb = "rollback"
		}
		out.Command = fmt.Sprintf("lockmigrate stage %s --namespace NAME%s --to %v --wait --execute", verb, where, a.stage)
		mover := &stages.Mover{Store: store, Look: 20 * time.Millisecond, Note: "rehearsal"}
		if err := mover.Run(ctx, a.stage, func(stages.View, []stages.Blocker) {}); err != nil {
			return out, err
		}
	}
	if err := p.cast(ctx, a); err != nil {
		return out, err
	}
	out.MoveMS = millis(time.Since(began))
	p.referee.Since()
	cpu, _ := p.figures(ctx)
	began = time.Now()
	if err := lifetime.Sleep(ctx, p.Act); err != nil {
		return out, context.Cause(ctx)
	}
	s := p.referee.Since()
	cpuThen, memory := p.figures(ctx)
	out.Seconds, out.Turns, out.Overlaps, out.WithMembers, out.Lost, out.Failures = time.Since(began).Seconds(), s.Turns, s.Overlaps, s.WithMembers, s.Lost, s.Failures
	for _, w := range p.workers {
		if !w.new && !w.through {
			out.Old++
		}
	}
	out.Waits, out.Handovers, out.MemoryBytes = spread(s.Waits), spread(s.Handovers), memory
	if cpu != nil && cpuThen != nil && s.Turns > 0 {
		per := 1e6 * (*cpuThen - *cpu) / float64(s.Turns)
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
		isNew := !c.Old || a.elsewhere || slices.Contains(moved, c)
		w := p.workers[c.Name]
		if w != nil && w.new == isNew && w.through == (a.behind && c.Old) && w.elsewhere == a.elsewhere {
			continue
		}
		if w != nil {
			w.Stop()
		}
		changes = append(changes, change{c, isNew})
	}
	for _, ch := range changes {
		if w := p.workers[ch.c.Name]; w != nil {
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
		w, err := p.worker(ctx, ch.c, ch.isNew, a)
		if err != nil {
			return fmt.Errorf("%s: %w", ch.c.Name, err)
		}
		p.workers[ch.c.Name] = w
		w.Start(ctx, p.referee, time.Duration(mathrand.Float64()*float64(w.Think()+w.Hold())))
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

// prepare makes the record of the handover.
func (p *player) prepare(ctx context.Context) error {
	if p.moved != nil {
		return nil
	}
	p.moved = &stages.Store{Pool: p.Other, Namespace: p.Record.Namespace + "-to-b", ReplyTimeout: time.Second}
	halves, err := stages.Marked(ctx, p.moved.Namespace, time.Second, p.Pool, p.Other)
	if err != nil {
		return err
	}
	return p.moved.Init(ctx, stages.Record{Patterns: p.Record.Patterns, Handover: &halves})
}

// name is a client's name as a sidecar may have it.
func name(text string) string {
	return strings.Map(func(r rune) rune {
		if stages.CheckName(string(r)) != nil || r == ':' {
			return '-'
		}
		return r
	}, text)
}

// figures are the servers' processor time in seconds and their memory, together; nil where one does not say.
func (p *player) figures(ctx context.Context) (cpu *float64, memory *int64) {
	if p.Embedded {
		return nil, nil
	}
	var seconds float64
	var bytes int64
	for _, conn := range p.conns {
		said, err := endpoint.Info(ctx, conn)
		used, errUsed := strconv.ParseInt(said["used_memory"], 10, 64)
		busy := endpoint.MainCPU(said)
		if err != nil || errUsed != nil || busy == 0 {
			return nil, nil
		}
		seconds, bytes = seconds+busy, bytes+used
	}
	return &seconds, &bytes
}

// end stops everybody.
func (p *player) end() {
	for _, w := range p.workers {
		w.Stop()
	}
	for _, w := range p.workers {
		_ = w.Wait(context.Background())
	}
}

// CleansWithin is how long Run takes at most, after its context has ended, to stop everybody and to remove what was written.
const CleansWithin = 15 * time.Second

// remove removes what the rehearsal has written on a server. It takes a connection of its own: one that was asked something when ctx ended is closed.
func remove(ctx context.Context, pool lockmigrate.Pool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	conn, err := pool.GetContext(ctx)
	if err != nil {
		return fmt.Errorf("keys of the rehearsal may be left on the server: %w", err)
	}
	defer conn.Close()
	var left []any
	err = stages.Scan(ctx, conn, "*", 5*time.Second, func(key string) {
		if strings.HasPrefix(strings.TrimPrefix(key, "{"), Prefix) || strings.HasPrefix(key, "lockmigrate:") {
			left = append(left, key)
		}
	})
	if err == nil && len(left) > 0 {
		_, err = redis.DoContext(conn, ctx, "DEL", left...)
	}
	if err != nil {
		return fmt.Errorf("keys of the rehearsal may be left on the server: %w", err)
	}
	return nil
}
