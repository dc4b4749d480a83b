package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
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
	said := forecastReport(made, path, p.Match)
	if html != "" {
		if err := writeFile(html, said.write); err != nil {
			return err
		}
	}
	err = env.print(made, func(out *strings.Builder) {
		said.print(out, env)
		out.WriteByte('\n')
	})
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

// forecastReport is a forecast of the profile in a file, which was observed on the keys of some patterns.
func forecastReport(f *forecast.Forecast, path string, match []string) *report {
	r, number := &report{Title: "Double holds to come"}, forecast.Number
	const minute = "2 Jan 2006, 15:04 UTC"
	r.add(part{Lines: []string{
		fmt.Sprintf("forecast for %s from %.0f s of observation, %s to %s, %d draws, seed %d", forecast.Hours(f.SpanHours), f.Seconds, f.Begun.Format(minute), f.Ended.Format(minute), f.Draws, f.Seed),
		fmt.Sprintf("%s %s shared by two or more clients", number(f.Shared), map[bool]string{true: "key", false: "keys"}[f.Shared == 1]),
	}})
	between := func(i forecast.Interval) string { return number(i.Low) + " to " + number(i.High) }
	stages := newTable("STAGE", "DOUBLE HOLDS|right", "90 % INTERVAL", "PER HOUR|right", "WHAT|wrap")
	failovers := newTable("STAGE", "DOUBLE HOLDS|right", "90 % INTERVAL", "FIRST HOLDER IS TOLD|wrap", "NEVER HEARS OF IT|wrap")
	for _, s := range f.Stages {
		stages.Row(s.Name, number(s.Count.Mean), between(s.Count), number(s.PerHour.Mean), s.What)
		if l := s.Failovers; l != nil {
			failovers.Row(s.Name, number(l.Count.Mean), between(l.Count), number(l.Told), number(l.Untold))
		}
	}
	r.add(part{Table: stages})
	first := f.Stages[0]
	if first.Moves > 0.1*(first.Count.High-first.Count.Low) && first.Moves >= 1 {
		r.add(part{Lines: []string{fmt.Sprintf("other draws would move an end of the first interval by about %s: --draws %d makes that less", number(first.Moves), 4*f.Draws)}})
	}
	if f.Check != nil {
		r.add(part{Lines: []string{"self-check: " + f.Check.Words()}})
	}
	if o := f.Failovers; o != nil {
		r.add(part{Table: failovers, Head: fmt.Sprintf("of these by failovers: one of each master about every %s (%s), nobody answers for about %s, the replica is up to %s behind",
			short(o.Every), o.From, short(o.Outage), short(o.Behind))})
	}
	for _, by := range []struct {
		what   string
		shares []forecast.Share
	}{{"cause", first.Causes}, {"client", first.Clients}, {"keys", first.Families}} {
		shares, most := newTable("|wrap", "|right", "|right"), min(len(by.shares), 10)
		for _, s := range by.shares[:most] {
			shares.Row("  "+safe(s.Name), number(s.Mean), fmt.Sprintf("%.0f %%", 100*s.Mean/first.Count.Mean))
		}
		if more := len(by.shares) - most; more > 0 {
			shares.Row(fmt.Sprintf("  and %d more", more), "", "")
		}
		r.add(part{Head: "by " + by.what + ", at stage legacy", Table: shares})
	}
	budgets := newTable("CLIENT|wrap", "CLOCK|right", "AHEAD|wrap", "BEHIND|wrap", "DRIFT|wrap", "FIRST OVERLAP|wrap")
	for _, b := range f.Budgets {
		budgets.Row(safe(b.Client), fmt.Sprintf("%+.0f ms", b.SkewMS), forecast.Margin(b.AheadMS), forecast.Margin(b.BehindMS), b.Drift(), b.When())
	}
	r.add(part{Head: "how far each clock may still move before the longest hold that was seen overlaps", Table: budgets})
	r.add(part{Head: "not known", Lines: f.NotKnown})
	next := part{Head: "what to do next", page: true}
	if first.Count.High > 0 {
		next.Lines = append(next.Lines, "See one double hold step by step.", fmt.Sprintf("lockmigrate forecast %s --scenario legacy > fleet.txt; lockmigrate simulate --scenario fleet.txt --as story", shellWord(path)))
	}
	next.Lines = append(next.Lines, "See where the migration stands, and its next step.", nextOf(match),
		"Watch at the busy hours too. The longer it is watched, the narrower the interval.", "lockmigrate observe --for 10m"+matchFlags(match)+" --profile fleet.json")
	r.add(next)
	return r
}
