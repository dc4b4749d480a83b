package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
)

func newForecastCommand(env *environment) *cobra.Command {
	var o forecast.Options
	var html string
	var today bool
	var cost loadFlags
	var failovers failoverFlags
	cmd := &cobra.Command{
		Use:   "forecast PROFILE [flags]",
		Short: "Say how often two hold a lock at once, now and at each stage",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("make one with: lockmigrate observe --profile FILE", "forecast wants one PROFILE, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cost.check(cmd); err != nil {
				return err
			}
			if cost.on {
				return forecastLoad(env, cmd, args[0], &cost, o.Seed)
			}
			o.Failovers = forecast.Failovers{Every: failovers.every, Outage: failovers.outage, Behind: failovers.behind, Remembered: !cmd.Flags().Changed("failover-every")}
			return runForecast(env, args[0], o, failovers, today, html)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.Span, "span", forecast.Month, "the time from now on: one second to ten years")
	f.Uint64Var(&o.Seed, "seed", 1, "of all random choices")
	f.IntVar(&o.Draws, "draws", 100, "how often to draw every measured figure from what its errors allow: 20 or more")
	f.Int64Var(&o.Commands, "commands", 2_000_000, "how many commands to simulate for each stage and group of keys: more makes the numbers steadier")
	f.BoolVar(&today, "today", false, "only the fleet as it is, without the stages")
	f.StringVar(&html, "html", "", "write one HTML page to this `FILE` too")
	failovers.add(f)
	cost.add(f)
	return cmd
}

// forecastLoad is simulate --profile FILE --load with the usual network.
func forecastLoad(env *environment, cmd *cobra.Command, path string, cost *loadFlags, seed uint64) error {
	for _, name := range append([]string{"today", "draws", "span", "commands", "html"}, ofProfile...) {
		if cmd.Flags().Changed(name) {
			return usageError("leave one of them out", "--%s has no part in --load", name)
		}
	}
	var usual fleetFlags
	usual.add(pflag.NewFlagSet("", pflag.ContinueOnError))
	s, err := readProfile(env, path, &usual, 10*time.Second, 2*time.Second)
	if err != nil {
		return err
	}
	cost.family = s.family
	return runLoad(env, &s.Fleet, cost, seed, runtime.NumCPU())
}

func runForecast(env *environment, path string, o forecast.Options, failovers failoverFlags, today bool, html string) error {
	p, err := openProfile(path)
	if err == nil {
		err = writable(html)
	}
	if err != nil {
		return err
	}
	if err := failovers.check(o.Failovers.Remembered && p.Failovers.Every() > 0); err != nil {
		return err
	}
	if o.Span == 0 || o.Draws == 0 || o.Commands == 0 {
		return usageError("leave the flag out for its default", "--span, --draws and --commands must be above 0")
	}
	o.Today = today
	status := env.status()
	defer status.Clear()
	o.Progress = func(stage string, done, of int) {
		status.Update(func() string {
			return fmt.Sprintf("forecast %s stage %s", terminal.Bar(float64(done)/float64(of)), stage)
		})
	}
	made, err := forecast.Make(p, o)
	status.Clear()
	if err != nil {
		return usageError("see lockmigrate forecast --help", "%w", err)
	}
	if html != "" {
		if err := writeFile(html, func(w io.Writer) error { return made.WritePage(w, path, nextOf(p.Match)) }); err != nil {
			return err
		}
	}
	err = env.print(made, func(out *strings.Builder) { forecastText(out, env, made) })
	switch c := made.Check; {
	case err != nil:
		return err
	case c != nil && !c.Agrees:
		return inconclusiveError("give observe the lease of the clients, or observe for longer", "the model does not fit the recording: %s", c.Words())
	case made.Incomplete:
		return inconclusiveError("observe for longer, or see what it says is not known", "not all clients are in the forecast, or a lease is not known")
	}
	return nil
}

