package main

import (
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// forms are how simulate shows one run.
var forms = []string{"story", "scenario"}

// showRun plays one seed of a fleet and shows it: as a story, or as a scenario that plays it again.
func showRun(env *environment, s *scenario.Scenario, as string, shrink bool) error {
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
	if as == "scenario" && !env.global.json {
		out := scenario.Scenario{Purpose: s.Purpose, Fleet: *fleet, Seed: s.Seed, Seeds: s.Seeds, Expect: s.Expect}
		_, err := fmt.Fprint(env.stdout, out.Format())
		return err
	}
	steps := []traceStep{}
	w.Trace = func(r *sim.Record) {
		if env.global.json {
			steps = append(steps, stepOf(fleet, r))
		} else if line := fleet.Line(r); line != "" {
			fmt.Fprintln(env.stdout, line)
		}
	}
	result := w.Run(fleet, seed)
	if env.global.json {
		return env.encode(traceJSON(steps, &result))
	}
	_, err := fmt.Fprintf(env.stdout, "overlaps: %d   server operations: %d   trace: %016x\n", result.Overlaps, result.Ops, result.Hash)
	return err
}

// traceStep is one record in JSON.
type traceStep struct {
	AtUS     int64  `json:"at_us"`
	Client   string `json:"client"`
	What     string `json:"what"`
	Sentence string `json:"sentence,omitempty"`
	Command  string `json:"command,omitempty"`
	Reply    string `json:"reply,omitempty"`
	ClockUS  int64  `json:"clock_error_us"`
}

func stepOf(f *sim.Fleet, r *sim.Record) traceStep {
	step := traceStep{AtUS: int64(r.At) / 1000, Client: f.Name(int(r.Client)), What: r.Kind.String(), Sentence: f.Sentence(r), ClockUS: r.Error.Microseconds()}
	if r.Kind == sim.Executes {
		step.Command, step.Reply = model.SayCommand(&r.Command), sim.Reply(&r.Command, &r.Reply)
	}
	return step
}

func traceJSON(steps []traceStep, result *sim.Result) any {
	return struct {
		Seed      uint64      `json:"seed"`
		TraceHash string      `json:"trace_hash"`
		Overlaps  int64       `json:"overlaps"`
		Ops       int64       `json:"ops"`
		Steps     []traceStep `json:"steps"`
	}{result.Seed, fmt.Sprintf("%016x", result.Hash), result.Overlaps, result.Ops, steps}
}
