package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
	"github.com/lockmigrate/lockmigrate/internal/simulate/load"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// loadFlags are the flags of a forecast of the servers' load, which simulate and forecast share.
type loadFlags struct {
	on          bool
	times       []int
	masters     int
	cpu         float64
	connections int
	memory      int64
	family      func(key string) string // of a profile's key; nil: the key
}

// loadNames are their names.
var loadNames = []string{"load", "times", "masters", "max-cpu", "maxclients", "maxmemory"}

func (f *loadFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "load", false, "say what each stage costs each server, and which limit comes first")
	flags.IntSliceVar(&f.times, "times", []int{1, 10, 100}, "with --load: how many times the clients, on the same keys: `N`,...")
	flags.IntVar(&f.masters, "masters", 0, "with --load or --profile: spread the keys over this many masters (0: as many as the file says, or 1)")
	flags.Float64Var(&f.cpu, "max-cpu", 0.7, "with --load: the part of one core that a server may use")
	flags.IntVar(&f.connections, "maxclients", 10_000, "with --load: a server's maxclients")
	flags.Int64Var(&f.memory, "maxmemory", 0, "with --load: a server's maxmemory in bytes (0: no limit)")
}

// check refuses what cannot be meant.
func (f *loadFlags) check(cmd *cobra.Command) error {
	if !f.on {
		for _, flag := range given(cmd, loadNames...) {
			if flag != "--masters" || !cmd.Flags().Changed("profile") {
				return usageError("give --load too", "%s has no part in a run without --load", flag)
			}
		}
		return f.checkMasters()
	}
	if flags := given(cmd, append([]string{"check-determinism"}, ofProfile...)...); len(flags) > 0 {
		return usageError("leave it out", "%s has no part in --load", flags[0])
	}
	for _, n := range f.times {
		if n < 1 || n > 1_000_000 {
			return usageError("give 1 to 1000000", "--times %d", n)
		}
	}
	switch {
	case !(f.cpu > 0 && f.cpu <= 1):
		return usageError("give more than 0, and at most 1", "--max-cpu %g", f.cpu)
	case f.connections < 1:
		return usageError("give at least 1", "--maxclients %d", f.connections)
	}
	return f.checkMasters()
}

func (f *loadFlags) checkMasters() error {
	if f.masters > 1024 {
		return usageError("give up to 1024", "--masters %d", f.masters)
	}
	return nil
}

// runLoad says what a fleet's stages cost its servers.
func runLoad(env *environment, fleet *sim.Fleet, f *loadFlags, seed uint64, workers int) error {
	spread := *fleet
	if f.masters > 0 {
		spread.Masters = f.masters
	}
	status := env.status()
	defer status.Clear()
	r, err := load.Forecast(&spread, load.Options{
		Factors: f.times, Limits: load.Limits{CPU: f.cpu, Connections: f.connections, Memory: f.memory}, Seed: seed, Workers: workers, Family: f.family,
		Progress: func(stage string, factor int) {
			status.Update(func() string { return fmt.Sprintf("%s, %d times the clients", stage, factor) })
		},
	})
	if err != nil {
		return usageError("give a profile of observe, or a scenario with old clients and without turn lines", "--load: %w", err)
	}
	status.Clear()
	return env.print(r, func(b *strings.Builder) { loadText(b, env, r) })
}

func loadText(b *strings.Builder, env *environment, r *load.Report) {
	t := terminal.NewTable(terminal.Column{Head: "STAGE"}, terminal.Column{Head: "TIMES", Right: true}, terminal.Column{Head: "CLIENTS", Right: true},
		terminal.Column{Head: "LOCKS/S", Right: true, Spare: true}, terminal.Column{Head: "MEAN WAIT", Right: true, Wrap: true}, terminal.Column{Head: "COMMANDS/S", Right: true},
		terminal.Column{Head: "CPU", Right: true}, terminal.Column{Head: "CONNECTIONS", Right: true}, terminal.Column{Head: "MEMORY", Right: true},
		terminal.Column{Head: "SCRIPTS", Right: true, Spare: true}, terminal.Column{Head: "MESSAGES/S", Right: true, Spare: true})
	skipped := ""
	for i := range r.Stages {
		s := &r.Stages[i]
		for _, row := range s.Rows {
			factor, clients, u := fmt.Sprint(row.Factor), forecast.Number(float64(row.Clients)), &row.Server
			if row.Skipped != "" {
				t.Row(s.Name, factor, clients, "-", "-", "-", "-", "-", "-", "-", "-")
				skipped = cmp.Or(skipped, fmt.Sprintf("%s times: %s\n", factor, row.Skipped))
				continue
			}
			t.Row(s.Name, factor, clients, forecast.Number(row.Acquired), short(row.MeanWait), forecast.Number(u.Commands), percent(u.CPU), forecast.Number(float64(u.Connections)), mebibytes(u.Memory), percent(u.Scripts), forecast.Number(u.Messages))
		}
	}
	b.WriteString(t.Render(env.screen(), env.ink()))
	servers := "the server's"
	if r.Masters > 1 {
		servers = fmt.Sprintf("of the busiest of %d masters", r.Masters)
	}
	fmt.Fprintf(b, "\nCLIENTS, LOCKS/S and MEAN WAIT are the fleet's; the other columns are %s. CPU and SCRIPTS are of one core.\n", servers)
	fmt.Fprintf(b, "limits of a server: %.0f %% of a core, %s connections", 100*r.Limits.CPU, forecast.Number(float64(r.Limits.Connections)))
	if r.Limits.Memory > 0 {
		b.WriteString(", " + mebibytes(float64(r.Limits.Memory)))
	}
	b.WriteByte('\n')
	for i := range r.Stages {
		fmt.Fprintf(b, "  %-13s %s\n", r.Stages[i].Name, firstLimit(&r.Stages[i]))
	}
	fmt.Fprintf(b, "%sunit costs: %s on %s, %s; docs/scale.md shows them\n", skipped, r.Costs.Server, r.Costs.Machine, r.Costs.Measured)
}

func firstLimit(s *load.Stage) string {
	if s.First == "" {
		return "no limit is in sight"
	}
	return fmt.Sprintf("%s, at about %s times this fleet%s", s.First, forecast.Number(s.FirstAt), map[bool]string{false: " if it goes on growing so"}[s.Certain])
}

func percent(f float64) string { return fmt.Sprintf("%.1f%%", 100*f) }

// mebibytes writes a size in bytes.
func mebibytes(f float64) string {
	switch {
	case f >= 1<<30:
		return fmt.Sprintf("%.1f GiB", f/(1<<30))
	case f >= 1<<20:
		return fmt.Sprintf("%.1f MiB", f/(1<<20))
	default:
		return fmt.Sprintf("%.0f KiB", f/(1<<10))
	}
}
