package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// simulateFlags are the flags of simulate.
type simulateFlags struct {
	schemes           []string
	skew, lease, hold string
	runs              int
	seed              uint64
	scenario          string
	run               time.Duration
	as                string
	shrink            bool
}

func newSimulateCommand(env *environment) *cobra.Command {
	var flags simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate [flags]",
		Short: "Show where clock skew and other faults break each scheme, and how",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.shrink && flags.as == "" {
				return usageError("give --as too, such as --as story", "--shrink has no part in a sweep")
			}
			switch {
			case flags.scenario != "":
				return flags.ofScenario(cmd, env)
			case flags.as != "":
				return flags.ofCell(cmd, env)
			case flags.run != 0:
				return usageError("give --scenario", "--run has no part in a sweep: a run lasts four leases of its cell")
			}
			return runSimulate(cmd.Context(), env, &flags)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&flags.schemes, "scheme", nil, "the fleets to compare: `NAME`,... (default all: legacy, mixed-25, mixed-50, mixed-75, bridge, modern)")
	f.StringVar(&flags.skew, "skew", "", "by how much one clock is ahead: `FROM:TO:STEP`, or one value (default -12s:12s:1s)")
	f.StringVar(&flags.lease, "lease", "", "the leases of the first map: `FROM:TO:STEP`, or one value, which the second map has too (default 3s:12s:1s)")
	f.StringVar(&flags.hold, "hold", "", "the hold times of the second map: `FROM:TO:STEP`, or one value, which the first map has too (default 1s:12s:1s)")
	f.IntVar(&flags.runs, "runs", 5, "how many seeds to run, in each cell or of the scenario")
	f.Uint64Var(&flags.seed, "seed", 1, "the first seed")
	f.StringVar(&flags.scenario, "scenario", "", "run the fleet that a `FILE` describes instead")
	choose(cmd, &flags.as, "as", "show one run of a scenario or of a cell: as a `FORM`, story, or a scenario that plays it again", forms...)
	f.BoolVar(&flags.shrink, "shrink", false, "with --as: cut a run that breaks down to what it needs")
	f.DurationVar(&flags.run, "run", 0, "with --scenario: how much of the fleet's time to play (0: as long as the file says)")
	completes(cmd, "scheme", func() []string { return sim.Schemes })
	return cmd
}

// unused refuses flags that were given and have no part in what is asked for.
func unused(cmd *cobra.Command, why string, used ...string) error {
	rest := slices.DeleteFunc(given(cmd), func(flag string) bool { return slices.Contains(used, strings.TrimPrefix(flag, "--")) })
	if len(rest) > 0 {
		return usageError("leave it out", "%s has no part in a run of %s", strings.Join(rest, ", "), why)
	}
	return nil
}

// ofScenario plays a scenario: all its seeds, or one of them to be shown.
func (f *simulateFlags) ofScenario(cmd *cobra.Command, env *environment) error {
	used := []string{"scenario", "seed", "runs", "run"}
	if f.as != "" {
		used = []string{"scenario", "seed", "run", "as", "shrink"}
	}
	if err := unused(cmd, "--scenario: the file says all of it", used...); err != nil {
		return err
	}
	s, err := readScenario(f.scenario)
	switch {
	case err != nil:
		return err
	case f.run > 1000*time.Hour:
		return usageError("give up to 1000h", "--run %v", f.run)
	case f.run > 0:
		s.Fleet.Until = f.run
	}
	if cmd.Flags().Changed("seed") {
		s.Seed = f.seed
	}
	if cmd.Flags().Changed("runs") {
		s.Seeds = f.runs
	}
	if f.as != "" {
		return showRun(env, s, f.as, f.shrink)
	}
	return runScenario(env, s, f.scenario)
}

