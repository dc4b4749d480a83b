package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
)

func newDemoCommand(env *environment) *cobra.Command {
	act := 1800 * time.Millisecond
	cmd := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Watch a fleet move from old locks to tokens, and a referee",
		PreRunE: func(*cobra.Command, []string) error {
			if act < 100*time.Millisecond || act > time.Hour {
				return usageError("give between 100ms and 1h", "--act %v cannot be played", act)
			}
			return nil
		},
		RunE: env.onServer("embedded", func(ctx context.Context, end *endpoint.Endpoint) error { return runDemo(ctx, env, end, act) }),
	}
	cmd.Flags().DurationVar(&act, "act", act, "how long each act lasts: a `DURATION`")
	return cmd
}

// demonstration is what is printed.
type demonstration struct {
	Server   string        `json:"server"`
	Acts     []fleet.Act   `json:"acts"`
	Overlaps int           `json:"overlaps"`
	Timeline []fleet.Event `json:"timeline"`
	Whole    bool          `json:"complete"` // every act was played to its end
}

func runDemo(ctx context.Context, env *environment, end *endpoint.Endpoint, act time.Duration) error {
	other, stop, err := env.endpointOf("embedded")
	if err != nil {
		return err
	}
	defer stop()
	env.grace.Store(int64(fleet.CleansWithin))
	d := demonstration{Server: end.String()}
	err = fleet.Demo(ctx, fleet.Options{
		End: end, Other: other, Act: act, Told: func(a fleet.Act) { d.Acts = append(d.Acts, a) },
		Event: func(e fleet.Event) {
			d.Timeline = append(d.Timeline, e)
			if e.Alarm {
				d.Overlaps++
			}
			if !env.global.json {
				printEvent(env, e)
			}
		},
	})
	d.Whole = err == nil
	if len(d.Timeline) > 0 {
		if printErr := env.print(d, func(b *strings.Builder) { d.text(b, env) }); printErr != nil {
			return printErr
		}
	}
	switch {
	case d.Overlaps > 0:
		return unsafeError("the timeline says who; a host that is overloaded for longer than a lease breaks the old scheme", "members overlapped where they must not")
	case err != nil && !errors.Is(err, context.Canceled) && hintOf(err) == "":
		return failedError("see the errors above", "the demo did not finish: %w", err)
	}
	return err
}

func printEvent(env *environment, e fleet.Event) {
	text := e.Text
	if e.Alarm {
		text = env.ink().Bad(text)
	}
	line := fmt.Sprintf("%5.1f s  %-7s  %s", e.At/1000, e.Act, text)
	if env.isTerminal(env.stdout) {
		line = wrap(line, env.width(env.stdout), 18)
	}
	fmt.Fprintln(env.stdout, line)
}

// text says what each act came to, and the count on the last line.
func (d *demonstration) text(b *strings.Builder, env *environment) {
	ink := env.ink()
	acts := newTable("ACT|wrap", "STAGE", "TURNS|right", "OVERLAPS|right")
	for _, a := range d.Acts {
		acts.Row(a.Name, a.Stage, fmt.Sprint(a.Turns), ink.Count(int64(a.Overlaps)))
	}
	b.WriteString("\n" + acts.Render(env.screen(), ink))
	for _, a := range d.Acts {
		for _, line := range failures(a) {
			b.WriteString(safe(line) + "\n")
		}
	}
	if !d.Whole {
		b.WriteString(ink.Warn("(not played to the end)") + "\n")
	}
	fmt.Fprintf(b, "\noverlaps: %s\n", ink.Count(int64(d.Overlaps)))
}

// failures are what clients were told in an act.
func failures(a fleet.Act) (lines []string) {
	for _, why := range slices.Sorted(maps.Keys(a.Failures)) {
		lines = append(lines, fmt.Sprintf("%s: %d times: %s", a.Name, a.Failures[why], why))
	}
	return lines
}
