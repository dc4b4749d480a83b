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

// runs is how many seeds Play tries.
const runs = 8

// Play runs a fleet with 8 seeds, and draws the first run that breaks, or else the first.
func Play(s Settings) (*Run, error) {
	_, f, err := s.fleet()
	if err != nil {
		return nil, err
	}
	sum := sim.RunAll(f, 1, runs, nil)
	r := look(f, max(sum.FirstSeed, 1))
	r.Runs, r.Turns, r.Seconds = sum.Runs, sum.Turns, int64(sum.Simulated/time.Second)
	return r, nil
}

// predicted is what Broken adds to a cell that the closed form says breaks.
const predicted = 8

// Broken plays a fleet once for each of three seeds: a cell of the map is how many of them broke.
func Broken(s Settings) (int, error) {
	cell, f, err := s.fleet()
	if err != nil {
		return 0, err
	}
	broken := sim.RunAll(f, 1, 3, nil).Broken
	if cell.Breaks() {
		broken += predicted
	}
	return broken, nil
}