// ofCell shows one run of one cell of a sweep.
func (f *simulateFlags) ofCell(cmd *cobra.Command, env *environment) error {
	if err := unused(cmd, "--as: it shows one cell", "scheme", "skew", "lease", "hold", "seed", "as", "shrink"); err != nil {
		return err
	}
	usual := sim.StandardGrid()
	f.skew, f.lease, f.hold = cmp.Or(f.skew, "0s"), cmp.Or(f.lease, usual.Lease.String()), cmp.Or(f.hold, usual.Hold.String())
	g, err := f.grid()
	if err != nil {
		return err
	}
	if len(g.Schemes) != 1 || len(g.Skews) != 1 || len(g.Leases) != 1 || len(g.Holds) != 1 {
		return usageError("give one --scheme and one --skew, --lease and --hold, such as --scheme legacy --skew 9s; or --scenario FILE", "--as shows one run")
	}
	cell := g.Cells()[0]
	return showRun(env, &sim.Scenario{Fleet: *cell.Fleet(), Seed: f.seed, Seeds: 1}, f.as, f.shrink)
}

// grid checks the flags and makes the axes.
func (f *simulateFlags) grid() (g sim.Grid, err error) {
	g = sim.StandardGrid()
	for _, name := range f.schemes {
		if !slices.Contains(sim.Schemes, name) {
			return g, usageError(oneOf(sim.Schemes), "no scheme is named %q", name)
		}
		g.Schemes = f.schemes
	}
	for _, axis := range []struct {
		flag, text string
		to         *[]time.Duration
	}{{"skew", f.skew, &g.Skews}, {"lease", f.lease, &g.Leases}, {"hold", f.hold, &g.Holds}} {
		if axis.text == "" {
			continue
		}
		if *axis.to, err = steps(axis.flag, axis.text); err != nil {
			return g, err
		}
	}
	if f.runs < 1 || f.runs > 1_000_000 {
		return g, usageError("give 1 to 1000000", "--runs %d", f.runs)
	}
	if len(g.Leases) == 1 {
		g.Lease = g.Leases[0]
	}
	if len(g.Holds) == 1 {
		g.Hold = g.Holds[0]
	}
	for _, c := range g.Cells() {
		if err := c.Validate(); err != nil {
			return g, usageError("see the flags of simulate", "%w", err)
		}
	}
	return g, nil
}

// steps reads FROM:TO:STEP, or a single duration.
func steps(flag, text string) ([]time.Duration, error) {
	var values []time.Duration
	wrong := usageError("write FROM:TO:STEP such as -10s:10s:1s, with at most 1,000 steps", "--%s cannot be %s", flag, shown(text))
	for part := range strings.SplitSeq(text, ":") {
		d, err := time.ParseDuration(part)
		if err != nil {
			return nil, wrong
		}
		values = append(values, d)
	}
	switch {
	case len(values) == 1:
		return values, nil
	case len(values) == 3 && values[2] > 0 && values[0] <= values[1] && (values[1]-values[0])/values[2] < 1000:
		return sim.Range(values[0], values[1], values[2]), nil
	}
	return nil, wrong
}

func runSimulate(ctx context.Context, env *environment, flags *simulateFlags) error {
	axes, err := flags.grid()
	if err != nil {
		return err
	}
	cells := len(axes.Cells())
	status := env.status()
	defer status.Clear()
	start := env.now()
	r, err := axes.Run(ctx, flags.runs, flags.seed, func(done int) {
		status.Update("simulate %s %s of %s cells%s", bar(float64(done)/float64(cells)), thousands(int64(done)), thousands(int64(cells)), timeLeft(env.now().Sub(start), done, cells))
	})
	if err != nil {
		return err
	}
	wall := env.now().Sub(start)
	status.Clear()
	if err := env.print(sweepJSON(r, wall), func(b *strings.Builder) { sweepText(b, env, r, wall) }); err != nil {
		return err
	}
	for i := range r.Outcomes {
		if o := &r.Outcomes[i]; o.Unpromised() > 0 {
			return unsafeError(o.PlayCommand(), "%s broke where it promises not to", o.Scheme)
		}
	}
	return nil
}

