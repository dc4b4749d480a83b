package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// rehearseFlags are the flags of rehearse.
type rehearseFlags struct {
	act     time.Duration
	speed   float64
	clients int
	html    string
	other   string
}

func newRehearseCommand(env *environment) *cobra.Command {
	var flags rehearseFlags
	cmd := &cobra.Command{
		Use:   "rehearse PROFILE [flags]",
		Short: "Play a fleet's migration on a private server; measure it",
		Args:  oneProfile,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case flags.act < time.Second || flags.act > 24*time.Hour:
				return usageError("give 1s to 24h", "--act %v", flags.act)
			case flags.speed < 0.01 || flags.speed > 1000:
				return usageError("give 0.01 to 1000", "--speed %v", flags.speed)
			case flags.clients < 0 || flags.clients > 1000:
				return usageError("give 1 to 1000", "--clients %d", flags.clients)
			}
			p, err := openProfile(args[0])
			if err != nil {
				return err
			}
			return env.onServer("embedded", func(ctx context.Context, end *endpoint.Endpoint) error {
				return runRehearsal(ctx, env, end, args[0], p, &flags)
			})(cmd, nil)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&flags.act, "act", 20*time.Second, "how long each act is measured")
	f.Float64Var(&flags.speed, "speed", 1, "play so much faster: leases, holds, polls, pauses and the clocks' errors are divided by it")
	f.IntVar(&flags.clients, "clients", 0, "how many clients to play: the profile's first ones, or again from the first (0: as many as it has)")
	f.StringVar(&flags.other, "new", "", "another private server, to which the fleet moves in two more acts: a `URL` (embedded, where --redis is)")
	f.StringVar(&flags.html, "html", "", "write one HTML page to this `FILE` too")
	return cmd
}

// rehearsal is what is printed.
type rehearsal struct {
	Profile string         `json:"profile"`
	Server  string         `json:"server"`
	Clients int            `json:"clients"`
	Old     int            `json:"old_clients"`
	Speed   float64        `json:"speed"`
	Acts    []rehearsedAct `json:"acts"`
	NotDone []string       `json:"not_rehearsed"`
	Whole   bool           `json:"complete"` // every act was played to its end
}

// rehearsedAct is an act beside what forecast says of it.
type rehearsedAct struct {
	fleet.Act
	// Forecast is how many double holds forecast expects in the time of the act; nil: it was not asked, or has no such stage.
	Forecast *forecast.Interval `json:"forecast_double_holds,omitempty"`
}

func runRehearsal(ctx context.Context, env *environment, end *endpoint.Endpoint, path string, p profile.Profile, flags *rehearseFlags) error {
	if err := writable(flags.html); err != nil {
		return err
	}
	if end.Kind != endpoint.Single {
		return usageError("give a server of its own: redis://127.0.0.1:PORT", "a rehearsal is played on one server")
	}
	old, doubt := p.OldClients() // the rehearsal shows what the doubt may cost; a record wants to be sure
	observed, notKnown, err := forecast.FromProfile(p, "legacy", forecast.Failovers{})
	if err != nil {
		return usageError("observe for longer, or where locks are used", "%s: %w", path, err)
	}
	o := fleet.Options{End: end, Act: flags.act}
	embedded := env.global.redis == "" || env.global.redis == "embedded"
	if doubt != nil {
		notKnown = append(notKnown, doubt.Error())
	}
	if o.Clients, o.Record, err = flags.cast(&observed.Fleet, old); err != nil {
		return err
	}
	other := flags.other
	if embedded {
		other = cmp.Or(other, "embedded")
	}
	if other != "" {
		there, stop, err := env.endpointOf(other)
		if err != nil {
			return err
		}
		defer stop()
		if there.Kind != endpoint.Single {
			return usageError("give a server of its own: redis://127.0.0.1:PORT", "a rehearsal moves to one server")
		}
		o.Other = there
	}
	out := rehearsal{Profile: path, Server: end.String(), Clients: len(o.Clients), Speed: flags.speed, NotDone: slices.Concat(notRehearsed(embedded, o.Other != nil, flags.speed), notKnown)}
	for i := range o.Clients {
		if !o.Clients[i].Go {
			out.Old++
		}
	}
	status := env.status()
	defer status.Clear()
	o.Event = func(e fleet.Event) { status.Update("rehearse: act %d, %s", len(out.Acts)+1, e.Act) }
	o.Told = func(a fleet.Act) { out.Acts = append(out.Acts, rehearsedAct{Act: a}) }
	env.grace.Store(int64(fleet.CleansWithin))
	err = fleet.Rehearse(ctx, o)
	if errors.Is(err, fleet.ErrNotEmpty) {
		return unsafeError("start a server of its own, such as: redis-server --port 6390 --save ''", "a rehearsal writes keys, and moves them through the stages: %w", err)
	}
	out.Whole = err == nil
	if out.Whole && len(o.Clients) == len(observed.Fleet.Clients) { // afterwards: it would keep the machine busy
		status.Update("rehearse: what forecast says of it")
		span := max(time.Duration(float64(flags.act)*flags.speed), time.Second)
		made, err := forecast.Make(p, forecast.Options{Span: span, Seed: 1, Draws: 20, Commands: 50_000})
		if err != nil {
			return usageError("see lockmigrate forecast --help", "%w", err)
		}
		out.beside(made)
	}
	status.Clear()
	if flags.html != "" && len(out.Acts) > 0 {
		if err := writeFile(flags.html, out.report(env).write); err != nil {
			return err
		}
	}
	if printed := env.print(out, func(b *strings.Builder) { out.report(env).print(b, env) }); printed != nil {
		return printed
	}
	if err != nil {
		return failedError("what it printed is not the whole", "the rehearsal did not finish: %w", err)
	}
	if a, ok := out.broken(); ok {
		return unsafeError("see whether the machine was overloaded: nothing here may stop for longer than a lease", "two held a lock in the act %q, where all hold tokens", a)
	}
	return nil
}

