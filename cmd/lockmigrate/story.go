package main

import (
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/report"
	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// forms are how simulate shows one run.
var forms = []string{"story", "trace", "scenario"}

// showRun plays one seed of a fleet and shows it: as sentences, command by command, or as a scenario that plays it again.
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
		fleet, seed = sim.NewShrinker(w, 100*time.Millisecond).Shrink(planned), 0
	}
	if as == "scenario" && !env.global.json {
		out := scenario.Scenario{Purpose: s.Purpose, Fleet: *fleet, Seed: s.Seed, Seeds: s.Seeds, Expect: s.Expect}
		_, err := fmt.Fprint(env.stdout, out.Format())
		return err
	}
	records, result := report.Trace(w, fleet, seed)
	if env.global.json {
		return env.encode(traceJSON(fleet, records, &result))
	}
	for i := range records {
		if as == "trace" {
			fmt.Fprintln(env.stdout, report.TraceLine(fleet, &records[i]))
		} else if sentence := report.Sentence(fleet, &records[i]); sentence != "" {
			fmt.Fprintf(env.stdout, "%9.3fs  %s\n", time.Duration(records[i].At).Seconds(), sentence)
		}
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

func traceJSON(f *sim.Fleet, records []sim.Record, result *sim.Result) any {
	steps := make([]traceStep, len(records))
	for i := range records {
		r := &records[i]
		steps[i] = traceStep{
			AtUS: int64(r.At) / 1000, Client: report.Who(f, int(r.Client)), What: r.Kind.String(),
			Sentence: report.Sentence(f, r), ClockUS: r.Error.Microseconds(),
		}
		if r.Kind == sim.Executes {
			steps[i].Command, steps[i].Reply = model.SayCommand(&r.Command), report.Reply(&r.Command, &r.Reply)
		}
	}
	return struct {
		Seed      uint64      `json:"seed"`
		TraceHash string      `json:"trace_hash"`
		Overlaps  int64       `json:"overlaps"`
		Ops       int64       `json:"ops"`
		Steps     []traceStep `json:"steps"`
	}{result.Seed, fmt.Sprintf("%016x", result.Hash), result.Overlaps, result.Ops, steps}
}
