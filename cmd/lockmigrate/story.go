package main

import (
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// forms are how simulate shows one run.
var forms = []string{"story", "scenario"}

// showRun plays one seed of a fleet and shows it: as a story, or as a scenario that plays it again.
func showRun(env *environment, s *scenario.Scenario, as string, shrink bool) error {
	if env.global.json {
		return usageError("leave it out, or --as, for the figures of all runs", "--json has no part in a run of --as")
	}
	if s.Fleet.Masters > 1 {
		return usageError("leave out its line masters: then all keys are on one server", "--as shows the run of one server, and the fleet has %d masters", s.Fleet.Masters)
	}
	w := new(sim.World)
	fleet, seed := &s.Fleet, s.Seed
	if shrink {
		planned, result := sim.Planned(w, fleet, seed)
		if result.Overlaps == 0 {
			return usageError("take a run with an overlap, such as another --seed", "this run does not break: there is nothing to shrink")
		}
		fleet, seed = sim.Shrink(w, planned, 100*time.Millisecond), 0
	}
	if as == "scenario" {
		out := scenario.Scenario{Purpose: s.Purpose, Fleet: *fleet, Seed: s.Seed, Seeds: s.Seeds, Expect: s.Expect}
		_, err := fmt.Fprint(env.stdout, out.Format())
		return err
	}
	w.Trace = func(r *sim.Record) {
		if line := fleet.Line(r); line != "" {
			fmt.Fprintln(env.stdout, line)
		}
	}
	result := w.Run(fleet, seed)
	_, err := fmt.Fprintf(env.stdout, "overlaps: %d   server operations: %d   trace: %016x\n", result.Overlaps, result.Ops, result.Hash)
	return err
}