func forecastText(out *strings.Builder, env *environment, f *forecast.Forecast) {
	fmt.Fprintf(out, "forecast for %s from %.0f s of observation, %s, %d draws, seed %d\n", forecast.Hours(f.SpanHours), f.Seconds, f.Watched(), f.Draws, f.Seed)
	fmt.Fprintf(out, "%s %s shared by two or more clients\n\n", forecast.Number(f.Shared), map[bool]string{true: "key", false: "keys"}[f.Shared == 1])
	stages := terminal.NewTable(terminal.Column{Head: "STAGE"}, terminal.Column{Head: "DOUBLE HOLDS", Right: true}, terminal.Column{Head: "90 % INTERVAL"},
		terminal.Column{Head: "PER HOUR", Right: true}, terminal.Column{Head: "WHAT", Wrap: true})
	for _, s := range f.Stages {
		stages.Row(s.Name, forecast.Number(s.Count.Mean), forecast.Number(s.Count.Low)+" to "+forecast.Number(s.Count.High), forecast.Number(s.PerHour.Mean), s.What)
	}
	fmt.Fprint(out, stages.Render(env.screen(), env.ink()))
	if f.Check != nil {
		fmt.Fprintf(out, "\nself-check: %s\n", f.Check.Words())
	}
	if f.Failovers != nil {
		failoverText(out, env, f)
	}
	first := f.Stages[0]
	for _, list := range []struct {
		by     string
		shares []forecast.Share
	}{{"cause", first.Causes}, {"client", first.Clients}, {"keys", first.Families}} {
		if len(list.shares) == 0 {
			continue
		}
		fmt.Fprintf(out, "\nby %s, at stage legacy\n", list.by)
		most := min(len(list.shares), 10)
		shares := terminal.NewTable(terminal.Column{Wrap: true}, terminal.Column{Right: true}, terminal.Column{Right: true})
		for _, s := range list.shares[:most] {
			shares.Row("  "+terminal.Safe(s.Name), forecast.Number(s.Mean), fmt.Sprintf("%.0f %%", 100*s.Mean/first.Count.Mean))
		}
		fmt.Fprint(out, shares.Render(env.screen(), env.ink()))
		if more := len(list.shares) - most; more > 0 {
			fmt.Fprintf(out, "  and %d more\n", more)
		}
	}
	if len(f.Budgets) > 0 {
		fmt.Fprintln(out, "\nhow far each clock may still move before the longest hold that was seen overlaps")
		budgets := terminal.NewTable(terminal.Column{Head: "CLIENT", Wrap: true}, terminal.Column{Head: "CLOCK", Right: true}, terminal.Column{Head: "AHEAD", Wrap: true},
			terminal.Column{Head: "BEHIND", Wrap: true}, terminal.Column{Head: "DRIFT", Wrap: true}, terminal.Column{Head: "FIRST OVERLAP", Wrap: true})
		for _, b := range f.Budgets {
			budgets.Row(terminal.Safe(b.Client), fmt.Sprintf("%+.0f ms", b.SkewMS), forecast.Margin(b.AheadMS), forecast.Margin(b.BehindMS), b.Drift(), b.When())
		}
		fmt.Fprint(out, budgets.Render(env.screen(), env.ink()))
	}
	if len(f.NotKnown) > 0 {
		fmt.Fprintln(out, "\nnot known")
		for _, n := range f.NotKnown {
			fmt.Fprintf(out, "  %s\n", terminal.Safe(n))
		}
	}
	out.WriteByte('\n')
}

// failoverText is the part that failovers have, at each stage.
func failoverText(out *strings.Builder, env *environment, f *forecast.Forecast) {
	fmt.Fprintf(out, "\nof these by failovers: one of each master about every %s (%s), nobody answers for about %s, the replica is up to %s behind\n",
		short(f.Failovers.Every), f.Failovers.From, short(f.Failovers.Outage), short(f.Failovers.Behind))
	t := terminal.NewTable(terminal.Column{Head: "STAGE"}, terminal.Column{Head: "DOUBLE HOLDS", Right: true}, terminal.Column{Head: "90 % INTERVAL"},
		terminal.Column{Head: "FIRST HOLDER IS TOLD", Wrap: true}, terminal.Column{Head: "NEVER HEARS OF IT", Wrap: true})
	for _, s := range f.Stages {
		l := s.Failovers
		t.Row(s.Name, forecast.Number(l.Count.Mean), forecast.Number(l.Count.Low)+" to "+forecast.Number(l.Count.High), forecast.Number(l.Told), forecast.Number(l.Untold))
	}
	fmt.Fprint(out, t.Render(env.screen(), env.ink()))
}