// beside notes what forecast expects of each act.
func (r *rehearsal) beside(f *forecast.Forecast) {
	for i := range r.Acts {
		for _, s := range f.Stages {
			if s.Name == r.Acts[i].Like {
				r.Acts[i].Forecast = &s.Count
			}
		}
	}
}

// broken names an act in which two held a lock though all held tokens. Where old clients are at work, they may break each other's locks, and then a
// member's too.
func (r *rehearsal) broken() (string, bool) {
	for _, a := range r.Acts {
		if a.Old == 0 && a.Overlaps > 0 {
			return a.Name, true
		}
	}
	return "", false
}

// notRehearsed are what no rehearsal of this kind shows.
func notRehearsed(embedded, moves bool, speed float64) (all []string) {
	for _, one := range []struct {
		lacks bool
		what  string
	}{
		{true, "the network between hosts, other traffic on the server, and failovers: forecast --failovers plays failovers"},
		{true, "the clients' own programs: old clients are the shipped machines of their dialect, each on a clock of its own"},
		{!moves, "a move to another server: give it with --new"},
		{embedded, "Redis: the server within this program is no evidence about it; give --redis for a real one, and for its time and memory"},
		{speed != 1, fmt.Sprintf("the fleet's own pace: times are divided by %g, those of machine and server are not", speed)},
	} {
		if one.lacks {
			all = append(all, one.what)
		}
	}
	return all
}

// cast makes the rehearsal's clients of a profile's, and the record of their namespace.
func (flags *rehearseFlags) cast(f *sim.Fleet, old profile.OldClients) ([]fleet.Client, stages.Record, error) {
	scaled := func(d time.Duration) time.Duration { return time.Duration(float64(d) / flags.speed) }
	draw := func(d sim.Distribution) func() time.Duration {
		generator := sim.NewGenerator(rand.Uint64(), 0)
		return func() time.Duration { return scaled(d.Draw(&generator)) }
	}
	record := stages.Record{
		ClockLag:     scaled(cmp.Or(old.ClockLag, time.Second)).Truncate(time.Millisecond) + time.Millisecond,
		CommandDelay: cmp.Or(old.CommandDelay, 250*time.Millisecond),
	}
	n := cmp.Or(flags.clients, len(f.Clients))
	var all []fleet.Client
	for i := range n {
		c := &f.Clients[i%len(f.Clients)]
		lease := scaled(c.Lease).Truncate(max(c.Dialect.Unit.Resolution(), time.Millisecond))
		if lease < time.Second { // a machine's own delays are not scaled, and no sidecar has a shorter one
			return nil, record, usageError("give a lower --speed", "a lease of %v, %g times as fast, is less than a second", c.Lease, flags.speed)
		}
		keys := sim.NewGenerator(rand.Uint64(), 0)
		one := fleet.Client{
			Go:     c.Scheme != model.Legacy,
			Old:    fleet.Old{Dialect: c.Dialect, Lease: lease, Poll: max(scaled(c.Poll), time.Millisecond), Offset: scaled(c.Offset)},
			Worker: fleet.Worker{Name: c.Name, Dies: func() bool { return rand.Float64() < float64(c.Dies)/1e6 }, Key: func() string { return c.DrawKey(&keys) }, Hold: draw(c.Hold), Think: draw(c.Think)},
		}
		if i >= len(f.Clients) {
			one.Name = fmt.Sprintf("%s+%d", c.Name, i/len(f.Clients))
		}
		if !one.Go {
			if cmp.Or(record.Dialect, c.Dialect.Name) != c.Dialect.Name {
				return nil, record, unsafeError("they need a namespace each, or one dialect: see lockmigrate observe", "the old clients speak %s and %s", record.Dialect, c.Dialect.Name)
			}
			record.Dialect, record.Shortest = c.Dialect.Name, min(cmp.Or(record.Shortest, lease), lease)
		}
		record.Yield = max(record.Yield, (one.Poll*6/5).Truncate(time.Millisecond)+time.Millisecond)
		all = append(all, one)
	}
	record.CommandDelay = min(record.CommandDelay, record.Shortest/4).Truncate(time.Millisecond)
	record.Yield = min(record.Yield, 20*time.Second)
	pattern := record
	pattern.Patterns = []string{"rehearsal:*"}
	if _, err := checkedRecord(pattern); err != nil {
		return nil, record, usageError("give a lower --speed", "%g times as fast the fleet has no bridge: %w", flags.speed, err)
	}
	return all, record, nil
}

