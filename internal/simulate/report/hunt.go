package report

import (
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// ClobberFleet is a fleet of old clients whose clocks agree to the nanosecond and whose work never
// outlasts its lease. They find the value that a crashed holder left, and now and then a command takes
// long.
func ClobberFleet() *sim.Fleet {
	slow := sim.Distribution{{Permyriad: 0, Value: time.Millisecond}, {Permyriad: 8500, Value: 20 * time.Millisecond},
		{Permyriad: 9000, Value: time.Second}, {Permyriad: 10000, Value: 2500 * time.Millisecond}}
	f := &sim.Fleet{
		Network: sim.Network{Request: slow, Reply: sim.Fixed(time.Millisecond), Timeout: 10 * time.Second},
		Until:   20 * time.Second, Stop: true,
	}
	left, _ := protocol.JedisMS.Expiry(sim.Epoch.Add(-time.Second), 0, "")
	f.Opening = []model.Entry{{Key: "orders", Value: left}}
	for i := range 3 {
		f.Clients = append(f.Clients, sim.Client{
			Member: model.Member{
				Name: fmt.Sprintf("legacy-%d", i+1), Scheme: model.Legacy, Dialect: protocol.JedisMS, Key: "orders",
				Lease: 6 * time.Second, Poll: 300 * time.Millisecond, Patience: time.Hour,
			},
			Hold: sim.Uniform(time.Second, 5*time.Second), Think: sim.Uniform(0, 3*time.Second), First: sim.Uniform(0, 5*time.Second),
			Turns: 2,
		})
	}
	return f
}

// OnlyAClobber tells that a run broke, and that nothing but a clobber that shortened a lease explains it.
func OnlyAClobber(r *sim.Result) bool {
	h := &r.Hazards
	return r.Overlaps > 0 && h[sim.ClobberShorter] > 0 &&
		h[sim.EarlyTakeover]+h[sim.DoubleWin]+h[sim.Overrun]+h[sim.StaleDelete]+h[sim.UnitMismatch]+h[sim.LostUpdate] == 0
}

// HuntClobber looks for that break, seed by seed, shrinks the runs that have it, and returns the
// smallest. ok is false when none of the seeds has it.
func HuntClobber(w *sim.World, seeds uint64) (found Run, ok bool) {
	fleet := ClobberFleet()
	var small *sim.Fleet
	for seed, left := uint64(0), 40; seed < seeds && left > 0; seed++ {
		if r := w.Run(fleet, seed); !OnlyAClobber(&r) {
			continue
		}
		left--
		planned, _ := sim.Planned(w, fleet, seed)
		s := sim.NewShrinker(w, skewStep)
		s.Breaks = OnlyAClobber
		if candidate := s.Shrink(planned); small == nil || sim.WeightOf(candidate).Less(sim.WeightOf(small)) {
			small = candidate
		}
	}
	if small == nil {
		return Run{}, false
	}
	records, _ := Trace(w, small, 0)
	text := scenario.Scenario{
		Purpose: []string{"Clocks agree, nobody overruns: a loser's GETSET shortens the winner's lease."},
		Fleet:   *small, Seed: 1, Seeds: 1,
		Expect: []scenario.Expectation{{What: "overlaps", Op: ">", N: 0}, {What: "clobber-shorter", Op: ">", N: 0}},
	}
	return Run{
		ID: "clobber", Fleet: small, Records: records, Scenario: text.Format(),
		Title:  fmt.Sprintf("legacy, clocks agree, nobody overruns: a clobber shortens the lease (%d clients)", len(small.Clients)),
		Replay: "lockmigrate simulate --scheme clobber --as story",
	}, true
}
