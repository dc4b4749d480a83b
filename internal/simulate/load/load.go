// Package load says what a fleet's locks cost its servers in each stage of the migration, and which limit comes first as the
// fleet grows. It plays the fleet in the simulator, counts what every server is asked to do, and multiplies by the costs that
// were measured on a real one.
package load

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Options of a forecast. The zero value asks for 1, 10 and 100 times the fleet, at the limits of a redis.conf that nobody changed.
type Options struct {
	Factors []int // how many times the clients, on the same keys; empty: 1, 10, 100
	Limits  Limits
	Seed    uint64
	Workers int // threads; 0 is one for each core
	// Family names the keys of a profile, whose own names it does not keep; nil: the key itself.
	Family func(key string) string
	// Progress, if set, is called before each run.
	Progress func(stage string, factor int)
}

// Limits are what one server may use.
type Limits struct {
	CPU         float64 // of one core; 0 is 0.7, as a queue forms before the core is full
	Connections int     // 0 is 10,000, the default of maxclients
	Memory      int64   // bytes, maxmemory; 0 is no limit
}

// Report is what each stage costs.
type Report struct {
	Costs   Costs   `json:"costs"`
	Limits  Limits  `json:"limits"`
	Masters int     `json:"masters"`
	Stages  []Stage `json:"stages"`
}

// Stage is one composition of the fleet.
type Stage struct {
	Name string `json:"name"`
	What string `json:"what"`
	Rows []Row  `json:"rows"` // one a factor
	// First names the limit that comes first, and FirstAt at about how many times today's fleet. Certain tells that a run
	// went over it; else it is where the last row's use, growing as it is, arrives.
	First   string  `json:"first_limit"`
	FirstAt float64 `json:"first_limit_at"`
	Certain bool    `json:"first_limit_was_reached"`
}

// Row is the fleet a number of times.
type Row struct {
	Factor  int `json:"factor"`
	Clients int `json:"clients"`
	// Skipped says why this row was not played; nothing else of it is set then.
	Skipped  string        `json:"skipped,omitempty"`
	Played   time.Duration `json:"played_ns"`        // of the fleet's time
	Acquired float64       `json:"acquired_per_s"`   // on all servers
	MeanWait time.Duration `json:"mean_wait_ns"`     // of those that acquired
	Busiest  string        `json:"busiest_key"`      // and for which part of the time it is held
	KeyHeld  float64       `json:"busiest_key_held"` // 0 to 1
	Overlaps int64         `json:"overlaps"`         // in the time that was played
	Server   Usage         `json:"busiest_server"`   // of each figure the largest that a server has
	All      Usage         `json:"servers_together"` // the sums
}

// Usage is what servers do.
type Usage struct {
	Commands    float64 `json:"commands_per_s"`
	CPU         float64 `json:"cpu_cores"`    // processor time a second
	Scripts     float64 `json:"script_cores"` // of it, inside commands and scripts
	Messages    float64 `json:"messages_per_s"`
	Connections int     `json:"connections"`
	Memory      float64 `json:"memory_bytes"`
}

// most bounds what one run plays: a minute of the fleet's time, or so many operations of all servers together.
const (
	longest = time.Minute
	mostOps = 3_000_000
)

// ErrNoClients says that there is nothing to forecast.
var ErrNoClients = errors.New("the fleet has no client of the old scheme")

// Forecast plays a fleet in each stage. The fleet is today's, with clients of scheme Legacy; what else it has stays.
func Forecast(fleet *sim.Fleet, o Options) (*Report, error) {
	costs, err := Measured()
	if err != nil {
		return nil, err
	}
	return forecast(fleet, o, costs)
}

