// Package playground plays fleets for a page on which a reader moves sliders: package main of cmd/playground compiles it to WebAssembly, so
// that the shipped protocol runs in the reader's browser. It says what happened in figures; the page has the words.
package playground

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
	"github.com/lockmigrate/lockmigrate/internal/simulate/report"
	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
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

// fleet makes the fleet, or says what is wrong with the settings.
func (s *Settings) fleet() (*sim.Fleet, error) {
	setting := sim.StandardSetting()
	setting.Clients = s.Clients
	setting.Client.Poll = ms(s.PollMS)
	cell := sim.Cell{Scheme: s.Scheme, Skew: ms(s.SkewMS), Lease: ms(s.LeaseMS), Hold: ms(s.HoldMS), Setting: setting}
	if err := cell.Validate(); err != nil {
		return nil, err
	}
	if s.PollMS < 1 || s.PauseMS < 0 || s.Failover < 0 {
		return nil, errors.New("a poll must be above zero, pauses and failovers not below")
	}
	if s.PauseMS > 0 {
		setting.Client.Chaos.PauseEvery = sim.Uniform(cell.Lease/2, 2*cell.Lease)
		setting.Client.Chaos.Pause = sim.Uniform(ms(s.PauseMS)/2, ms(s.PauseMS))
	}
	f := cell.Fleet()
	if s.Failover > 0 {
		f.Server.FailoverEvery, f.Server.Outage, f.Server.Behind = sim.Uniform(cell.Lease/2, 2*cell.Lease), sim.Fixed(ms(200)), sim.Fixed(ms(s.Failover))
	}
	return f, nil
}

// runs is how many seeds Play tries at most.
const runs = 8

// Played is one run: the first that breaks, or else the first.
type Played struct {
	Wide     string `json:"wide"`  // a picture for a screen
	Phone    string `json:"phone"` // ... and for a phone
	Seed     uint64 `json:"seed"`
	Runs     int    `json:"runs"`     // that were tried
	Turns    int64  `json:"turns"`    // in all of them
	Seconds  int64  `json:"seconds"`  // of the fleet's time, in all of them
	Break    *Break `json:"break"`    // nil: nobody came in beside another
	Scenario string `json:"scenario"` // a file for lockmigrate simulate --scenario
}

// Break is the moment at which a second holder comes in.
type Break struct {
	AtMS   int64  `json:"at"`
	Inside Holder `json:"inside"`
	Second Holder `json:"second"`
	Cause  string `json:"cause"` // of forecast.Cause
}

// Holder is one of the two.
type Holder struct {
	Name    string `json:"name"`
	ClockMS int64  `json:"clock"` // how far its clock is ahead
	LeftMS  int64  `json:"left"`  // of its lease in true time; below 0: it is over for so long
}

// Play runs a fleet, with up to 8 seeds until one breaks.
func Play(s Settings) (*Played, error) {
	f, err := s.fleet()
	if err != nil {
		return nil, err
	}
	w, p := new(sim.World), &Played{Seed: 1}
	for seed := uint64(1); seed <= runs && p.Break == nil; seed++ {
		r := w.Run(f, seed)
		p.Runs++
		p.Turns += r.Turns
		p.Seconds += int64(r.Simulated / time.Second)
		if r.Overlaps > 0 {
			p.Seed, p.Break = seed, &Break{}
		}
	}
	records, _ := report.Trace(w, f, p.Seed)
	if p.Break != nil {
		p.Break.of(f, records)
	}
	p.Wide, p.Phone = report.Pictures(f, records)
	expect := scenario.Expectation{What: "overlaps", Op: "="}
	if p.Break != nil {
		expect.Op = ">"
	}
	out := scenario.Scenario{Purpose: []string{"made on the playground"}, Fleet: *f, Seed: p.Seed, Seeds: 1, Expect: []scenario.Expectation{expect}}
	p.Scenario = out.Format()
	return p, nil
}

// of finds the moment and its cause.
func (b *Break) of(f *sim.Fleet, records []sim.Record) {
	judge := forecast.NewJudge(f)
	leases, clocks := make([]time.Duration, len(f.Clients)), make([]time.Duration, len(f.Clients))
	for i := range records {
		r := &records[i]
		judge.See(r)
		if r.Client >= 0 {
			clocks[r.Client] = r.Error
		}
		if r.Kind == sim.Enters {
			leases[r.Client] = time.Duration(r.Lease)
		}
		if r.Kind != sim.Overlaps {
			continue
		}
		b.AtMS = time.Duration(r.At).Milliseconds()
		holder := func(i int32) Holder {
			return Holder{f.Clients[i].Name, clocks[i].Round(time.Millisecond).Milliseconds(), (leases[i] - time.Duration(r.At)).Milliseconds()}
		}
		b.Inside, b.Second = holder(r.Other), holder(r.Client)
		break
	}
	for cause, n := range judge.Causes {
		if n > 0 {
			b.Cause = fmt.Sprint(forecast.Cause(cause))
		}
	}
}

// Broken plays a fleet once for each of three seeds, and returns how many of the runs broke: a cell of the map.
func Broken(s Settings) (broken int, err error) {
	f, err := s.fleet()
	if err != nil {
		return 0, err
	}
	w := new(sim.World)
	for seed := uint64(1); seed <= 3; seed++ {
		if w.Run(f, seed).Overlaps > 0 {
			broken++
		}
	}
	return broken, nil
}
