package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
)

func newForecastCommand(env *environment) *cobra.Command {
	var o forecast.Options
	var html, stage string
	var failovers map[string]string
	cmd := &cobra.Command{
		Use:   "forecast PROFILE [flags]",
		Short: "Say how often two hold a lock at once, now and at each stage",
		Args:  oneProfile,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := openProfile(args[0])
			if err == nil {
				o.Failovers, err = readFailovers(failovers, p.Failovers.Every() > 0)
			}
			switch {
			case err != nil:
				return err
			case stage != "":
				if err := unused(cmd, "--scenario: it prints the fleet, and no forecast", "scenario", "failovers"); err != nil {
					return err
				}
				return printScenario(env, args[0], p, stage, o.Failovers)
			}
			return runForecast(env, args[0], p, o, html)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.Span, "span", forecast.Month, "the time from now on: one second to ten years")
	f.Uint64Var(&o.Seed, "seed", 1, "of all random choices")
	f.IntVar(&o.Draws, "draws", 100, "how often to draw every measured figure from what its errors allow: 20 or more; each more makes the numbers steadier")
	f.StringVar(&html, "html", "", "write one HTML page to this `FILE` too")
	choose(cmd, &stage, "scenario", "print the fleet at this `STAGE` as a scenario for simulate, and no forecast: legacy is the fleet as it is", forecast.StageNames()...)
	f.StringToStringVar(&failovers, "failovers", nil, "a `LIST`, every=720h,outage=5s,behind=100ms: a replica takes each master's place about this often (every=0: never; else as the profile's masters remember), nobody answers for about this long, and the replica is behind by this at most: what it lacks is lost")
	f.Lookup("failovers").DefValue = ""
	return cmd
}

// readFailovers reads --failovers. Remembered: a profile says how often they come.
func readFailovers(given map[string]string, remembered bool) (f forecast.Failovers, err error) {
	f = forecast.Failovers{Outage: 5 * time.Second, Behind: 100 * time.Millisecond, Remembered: given["every"] == ""}
	figures := map[string]*time.Duration{"every": &f.Every, "outage": &f.Outage, "behind": &f.Behind}
	for word, text := range given {
		to := figures[word]
		if to == nil {
			return f, usageError("known are every, outage and behind", "--failovers has no %q", word)
		}
		if *to, err = time.ParseDuration(text); err != nil || *to < 0 {
			return f, usageError("write it like every=720h,outage=10s,behind=100ms", "--failovers %s=%s", word, text)
		}
	}
	switch {
	case f.Every > 0 && f.Every < f.Least():
		err = usageError("give a longer time between two failovers", "--failovers every=%v is too short beside outage=%v and behind=%v", f.Every, f.Outage, f.Behind)
	case f.Every == 0 && !(f.Remembered && remembered) && len(given) > 0 && given["every"] == "":
		err = usageError("give every=720h too", "--failovers does not say how often they come, and the profile does not either")
	}
	return f, err
}

// printScenario prints the fleet of a profile for simulate.
func printScenario(env *environment, path string, p profile.Profile, stage string, failovers forecast.Failovers) error {
	s, notKnown, err := forecast.FromProfile(p, stage, failovers)
	if err != nil {
		return usageError("observe for longer, or where locks are used", "%s: %w", path, err)
	}
	for _, n := range notKnown {
		env.note("%s", n)
	}
	s.Purpose = []string{fmt.Sprintf("The fleet of %s at stage %s.", path, stage)}
	_, err = fmt.Fprint(env.stdout, s.Format())
	return err
}

