package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
		Factors: f.times, Limits: load.Limits{CPU: f.cpu, Connections: f.connections, Memory: f.memory}, Seed: seed, Workers: workers,
		Progress: func(stage string, factor int) {
			status.Update(func() string { return fmt.Sprintf("%s, %d times the clients", stage, factor) })
		},
	})
	if err != nil {
		return usageError("give a profile of observe, or a scenario with old clients and without turn lines", "--load: %w", err)
	}
	status.Clear()
	return env.print(r, func(b *strings.Builder) { _ = r.Text(b) }) // a Builder takes everything
}