func sweepText(b *strings.Builder, env *environment, r *sim.Report, wall time.Duration) {
	ink := env.ink()
	t := newTable("SCHEME", "BREAKS AT|wrap", "PREDICTED|wrap", "BROKEN CELLS|right wrap", "OVERLAPS|right", "AGAINST THE PROMISE|right wrap")
	for _, row := range r.Rows {
		against := ink.Good("0")
		if row.Unpromised > 0 {
			against = ink.Bad(thousands(row.Unpromised))
		}
		t.Row(row.Scheme, row.Breaks, row.Predicted, fmt.Sprintf("%d of %d", row.Broken, row.Cells), thousands(row.Overlaps), against)
	}
	b.WriteString(t.Render(env.screen(), ink))
	fmt.Fprintf(b, "\nbreaks at: the least skew of one clock, lease %v, hold %v; the closed form: more than lease - hold\n", r.Grid.Lease, r.Grid.Hold)
	if o := smallestBreak(r); o != nil {
		fmt.Fprintf(b, "see one:   %s --shrink\n", o.PlayCommand())
	}
	fmt.Fprintf(b, "seed %d, trace %016x: %s server operations in %s of virtual time, %.1fs (%s a second)\n", r.Seed, r.Hash,
		thousands(r.Ops), short(r.Simulated), wall.Seconds(), thousands(perSecond(r.Ops, wall)))
}

// smallestBreak finds the break with the least skew at the sweep's own lease and hold time.
func smallestBreak(r *sim.Report) *sim.Outcome {
	var best *sim.Outcome
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Broken > 0 && o.Lease == r.Grid.Lease && o.Hold == r.Grid.Hold && (best == nil || o.Skew.Abs() < best.Skew.Abs()) {
			best = o
		}
	}
	return best
}

// sweepCell is one cell in JSON.
type sweepCell struct {
	Scheme       string           `json:"scheme"`
	SkewMS       int64            `json:"skew_ms"`
	LeaseMS      int64            `json:"lease_ms"`
	HoldMS       int64            `json:"hold_ms"`
	Runs         int              `json:"runs"`
	BrokenRuns   int              `json:"broken_runs"`
	Acquisitions int64            `json:"acquisitions"`
	Overlaps     int64            `json:"overlaps"`
	Hazards      map[string]int64 `json:"hazards"`
	Predicted    string           `json:"predicted"`
	Replay       string           `json:"replay,omitempty"`
}

func sweepJSON(r *sim.Report, wall time.Duration) any {
	cells := make([]sweepCell, len(r.Outcomes))
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		cells[i] = sweepCell{
			o.Scheme, o.Skew.Milliseconds(), o.Lease.Milliseconds(), o.Hold.Milliseconds(), o.Runs, o.Broken,
			o.Acquisitions, o.Overlaps, hazardCounts(&o.Tally), map[bool]string{true: "breaks", false: "holds"}[o.Breaks()], "",
		}
		if o.Broken > 0 {
			cells[i].Replay = o.PlayCommand()
		}
	}
	return struct {
		Seed          uint64      `json:"seed"`
		TraceHash     string      `json:"trace_hash"`
		Cells         []sweepCell `json:"cells"`
		Ops           int64       `json:"ops"`
		OpsPerSecond  int64       `json:"ops_per_second"`
		SimulatedSecs float64     `json:"simulated_seconds"`
		WallSecs      float64     `json:"wall_seconds"`
	}{r.Seed, fmt.Sprintf("%016x", r.Hash), cells, r.Ops, perSecond(r.Ops, wall), r.Simulated.Seconds(), wall.Seconds()}
}

// hazardCounts names the hazards that were seen.
func hazardCounts(t *sim.Tally) map[string]int64 {
	counts := map[string]int64{}
	for h, n := range t.Hazards {
		if n > 0 {
			counts[sim.Hazard(h).String()] = n
		}
	}
	return counts
}

// forms are how simulate shows one run.
var forms = []string{"story", "scenario"}

// showRun plays one seed of a fleet and shows it: as a story, or as a scenario that plays it again.
func showRun(env *environment, s *sim.Scenario, as string, shrink bool) error {
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
		out := sim.Scenario{Purpose: s.Purpose, Fleet: *fleet, Seed: s.Seed, Seeds: s.Seeds, Expect: s.Expect}
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