func forecast(fleet *sim.Fleet, o Options, costs Costs) (*Report, error) {
	if fleet.Plan != nil {
		return nil, errors.New("a fleet whose turns are written down has no rates: leave the turns out")
	}
	if len(o.Factors) == 0 {
		o.Factors = []int{1, 10, 100}
	}
	if o.Limits.CPU == 0 {
		o.Limits.CPU = 0.7
	}
	if o.Limits.Connections == 0 {
		o.Limits.Connections = 10_000
	}
	r := &Report{Costs: costs, Limits: o.Limits, Masters: max(fleet.Masters, 1)}
	all := Compositions(fleet)
	if len(all) == 1 {
		return nil, ErrNoClients
	}
	for _, k := range all {
		s := Stage{Name: k.Name, What: k.What}
		for _, factor := range o.Factors {
			if o.Progress != nil {
				o.Progress(k.Name, factor)
			}
			s.Rows = append(s.Rows, r.row(k.Fleet, factor, &o))
		}
		s.first(&o.Limits)
		r.Stages = append(r.Stages, s)
	}
	return r, nil
}

// MostClients is how many clients a run can have.
const MostClients = 100_000

// row plays a fleet a number of times over: as many times the clients, with the same habits, on the same keys.
func (r *Report) row(fleet *sim.Fleet, factor int, o *Options) Row {
	row := Row{Factor: factor, Clients: len(fleet.Clients) * factor}
	if factor < 1 || row.Clients > MostClients {
		row.Skipped = fmt.Sprintf("more than %d clients are not played", MostClients)
		return row
	}
	times := *fleet
	times.Clients = make([]sim.Client, 0, row.Clients)
	for n := range factor {
		for i := range fleet.Clients {
			c := fleet.Clients[i]
			if n > 0 {
				c.Name = fmt.Sprintf("%s*%d", c.Name, n+1)
				c.Owner = fmt.Sprintf("%08x-0000-4000-8000-%012x", i+1, n)
			}
			if c.Scheme == model.Sidecar {
				c.Behind = c.Name
			}
			c.First = sim.Uniform(0, c.Think.Mean()+c.Hold.Mean()) // as often in the first moments as later
			times.Clients = append(times.Clients, c)
		}
	}
	if times.Until == 0 || times.Until > longest {
		times.Until = longest
	}
	times.MostOps = max(int64(mostOps/r.Masters), 1000)
	parallel := sim.Parallel{Workers: o.Workers}
	played := parallel.Run(&times, o.Seed, 1)
	connected := connections(&times, &r.Costs)
	sum := played.Sum()
	row.Played, row.Overlaps, row.Busiest = sum.Simulated, sum.Overlaps, sum.Busiest.Key
	if o.Family != nil {
		row.Busiest = o.Family(row.Busiest)
	}
	if sum.Acquisitions > 0 {
		row.MeanWait = sum.Waited / time.Duration(sum.Acquisitions)
	}
	for i := range played.Masters {
		m := &played.Masters[i]
		seconds := max(m.Simulated.Seconds(), 1e-9)
		row.Acquired += float64(m.Acquisitions) / seconds
		row.KeyHeld = max(row.KeyHeld, m.Busiest.Held.Seconds()/seconds)
		u := r.usage(m, seconds, connected[i], &times)
		if i == 0 { // the record of the namespace is on one of them
			members := float64(members(&times))
			u.Commands += members * r.Costs.Members.CommandsPerSecond
			u.CPU += members * r.Costs.Members.CPU / 1e6
		}
		row.All.add(u)
		row.Server.most(u)
	}
	return row
}

