package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/demo"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
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

func runDemo(ctx context.Context, env *environment, end *endpoint.Endpoint, act time.Duration) error {
	pool, err := end.Locks()
	if err != nil {
		return err
	}
	defer pool.Close()

	status := env.status()
	opts := demo.Options{Pool: pool, End: end, Act: act}
	opts.Watch = func(now demo.Situation) { status.Update("%s", demoStatus(now)) }
	if !env.global.json {
		opts.Event = func(e demo.Event) {
			status.Clear()
			printEvent(env, e)
		}
	}
	result, err := demo.Run(ctx, opts)
	status.Clear()
	if result != nil {
		if printErr := printDemo(env, end, result); printErr != nil {
			return printErr
		}
	}
	switch {
	case result != nil && result.Broken():
		return unsafeError("the timeline says who; a host that is overloaded for longer than a lease breaks the old scheme", "members overlapped where they must not")
	case errors.Is(err, context.Canceled):
		return err
	case err != nil && hintOf(err) == "":
		return failedError("see the errors above", "the demo did not finish: %w", err)
	}
	return err
}

func demoStatus(now demo.Situation) string {
	return fmt.Sprintf("%5.1f s  %-7s  %d members, inside: %-7s  turns %d, overlaps %d", now.At.Seconds(), now.Act, now.Members, cmp.Or(now.Inside, "nobody"), now.Turns, now.Overlaps)
}

func printEvent(env *environment, e demo.Event) {
	text := e.Text
	if e.Alarm {
		text = env.ink().Bad(text)
	}
	line := fmt.Sprintf("%5.1f s  %-7s  %s", time.Duration(e.At).Seconds(), e.Act, text)
	if env.isTerminal(env.stdout) {
		line = wrap(line, env.width(env.stdout), 18)
	}
	fmt.Fprintln(env.stdout, line)
}

func printDemo(env *environment, end *endpoint.Endpoint, r *demo.Result) error {
	doc := struct {
		Server string         `json:"server"`
		Stages map[string]int `json:"overlaps_by_stage"`
		*demo.Result
	}{end.String(), map[string]int{}, r}
	for _, s := range r.Stages() {
		doc.Stages[s.Stage] = s.Overlaps
	}
	return env.print(doc, func(b *strings.Builder) { demoTables(b, env, r) })
}

// demoTables says who got how many turns, what each act came to, and the count on the last line.
func demoTables(b *strings.Builder, env *environment, r *demo.Result) {
	ink := env.ink()
	most := 1
	for _, m := range r.Members {
		most = max(most, m.Turns)
	}
	members := terminal.NewTable(terminal.Column{Head: "MEMBER"}, terminal.Column{Head: "TURNS", Right: true}, terminal.Column{Head: "LONGEST WAIT"}, terminal.Column{Wrap: true})
	for _, m := range r.Members {
		const widest = 30
		note := strings.Repeat("#", (m.Turns*widest+most-1)/most)
		if m.Crashed {
			note += " (died inside)"
		}
		if m.Lost > 0 {
			note += fmt.Sprintf(" (%s over too soon)", counted(int64(m.Lost), "lease"))
		}
		if m.Err != nil {
			note += fmt.Sprintf(" (%s, the last: %s)", counted(int64(m.Errors), "error"), terminal.Safe(m.Error))
		}
		members.Row(m.Name, fmt.Sprint(m.Turns), short(time.Duration(m.Longest)), note)
	}
	acts := terminal.NewTable(terminal.Column{Head: "ACT", Wrap: true}, terminal.Column{Head: "STAGE"}, terminal.Column{Head: "TURNS", Right: true}, terminal.Column{Head: "OVERLAPS", Right: true})
	overlaps := func(n int) string { return ink.Count(int64(n)) }
	for _, a := range r.Acts {
		acts.Row(a.Title, a.Stage, fmt.Sprint(a.Turns), overlaps(a.Overlaps))
	}
	b.WriteString("\n" + members.Render(env.screen(), ink) + "\n" + acts.Render(env.screen(), ink))
	if !r.Complete {
		b.WriteString(ink.Warn("(not played to the end)") + "\n")
	}
	b.WriteByte('\n')
	for _, s := range r.Stages() {
		fmt.Fprintf(b, "overlaps: %s at stage %s, %d turns\n", overlaps(s.Overlaps), s.Stage, s.Turns)
	}
	fmt.Fprintf(b, "overlaps: %s\n", overlaps(r.Overlaps))
}