// report is a rehearsal beside its forecast.
func (r *rehearsal) report(env *environment) *report {
	out := &report{Title: "Rehearsal of a migration"}
	out.add(part{Lines: []string{fmt.Sprintf("rehearsal of %s on %s: %s, %d of them old, %g times as fast", r.Profile, r.Server, counted(int64(r.Clients), "client"), r.Old, r.Speed)}})
	acts := newTable("ACT", "STAGE", "TURNS/S|right", "OVERLAPS|right", "FORECAST", "WAIT P50|right", "P95|right", "HAND-OVER|right", "SERVER/TURN|right", "STEP TOOK|right")
	steps := newTable("ACT", "WHAT", "COMMAND", "TURNS|right", "LONGEST WAIT|right", "MEMORY|right", "TOLD OF A LOSS|right")
	var notes []string
	for _, a := range r.Acts {
		acts.Row(a.Name, a.Stage, fmt.Sprintf("%.1f", float64(a.Turns)/a.Seconds), env.ink().Count(int64(a.Overlaps)), a.expected(), written(a.Waits.P50), written(a.Waits.P95), written(a.Handovers.P50), said("%.0f us", a.ServerUS), written(a.MoveMS))
		steps.Row(a.Name, a.What, a.Command, r.rate(a), written(a.Waits.Max), said("%.1f MiB", float64(a.MemoryBytes)/(1<<20)), fmt.Sprint(a.Lost))
		if a.WithMembers > 0 && a.Old > 0 && a.Stage != stages.Legacy.String() {
			notes = append(notes, fmt.Sprintf("%s: %d times a member was one of the two: what old clients do to each other, by their clocks or blind deletes, frees a member's key too", a.Name, a.WithMembers))
		}
		notes = append(notes, failures(a.Act)...)
	}
	if n := len(r.Acts); n >= 6 {
		notes = append(notes, fmt.Sprintf("the way back from modern to the bridge took %s", written(r.Acts[5].MoveMS)))
	}
	if !r.Whole {
		notes = append(notes, "(not played to the end)")
	}
	out.add(part{Table: acts})
	out.add(part{Lines: notes})
	out.add(part{Head: "how one gets there; turns beside those of the first act", Table: steps, page: true})
	out.add(part{Head: "not rehearsed", Lines: r.NotDone})
	out.add(part{Head: "what to do next", Lines: []string{"See where the migration stands, and its next step.", "lockmigrate next --profile " + shellWord(r.Profile)}, page: true})
	return out
}

// expected is the forecast of an act in words.
func (a *rehearsedAct) expected() string {
	if a.Forecast == nil {
		return "-"
	}
	return forecast.Number(a.Forecast.Mean) + " (" + forecast.Number(a.Forecast.Low) + " to " + forecast.Number(a.Forecast.High) + ")"
}

// rate is turns a second beside those of the first act, in per cent.
func (r *rehearsal) rate(a rehearsedAct) string {
	first := float64(r.Acts[0].Turns) / r.Acts[0].Seconds
	if first == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", math.Round(100*float64(a.Turns)/a.Seconds/first))
}

// said writes a figure, or that nobody has said one.
func said(format string, figure float64) string {
	if figure == 0 {
		return "-"
	}
	return fmt.Sprintf(format, figure)
}

func written(ms fleet.Millis) string {
	if ms >= 100 {
		return span(float64(ms))
	}
	return said("%.2g ms", float64(ms))
}