func runForecast(env *environment, path string, p profile.Profile, o forecast.Options, html string) error {
	if err := writable(html); err != nil {
		return err
	}
	if o.Span == 0 || o.Draws == 0 {
		return usageError("leave the flag out for its default", "--span and --draws must be above 0")
	}
	o.Commands = 20_000 * int64(o.Draws)
	status := env.status()
	defer status.Clear()
	o.Progress = func(made []forecast.Stage, next string, of int) {
		today := ""
		if len(made) > 0 {
			rate := made[0].PerHour
			today = fmt.Sprintf("; today %s an hour (%s to %s)", forecast.Number(rate.Mean), forecast.Number(rate.Low), forecast.Number(rate.High))
		}
		status.Update("forecast %s stage %s%s", bar(float64(len(made))/float64(of)), next, today)
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
	stages := newTable("STAGE", "DOUBLE HOLDS|right", "90 % INTERVAL", "PER HOUR|right", "WHAT|wrap")
	for _, s := range f.Stages {
		stages.Row(s.Name, forecast.Number(s.Count.Mean), forecast.Number(s.Count.Low)+" to "+forecast.Number(s.Count.High), forecast.Number(s.PerHour.Mean), s.What)
	}
	fmt.Fprint(out, stages.Render(env.screen(), env.ink()))
	if s := f.Stages[0]; s.Moves > 0.1*(s.Count.High-s.Count.Low) && s.Moves >= 1 {
		fmt.Fprintf(out, "\nother draws would move an end of the first interval by about %s: --draws %d makes that less\n", forecast.Number(s.Moves), 4*f.Draws)
	}
	if f.Check != nil {
		fmt.Fprintf(out, "\nself-check: %s\n", f.Check.Words())
	}
	if f.Failovers != nil {
		failoverText(out, env, f)
	}
	first := f.Stages[0]
	for _, part := range first.Parts() {
		if len(part.Shares) == 0 {
			continue
		}
		fmt.Fprintf(out, "\nby %s, at stage legacy\n", part.By)
		most := min(len(part.Shares), 10)
		shares := newTable("|wrap", "|right", "|right")
		for _, s := range part.Shares[:most] {
			shares.Row("  "+safe(s.Name), forecast.Number(s.Mean), fmt.Sprintf("%.0f %%", 100*s.Mean/first.Count.Mean))
		}
		fmt.Fprint(out, shares.Render(env.screen(), env.ink()))
		if more := len(part.Shares) - most; more > 0 {
			fmt.Fprintf(out, "  and %d more\n", more)
		}
	}
	if len(f.Budgets) > 0 {
		fmt.Fprintln(out, "\nhow far each clock may still move before the longest hold that was seen overlaps")
		budgets := newTable("CLIENT|wrap", "CLOCK|right", "AHEAD|wrap", "BEHIND|wrap", "DRIFT|wrap", "FIRST OVERLAP|wrap")
		for _, b := range f.Budgets {
			budgets.Row(safe(b.Client), fmt.Sprintf("%+.0f ms", b.SkewMS), forecast.Margin(b.AheadMS), forecast.Margin(b.BehindMS), b.Drift(), b.When())
		}
		fmt.Fprint(out, budgets.Render(env.screen(), env.ink()))
	}
	if len(f.NotKnown) > 0 {
		fmt.Fprintln(out, "\nnot known")
		for _, n := range f.NotKnown {
			fmt.Fprintf(out, "  %s\n", safe(n))
		}
	}
	out.WriteByte('\n')
}

// failoverText is the part that failovers have, at each stage.
func failoverText(out *strings.Builder, env *environment, f *forecast.Forecast) {
	fmt.Fprintf(out, "\nof these by failovers: one of each master about every %s (%s), nobody answers for about %s, the replica is up to %s behind\n",
		short(f.Failovers.Every), f.Failovers.From, short(f.Failovers.Outage), short(f.Failovers.Behind))
	t := newTable("STAGE", "DOUBLE HOLDS|right", "90 % INTERVAL", "FIRST HOLDER IS TOLD|wrap", "NEVER HEARS OF IT|wrap")
	for _, s := range f.Stages {
		l := s.Failovers
		t.Row(s.Name, forecast.Number(l.Count.Mean), forecast.Number(l.Count.Low)+" to "+forecast.Number(l.Count.High), forecast.Number(l.Told), forecast.Number(l.Untold))
	}
	fmt.Fprint(out, t.Render(env.screen(), env.ink()))
}
