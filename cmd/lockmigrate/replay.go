package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/simulate/explore"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/report"
	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	fleetFlags
	scheme, claim     string
	skew, lease, hold time.Duration
	seed              uint64
	shrink            bool
	as                string
}

func newReplayCommand(env *environment) *cobra.Command {
	flags := replayFlags{as: "trace"}
	cmd := &cobra.Command{
		Use:   "replay [FILE] [flags]",
		Short: "Show one simulated run again, from a file or a seed",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.check(cmd, args); err != nil {
				return err
			}
			if flags.claim != "" {
				return runExplore(cmd.Context(), env, exploreFlags{claims: []string{flags.claim}, trace: true, states: explore.DefaultStates})
			}
			flags.remembered = !cmd.Flags().Changed("failover-every")
			s, err := flags.scenario(env, args)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("seed") {
				s.Seed = flags.seed
			}
			return runReplay(env, s, &flags)
		},
	}
	f := cmd.Flags()
	choose(cmd, &flags.scheme, "scheme", "the `NAME` of a cell's fleet, as in simulate; clobber is the break that needs no skew", append(slices.Clone(sim.Schemes), "clobber")...)
	f.StringVar(&flags.claim, "claim", "", "the counterexample of a claim of explore, by its `ID`")
	f.DurationVar(&flags.skew, "skew", 0, "the cell's skew")
	mayBeNegative(f, "skew")
	f.DurationVar(&flags.lease, "lease", 10*time.Second, "the cell's lease")
	f.DurationVar(&flags.hold, "hold", 2*time.Second, "the cell's hold time")
	f.Uint64Var(&flags.seed, "seed", 1, "the run's seed")
	f.BoolVar(&flags.shrink, "shrink", false, "cut a run that breaks down to what it needs")
	completes(cmd, "claim", claimNames)
	choose(cmd, &flags.as, "as", "`FORM`: trace, story, timeline, scenario", "trace", "story", "timeline", "scenario")
	flags.fleetFlags.add(f)
	completes(cmd, "dialect", dialectNames)
	return cmd
}

// check refuses flags that have no part in the run that is asked for.
func (f *replayFlags) check(cmd *cobra.Command, args []string) error {
	asked := given(cmd, "scheme", "claim")
	if len(args) == 1 {
		asked = append(asked, "a FILE")
	}
	switch {
	case len(asked) > 1:
		return usageError("give one of them", "%s exclude each other", strings.Join(asked, " and "))
	case f.claim != "":
		return unused(cmd, "--claim: its only form is the trace", "claim")
	case f.scheme == "clobber":
		return unused(cmd, "--scheme clobber: its run is known, and the smallest", "scheme", "as")
	case len(args) == 1 && isProfile(args[0]):
		return unused(cmd, "a profile: the fleet is the one that was observed", append([]string{"seed", "shrink", "as", "lease", "hold", "dialect", "latency", "lose",
			"pause-every", "pause", "crash-every", "step-every", "step"}, ofProfile...)...)
	case len(args) == 1:
		return unused(cmd, "a scenario: the file says all of it", "seed", "shrink", "as")
	}
	if flags := given(cmd, ofProfile...); len(flags) > 0 {
		return usageError("give a profile, or write it into a scenario", "%s has no part in a cell of simulate", flags[0])
	}
	return nil
}

// scenario finds the run to be shown.
func (f *replayFlags) scenario(env *environment, args []string) (*scenario.Scenario, error) {
	if len(args) == 1 && isProfile(args[0]) {
		s, err := readProfile(env, args[0], &f.fleetFlags, f.lease, f.hold)
		if err != nil {
			return nil, err
		}
		s.Seed = f.seed
		s.Fleet.Masters = 0 // the run of one server is shown
		return &s.Scenario, nil
	}
	if len(args) == 1 {
		return readScenario(args[0])
	}
	if f.scheme == "" {
		return nil, usageError("name a FILE, --scheme with --seed, or --claim: lockmigrate replay --claim LLL-clobber shows one", "nothing to replay")
	}
	if f.scheme == "clobber" {
		run, ok := report.HuntClobber(new(sim.World), report.HuntSeeds)
		if !ok {
			return nil, failedError("this is a bug in the simulator", "no seed has the break that needs no skew")
		}
		return &scenario.Scenario{Fleet: *run.Fleet, Seed: 0, Seeds: 1}, nil
	}
	setting, err := f.setting()
	if err != nil {
		return nil, err
	}
	cell := sim.Cell{Scheme: f.scheme, Skew: f.skew, Lease: f.lease, Hold: f.hold, Setting: setting}
	if err := cell.Validate(); err != nil {
		return nil, usageError("see the flags of replay", "%w", err)
	}
	return &scenario.Scenario{Fleet: *cell.Fleet(), Seed: f.seed, Seeds: 1}, nil
}

func runReplay(env *environment, s *scenario.Scenario, flags *replayFlags) error {
	if s.Fleet.Masters > 1 {
		return usageError("leave out its line masters: then all keys are on one server", "replay shows the run of one server, and the fleet has %d masters", s.Fleet.Masters)
	}
	w := new(sim.World)
	fleet, seed := &s.Fleet, s.Seed
	if flags.shrink {
		planned, result := sim.Planned(w, fleet, seed)
		if result.Overlaps == 0 {
			return usageError("take a run with an overlap, such as another --seed", "this run does not break: there is nothing to shrink")
		}
		fleet = sim.NewShrinker(w, 100*time.Millisecond).Shrink(planned)
		seed = 0
	}
	records, result := report.Trace(w, fleet, seed)
	if env.global.json {
		return env.encode(traceJSON(fleet, records, &result))
	}
	switch flags.as {
	case "trace":
		for i := range records {
			fmt.Fprintln(env.stdout, report.TraceLine(fleet, &records[i]))
		}
	case "story":
		for i := range records {
			if sentence := report.Sentence(fleet, &records[i]); sentence != "" {
				fmt.Fprintf(env.stdout, "%9.3fs  %s\n", time.Duration(records[i].At).Seconds(), sentence)
			}
		}
	case "timeline":
		fmt.Fprint(env.stdout, report.TextTimeline(report.Draw(fleet, records), env.columns()))
	case "scenario":
		out := scenario.Scenario{Purpose: s.Purpose, Fleet: *fleet, Seed: s.Seed, Seeds: s.Seeds, Expect: s.Expect}
		fmt.Fprint(env.stdout, out.Format())
		return nil
	}
	_, err := fmt.Fprintf(env.stdout, "overlaps: %d   server operations: %d   trace: %016x\n", result.Overlaps, result.Ops, result.Hash)
	return err
}

// columns is how wide a picture in text may be.
func (env *environment) columns() int { return max(cmp.Or(env.screen(), 110), 60) }

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