// usage is what one server does.
func (r *Report) usage(m *sim.Result, seconds float64, connections int, fleet *sim.Fleet) Usage {
	u := Usage{Connections: connections, Messages: float64(m.Messages) / seconds}
	u.CPU = max(u.Messages-float64(m.Handed)/seconds, 0) * r.Costs.MessageUS / 1e6 // a hand-over has its own
	// A member asks once before it queues; the simulator's queues at once.
	asks := float64(m.Queued) / seconds
	first := r.Costs.of(protocol.BridgeTake, Asks)
	u.Commands, u.CPU, u.Scripts = asks*first.Commands, u.CPU+asks*first.CPU/1e6, asks*first.Executes/1e6
	for op := range m.Commands {
		var handed int64
		if protocol.Op(op) == protocol.BridgeDrop {
			handed = m.Handed
		}
		for _, path := range []struct {
			path Path
			n    int64
		}{{Usual, m.Commands[op] - m.Looks[op] - m.Long[op] - handed}, {Look, m.Looks[op]}, {Long, m.Long[op]}, {Hands, handed}} {
			if path.n == 0 {
				continue
			}
			cost, rate := r.Costs.of(protocol.Op(op), path.path), float64(path.n)/seconds
			u.Commands += rate * cost.Commands
			u.CPU += rate * cost.CPU / 1e6
			u.Scripts += rate * cost.Executes / 1e6
		}
	}
	waiting := m.Waited.Seconds() / seconds
	inUse := 0.0
	if connections > 0 { // the server takes a connection's buffers back that has been idle for two seconds
		inUse = min(1, 2*float64(m.Ops)/seconds/float64(connections))
	}
	b := &r.Costs.Bytes
	u.Memory = b.Empty + float64(connections)*(b.Idle+inUse*(b.Connection-b.Idle)) +
		m.Held.Seconds()/seconds*b.Held[dearest(fleet, &r.Costs)] + waiting*b.Waiter
	return u
}

// dearest is the scheme of the fleet whose held locks take most memory.
func dearest(fleet *sim.Fleet, c *Costs) (name string) {
	for i := range fleet.Clients {
		if s := fleet.Clients[i].Scheme.String(); name == "" || c.Bytes.Held[s] > c.Bytes.Held[name] {
			name = s
		}
	}
	return name
}

// members is how many processes report to the namespace's record.
func members(fleet *sim.Fleet) (n int) {
	for i := range fleet.Clients {
		if fleet.Clients[i].Scheme != model.Legacy {
			n++
		}
	}
	return n
}

// connections is how many each master has: one of an old client, and those of a member, from each client with keys there.
func connections(fleet *sim.Fleet, c *Costs) []int {
	all := make([]int, max(fleet.Masters, 1))
	on := sim.MastersOf(fleet)
	for i := range fleet.Clients {
		each := 1
		if fleet.Clients[i].Scheme != model.Legacy {
			each = c.Members.Connections
		}
		for _, m := range on[i] {
			all[m] += each
		}
	}
	return all
}

func (u *Usage) add(v Usage) {
	u.Commands += v.Commands
	u.CPU += v.CPU
	u.Scripts += v.Scripts
	u.Messages += v.Messages
	u.Connections += v.Connections
	u.Memory += v.Memory
}

func (u *Usage) most(v Usage) {
	u.Commands = max(u.Commands, v.Commands)
	u.CPU = max(u.CPU, v.CPU)
	u.Scripts = max(u.Scripts, v.Scripts)
	u.Messages = max(u.Messages, v.Messages)
	u.Connections = max(u.Connections, v.Connections)
	u.Memory = max(u.Memory, v.Memory)
}

// keyFull is the share of time from which on a key counts as always held: who asks for it waits for all before.
const keyFull = 0.9

// first finds the limit that comes first.
func (s *Stage) first(l *Limits) {
	for i := range s.Rows {
		row := &s.Rows[i]
		if row.Skipped != "" {
			continue
		}
		used := []struct {
			what  string
			share float64
		}{
			{"processor", row.Server.CPU / l.CPU},
			{"connections", float64(row.Server.Connections) / float64(l.Connections)},
			{"the key " + row.Busiest, row.KeyHeld / keyFull},
			{"memory", 0},
		}
		if l.Memory > 0 {
			used[3].share = row.Server.Memory / float64(l.Memory)
		}
		worst := used[0]
		for _, u := range used {
			if u.share > worst.share {
				worst = u
			}
		}
		if worst.share <= 0 {
			continue
		}
		s.First, s.FirstAt, s.Certain = worst.what, float64(row.Factor)/worst.share, worst.share >= 1
		if s.Certain {
			return
		}
	}
}
