package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
)

func newForecastCommand(env *environment) *cobra.Command {
	var o forecast.Options
	var html string
	var today bool
	cmd := &cobra.Command{
		Use:   "forecast PROFILE [flags]",
		Short: "Say how often two hold a lock at once, now and at each stage",
		Long: `forecast reads what observe --profile wrote, and says how many double holds a month
will have: two clients that hold the same lock at once. It names the causes, the
clients whose clock or hold time is to blame, and the key families. It says the same
for each stage of a migration, and how far each clock may still drift.

Each number has an interval in which it lies with a chance of 90 %. A short observation
makes the interval wide. What the profile does not show is named, and exit code 4 says
that clients are left out.

The forecast runs the real protocol code in virtual time. It needs no server. The same
profile, seed and flags give the same numbers.`,
		Example: `  lockmigrate forecast fleet.json
  lockmigrate forecast fleet.json --span 24h
  lockmigrate forecast fleet.json --html forecast.html`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("make one with: lockmigrate observe --profile FILE", "forecast wants one PROFILE, not %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return runForecast(env, args[0], o, today, html) },
	}
	f := cmd.Flags()
	f.DurationVar(&o.Span, "span", forecast.Month, "the time from now on: one second to ten years")
	f.Uint64Var(&o.Seed, "seed", 1, "of all random choices")
	f.IntVar(&o.Draws, "draws", 100, "how often to draw every measured figure from what its errors allow: 20 or more")
	f.Int64Var(&o.Commands, "commands", 2_000_000, "how many commands to simulate for each stage and group of keys: more makes the numbers steadier")
	f.BoolVar(&today, "today", false, "only the fleet as it is, without the stages")
	f.StringVar(&html, "html", "", "write one HTML page to this `FILE` too")
	return cmd
}

func runForecast(env *environment, path string, o forecast.Options, today bool, html string) error {
	file, err := os.Open(path)
	if err != nil {
		return fileError(err)
	}
	defer file.Close()
	p, err := profile.Read(file)
	if err != nil {
		return usageError("it must be what observe --profile wrote", "%s: %w", path, err)
	}
	if o.Span == 0 || o.Draws == 0 || o.Commands == 0 {
		return usageError("leave the flag out for its default", "--span, --draws and --commands must be above 0")
	}
	o.Today = today
	made, err := forecast.Make(p, o)
	if err != nil {
		return usageError("see lockmigrate forecast --help", "%w", err)
	}
	if html != "" {
		if err := writePage(made, path, html); err != nil {
			return err
		}
	}
	if env.global.json {
		err = json.NewEncoder(env.stdout).Encode(made)
	} else {
		err = printForecast(env, made)
	}
	if err == nil && made.Incomplete {
		return inconclusiveError("observe for longer, or see what it says is not known", "not all clients are in the forecast")
	}
	return err
}

func writePage(made *forecast.Forecast, profile, path string) error {
	out, err := os.Create(path)
	if err != nil {
		return fileError(err)
	}
	if err := made.WritePage(out, profile); err != nil {
		_ = out.Close()
		return fileError(err)
	}
	return out.Close()
}

func printForecast(env *environment, f *forecast.Forecast) error {
	out := env.stdout
	fmt.Fprintf(out, "forecast for %s from %.0f s of observation, %d draws, seed %d\n", forecast.Hours(f.SpanHours), f.Seconds, f.Draws, f.Seed)
	fmt.Fprintf(out, "%s %s shared by two or more clients\n\n", forecast.Number(f.Shared), map[bool]string{true: "key", false: "keys"}[f.Shared == 1])
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STAGE\tDOUBLE HOLDS\t90 % INTERVAL\tPER HOUR\tWHAT")
	for _, s := range f.Stages {
		fmt.Fprintf(w, "%s\t%s\t%s to %s\t%s\t%s\n", s.Name, forecast.Number(s.Count.Mean), forecast.Number(s.Count.Low), forecast.Number(s.Count.High), forecast.Number(s.PerHour.Mean), s.What)
	}
	_ = w.Flush()
	first := f.Stages[0]
	for _, list := range []struct {
		by     string
		shares []forecast.Share
	}{{"cause", first.Causes}, {"client", first.Clients}, {"keys", first.Families}} {
		if len(list.shares) == 0 {
			continue
		}
		fmt.Fprintf(out, "\nby %s, at stage legacy\n", list.by)
		w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
		for i, s := range list.shares {
			if i == 10 {
				fmt.Fprintf(w, "  and %d more\n", len(list.shares)-i)
				break
			}
			fmt.Fprintf(w, "  %s\t%s\t%.0f %%\n", terminal.Safe(s.Name), forecast.Number(s.Mean), 100*s.Mean/first.Count.Mean)
		}
		_ = w.Flush()
	}
	if len(f.Budgets) > 0 {
		fmt.Fprintln(out, "\nhow far each clock may still move before the longest hold that was seen overlaps")
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "  CLIENT\tCLOCK\tAHEAD\tBEHIND\tDRIFT\tFIRST OVERLAP")
		for _, b := range f.Budgets {
			fmt.Fprintf(w, "  %s\t%+.0f ms\t%s\t%s\t%s\t%s\n", terminal.Safe(b.Client), b.SkewMS, forecast.Margin(b.AheadMS), forecast.Margin(b.BehindMS), b.Drift(), b.When())
		}
		_ = w.Flush()
	}
	if len(f.NotKnown) > 0 {
		fmt.Fprintln(out, "\nnot known")
		for _, n := range f.NotKnown {
			fmt.Fprintf(out, "  %s\n", terminal.Safe(n))
		}
	}
	_, err := fmt.Fprintln(out)
	return err
}
