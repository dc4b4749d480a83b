package main

import (
	"errors"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Settings are where the sliders stand; times are in milliseconds.
type Settings struct {
	Scheme   string `json:"scheme"` // of sim.Schemes
	Clients  int    `json:"clients"`
	SkewMS   int    `json:"skew"` // of one client's clock: a legacy one's where there is one
	LeaseMS  int    `json:"lease"`
	HoldMS   int    `json:"hold"`
	PollMS   int    `json:"poll"`
	PauseMS  int    `json:"pause"`    // each process now and then stops for up to this; 0: none does
	Failover int    `json:"failover"` // a replica that is so far behind takes over now and then; 0: none does
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// fleet makes the cell and its fleet, or says what is wrong with the settings.
func (s *Settings) fleet() (*sim.Cell, *sim.Fleet, error) {
	cell := sim.Cell{Scheme: s.Scheme, Skew: ms(s.SkewMS), Lease: ms(s.LeaseMS), Hold: ms(s.HoldMS), Clients: s.Clients, Poll: ms(s.PollMS)}
	if err := cell.Validate(); err != nil {
		return nil, nil, err
	}
	if s.PauseMS < 0 || s.Failover < 0 {
		return nil, nil, errors.New("pauses and failovers must not be below zero")
	}
	f, nowAndThen := cell.Fleet(), sim.Uniform(cell.Lease/2, 2*cell.Lease)
	for i := range f.Clients {
		if s.PauseMS > 0 {
			f.Clients[i].Chaos.PauseEvery, f.Clients[i].Chaos.Pause = nowAndThen, sim.Uniform(ms(s.PauseMS)/2, ms(s.PauseMS))
		}
	}
	if s.Failover > 0 {
		f.Server.FailoverEvery, f.Server.Outage, f.Server.Behind = nowAndThen, sim.Fixed(ms(200)), sim.Fixed(ms(s.Failover))
	}
	return &cell, f, nil
}

// runs is how many seeds Play tries at most.
const runs = 8

// Played is one run: the first that breaks, or else the first.
type Played struct {
	*Run
	Seed    uint64 `json:"seed"`
	Runs    int    `json:"runs"`    // that were tried
	Turns   int64  `json:"turns"`   // in all of them
	Seconds int64  `json:"seconds"` // of the fleet's time, in all of them
}

// Play runs a fleet, with up to 8 seeds until one breaks.
func Play(s Settings) (*Played, error) {
	_, f, err := s.fleet()
	if err != nil {
		return nil, err
	}
	w, p := new(sim.World), &Played{Seed: 1}
	for seed := uint64(1); seed <= runs; seed++ {
		r := w.Run(f, seed)
		p.Runs++
		p.Turns += r.Turns
		p.Seconds += int64(r.Simulated / time.Second)
		if r.Overlaps > 0 {
			p.Seed = seed
			break
		}
	}
	p.Run = look(w, f, p.Seed)
	return p, nil
}

// predicted is what Broken adds to a cell that the closed form says breaks.
const predicted = 8

// Broken plays a fleet once for each of three seeds: a cell of the map is how many of them broke.
func Broken(s Settings) (int, error) {
	cell, f, err := s.fleet()
	if err != nil {
		return 0, err
	}
	w, broken := new(sim.World), 0
	for seed := uint64(1); seed <= 3; seed++ {
		if w.Run(f, seed).Overlaps > 0 {
			broken++
		}
	}
	if cell.Breaks() {
		broken += predicted
	}
	return broken, nil
}
