package fleet

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
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a rehearsal.
type Options struct {
	End     *endpoint.Endpoint
	Other   *endpoint.Endpoint // another empty server, to which the fleet moves in the last two acts; nil: it does not
	Clients []Client           // a prefix is put before their keys
	Record  stages.Record      // of the namespace, at stage legacy
	Act     time.Duration      // how long each act is measured
	Told    func(a Act)        // after each act
	Event   func(Event)        // what happens within the acts, one after the other
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
	Failures map[string]int64 `json:"failures,omitempty"`
	// ServerUS is the servers' time for each turn in microseconds, MemoryBytes what they hold at the act's end; 0: they do not say.
	ServerUS    float64 `json:"server_us_per_turn,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
}

// act is one of the acts to play.
type act struct {
	name, what, like string
	stage            stages.Stage
	cast             cast
	short            string // its name on a timeline, if it is another
	begin            func(ctx context.Context, p *player)
}

var acts = []act{
	{name: "today", what: "the fleet as it was observed", like: "legacy", stage: stages.Legacy, cast: cast{0, member, old, member}},
	{name: "Go joins", what: "half of the old clients have become members of package compat; the stage is legacy", stage: stages.Legacy, cast: cast{0.5, member, old, member}},
	{name: "bridge", what: "the same at stage bridge, beside old clients", like: "bridge, half", stage: stages.Bridge, cast: cast{0.5, member, old, member}},
	{name: "all moved", what: "all old clients have become members", like: "bridge", stage: stages.Bridge, cast: cast{1, member, old, member}},
	{name: "modern", what: "tokens only", like: "modern", stage: stages.Modern, cast: cast{1, member, old, member}},
	{name: "way back", what: "back at the bridge, and half of the old clients are back", like: "bridge, half", stage: stages.Bridge, cast: cast{0.5, member, old, member}},
	{name: "sidecars", what: "all old clients are as they were, each behind a sidecar, which has its clock; both are true here", like: "sidecar", stage: stages.Bridge,
		cast: cast{1, behind, old, member}},
	{name: "both servers", what: "every client holds the lock here and a token on another server, by package handover", stage: stages.Both, cast: cast{1, elsewhere, old, elsewhere}},
	{name: "other server", what: "the other server alone", stage: stages.New, cast: cast{1, elsewhere, old, elsewhere}},
}

// ErrNotEmpty says that the server holds something.
var ErrNotEmpty = errors.New("the server is not empty")

// player plays.
type player struct {
	Options
	story   bool                                     // the demo's: its servers are not private, the way to an act counts, and each act wants a turn
	spoken  struct{ namespace, server, more string } // in the commands that move a stage
	pool    endpoint.LockPool                        // of End
	other   endpoint.LockPool                        // of Other; nil where there is none
	id      string                                   // random, in each key that is written
	prefix  string                                   // before every key
	store   *stages.Store
	moved   *stages.Store // of the handover's record; nil before the first of its acts
	referee *Referee
	workers map[string]*Worker
	order   []*Client    // in which old clients move
	conns   []redis.Conn // of the servers, where they are private

	death   misfortune
	telling sync.Mutex
	began   time.Time
	act     string
}

// newPlayer returns one whose keys and namespaces begin with a name.
func newPlayer(o Options, name string) (p *player, err error) {
	id := rand.Text()[:12]
	o.Record.Namespace = name + "-" + id
	o.Record.Stage, o.Record.Patterns = stages.Legacy, []string{name + ":" + id + ":*"}
	p = &player{Options: o, id: id, prefix: name + ":" + id + ":", referee: NewReferee(), workers: map[string]*Worker{}, began: time.Now(), order: farthest(o.Clients)}
	if p.pool, err = o.End.Locks(); err == nil && o.Other != nil {
		p.other, err = o.Other.Locks()
	}
	p.store = &stages.Store{Pool: p.pool, Namespace: o.Record.Namespace, ReplyTimeout: replyTimeout}
	return p, err
}

// Rehearse plays all acts, and tells of each. The servers are empty again afterwards, also when an error or ctx ended it early.
func Rehearse(ctx context.Context, o Options) (err error) {
	p, err := newPlayer(o, "rehearsal")
	if err != nil {
		return err
	}
	defer p.close()
	p.spoken.namespace, p.spoken.server, p.spoken.more = "NAME", "NEW", " --wait"
	for _, end := range []*endpoint.Endpoint{o.End, o.Other} {
		if end == nil {
			continue
		}
		conn, err := empty(ctx, end)
		if err != nil {
			return err
		}
		defer conn.Close()
		p.conns = append(p.conns, conn)
	}
	return p.run(ctx, acts)
}

// run plays acts.
func (p *player) run(ctx context.Context, acts []act) (err error) {
	if err := p.store.Init(ctx, p.Record); err != nil {
		cleaned := p.clean(ctx)
		if errors.Is(err, stages.ErrUnsure) { // else nothing was written
			return errors.Join(endpoint.Explain(err), cleaned)
		}
		var unreached *endpoint.Error
		if errors.As(err, &unreached) {
			return unreached
		}
		return endpoint.Explain(err)
	}
	defer func() {
		p.end()
		err = errors.Join(err, p.clean(ctx))
	}()
	for _, a := range acts {
		if a.stage >= stages.Both && p.other == nil {
			continue
		}
		p.telling.Lock()
		p.act = cmp.Or(a.short, a.name)
		p.telling.Unlock()
		p.say("%s", a.what)
		measured, err := p.play(ctx, a)
		if measured.Seconds > 0 {
			p.Told(measured)
		}
		if err != nil {
			return err
		}
		if measured.Turns == 0 && p.story {
			return p.nobody(a)
		}
	}
	return nil
}

// empty connects to a server, and makes sure that it holds nothing.
func empty(ctx context.Context, end *endpoint.Endpoint) (redis.Conn, error) {
	conn, err := end.Dial(ctx)
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
	began, store, left := time.Now(), p.store, 0
	if a.stage >= stages.Both {
		if err := p.prepare(ctx); err != nil {
			return out, err
		}
		store = p.moved
	}
	view, err := store.Show(ctx)
	if err != nil {
		return out, err
	}
	// Old clients leave before stage modern, and come back after it; a handover moves when all its members are there.
	if a.stage >= stages.Modern {
		if err := p.cast(ctx, a); err != nil {
			return out, err
		}
	}
	if from := view.Record.Stage; from != a.stage {
		if p.story && a.stage == stages.Modern { // what an old client left is taken over at stage bridge, and never after it
			left = p.referee.Since().Overlaps + p.first(ctx, Sheet{}).Overlaps
		}
		verb := "advance"
		if a.stage < from {
			verb = "rollback"
		}
		out.Command = p.command(verb, a.stage)
		p.say("%s", out.Command)
		moves, last := time.Now(), ""
		mover := &stages.Mover{Store: store, Look: 20 * time.Millisecond, Note: "rehearsal"}
		err := mover.Run(ctx, a.stage, func(_ stages.View, blockers []stages.Blocker) {
			if why := blockers[0].String(); why != last {
				last = why
				p.say("waiting: %s", why)
			}
		})
		if err != nil {
			return out, err
		}
		p.say("stage %v after %d ms", a.stage, time.Since(moves).Milliseconds())
	}
	if err := p.cast(ctx, a); err != nil {
		return out, err
	}
	if a.begin != nil {
		a.begin(ctx, p)
	}
	out.MoveMS = millis(time.Since(began))
	way := p.referee.Since()
	cpu, _ := p.figures(ctx)
	began = time.Now()
	if err := lifetime.Sleep(ctx, p.Act); err != nil {
		return out, context.Cause(ctx)
	}
	s := p.referee.Since()
	if p.story {
		s = p.first(ctx, s)
		s.Overlaps += left + way.Overlaps
	}
	cpuThen, memory := p.figures(ctx)
	out.Seconds, out.Turns, out.Overlaps, out.WithMembers, out.Lost, out.Failures = time.Since(began).Seconds(), s.Turns, s.Overlaps, s.WithMembers, s.Lost, s.Failures
	for _, w := range p.workers {
		if w.role == old {
			out.Old++
		}
	}
	out.Waits, out.Handovers, out.MemoryBytes = spread(s.Waits), spread(s.Handovers), memory
	if cpu > 0 && cpuThen > cpu && s.Turns > 0 {
		out.ServerUS = 1e6 * (cpuThen - cpu) / float64(s.Turns)
	}
	return out, nil
}

// cast makes each client what the act wants it to be. Who changes ends its turn first.
func (p *player) cast(ctx context.Context, a act) error {
	for i := range p.Clients { // their last turns end at the same time
		c := &p.Clients[i]
		if w := p.workers[c.Name]; w != nil && w.role != p.role(c, a.cast) {
			w.Stop()
		}
	}
	for i := range p.Clients {
		c := &p.Clients[i]
		is := p.role(c, a.cast)
		if w := p.workers[c.Name]; w != nil {
			if w.role == is {
				continue
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
			delete(p.workers, c.Name)
		}
		if is == absent {
			continue
		}
		w, err := p.worker(ctx, c, is)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		p.workers[c.Name] = w
		w.Start(ctx, p.referee, time.Duration(mathrand.Float64()*float64(w.Think()+w.Hold())))
	}
	return nil
}

// farthest is the order in which old clients move: those first whose clocks are farthest from the middle, as forecast has it where skew is to blame.
func farthest(clients []Client) (all []*Client) {
	var clocks []time.Duration
	for i := range clients {
		if c := &clients[i]; !c.Go {
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
	p.moved = &stages.Store{Pool: p.other, Namespace: p.Record.Namespace + "-to-b", ReplyTimeout: replyTimeout}
	halves, err := stages.Marked(ctx, p.moved.Namespace, replyTimeout, p.pool, p.other)
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

// figures are the servers' processor time in seconds and their memory, together; 0 where one does not say.
func (p *player) figures(ctx context.Context) (cpu float64, memory int64) {
	for _, conn := range p.conns {
		said, err := endpoint.Info(ctx, conn)
		used, errUsed := strconv.ParseInt(said["used_memory"], 10, 64)
		busy := endpoint.MainCPU(said)
		if err != nil || errUsed != nil || busy == 0 {
			return 0, 0
		}
		cpu, memory = cpu+busy, memory+used
	}
	return cpu, memory
}

// command is what an operator types to move the namespace, or the handover of its keys.
func (p *player) command(verb string, to stages.Stage) string {
	namespace, elsewhere, more := p.spoken.namespace, "", p.spoken.more
	if to >= stages.Both {
		namespace, elsewhere = namespace+"-to-b", " --redis "+p.spoken.server
	}
	if p.story && (to == stages.Modern || to == stages.New) { // the demo watches its members itself; elsewhere verify writes a certificate
		more = " --force retired"
	}
	return fmt.Sprintf("lockmigrate stage %s --namespace %s --to %v%s --execute%s", verb, namespace, to, more, elsewhere)
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

func (p *player) close() {
	_ = p.pool.Close()
	if p.other != nil {
		_ = p.other.Close()
	}
}

// CleansWithin is how long a rehearsal or the demo takes at most, after its context has ended, to stop everybody and to remove what was written.
const CleansWithin = 15 * time.Second

// clean removes what was written on the servers; private ones held nothing before. Connections of its own do it: one that was asked something when ctx
// ended is closed.
func (p *player) clean(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, s := range []*stages.Store{p.store, p.moved} {
		if s != nil {
			err = errors.Join(err, p.remove(ctx, s))
		}
	}
	if err != nil {
		return &endpoint.Error{What: fmt.Sprintf("keys with %s in their names may be left on the server: %v", p.id, err), Advice: "delete them when the server answers again", Cause: err}
	}
	return nil
}

func (p *player) remove(ctx context.Context, s *stages.Store) error {
	var left []string
	if err := s.EachKey(ctx, "*"+p.id+"*", func(key string) { left = append(left, key) }); err != nil {
		return err
	}
	conn, err := s.Pool.GetContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, key := range left { // one by one: in a cluster each has a slot of its own
		if _, err := redis.DoContext(conn, ctx, "DEL", key); err != nil {
			return err
		}
	}
	if _, err := s.Delete(ctx, 0, true); err != nil && !errors.Is(err, stages.ErrNoRecord) {
		return err
	}
	return s.Forget(ctx) // its entry in the list
}
