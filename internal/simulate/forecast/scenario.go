package forecast

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// StageNames are the stages at which a fleet can be asked about; the first is the fleet as it is.
func StageNames() (names []string) {
	for _, s := range stages {
		names = append(names, s.name)
	}
	return names
}

// FromProfile is the fleet that a profile describes, at a stage of its migration, as a scenario: all its clients and keys, with the
// figures as they were measured. What the profile says too little about is left out, and named.
func FromProfile(p profile.Profile, name string, failovers Failovers) (*sim.Scenario, []string, error) {
	f, err := fleetOf(p, true)
	if err != nil {
		return nil, nil, err
	}
	n := slices.IndexFunc(stages, func(s stage) bool { return s.name == name })
	if n < 0 {
		return nil, nil, fmt.Errorf("no stage is named %q", name)
	}
	o := Options{Failovers: failovers}
	o.failoversOf(f)
	s := &sim.Scenario{Seed: 1, Seeds: 1, Expect: []sim.Expectation{{What: "overlaps", Op: "=", N: 0}}}
	s.Fleet = sim.Fleet{Network: networkOf(p), Until: 10 * time.Minute, Masters: f.masters, Server: o.Failovers.server()}
	named := map[string]bool{}
	for _, g := range stages[n].of(f, nil) {
		for i := range g.actors {
			c := g.actors[i].plays()
			c.Key = "orders" // of no use: it has keys= of its own
			c.Owner = fmt.Sprintf("%08x-0000-4000-8000-000000000000", len(s.Fleet.Clients)+1)
			if c.Name = plainName(p.Clients[g.actors[i].client].Name); named[c.Name] {
				c.Name = fmt.Sprintf("%s.%d", c.Name, len(s.Fleet.Clients)+1)
			}
			if named[c.Name] = true; c.Behind != "" {
				c.Behind = c.Name
			}
			s.Fleet.Clients = append(s.Fleet.Clients, c)
		}
	}
	if len(s.Fleet.Clients) == 0 {
		return nil, f.notKnown, fmt.Errorf("the profile names no client that takes locks, or says too little about them: %s", strings.Join(f.notKnown, "; "))
	}
	return s, f.notKnown, nil
}

// plays is a client with the figures of its profile.
func (a *actor) plays() sim.Client {
	c := sim.Client{Member: a.member, Keys: a.keys, Offset: millis(a.skew), DriftPPM: int64(a.drift), Hold: measured(a.hold), Think: measured(a.think)}
	if len(c.Think) == 0 { // what is left of the time between two turns
		pause := millis(max(1000/a.perSecond-a.turn, 0))
		c.Think = sim.Uniform(pause/2, pause*3/2)
	}
	c.First = sim.Uniform(0, c.Think.Mean()+c.Hold.Mean())
	if a.crashed > 0 {
		c.Dies, c.Chaos.Restart = sim.PPM(1e6*a.crashed/max(a.acquired, 1)), sim.Uniform(time.Second, 3*time.Second)
	}
	return c
}

// measured is what observe saw, for the simulator.
func measured(seen profile.Spread) (d sim.Distribution) {
	for _, q := range seen.Quantiles {
		d = append(d, sim.Quantile{Permyriad: uint32(q.Share*10000 + 0.5), Value: millis(q.MS)})
	}
	return d
}

// server is a server that fails so.
func (f *Failovers) server() (s sim.Server) {
	if f.Every > 0 {
		s = sim.Server{FailoverEvery: around(f.Every), Outage: around(f.Outage), Behind: sim.Uniform(0, f.Behind)}
	}
	return s
}

// around is from half of a time to one and a half of it.
func around(d time.Duration) sim.Distribution { return sim.Uniform(d/2, d*3/2) }

// plainName replaces what means something to a scenario's reader.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || strings.ContainsRune("#*%@=", r) {
			return '-'
		}
		return r
	}, name)
}
