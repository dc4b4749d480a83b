package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
		Long: `demo plays a migration in less than 20 seconds: Java services lock the old
way, Go joins them, and the stages move under load: legacy, bridge, modern,
back, and forward. Then Java comes back unchanged, behind a sidecar. It runs on a
server inside this process unless --redis names another; there it uses keys of
its own and leaves nothing behind.

A referee that looks at no lock and no server sees members walk in and out.
The last lines are what it counted, "overlaps: 0", for each stage and in all.
Exit code 3 if members overlapped where the story promises that they do not.`,
		Example: `  lockmigrate demo
  lockmigrate demo --redis redis://localhost:6379/0`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if act < 100*time.Millisecond || act > time.Hour {
				return usageError("give between 100ms and 1h", "--act %v cannot be played", act)
			}
			return runDemo(cmd.Context(), env, act)
		},
	}
	cmd.Flags().DurationVar(&act, "act", act, "how long each act lasts: a `DURATION`")
	return cmd
}

func runDemo(ctx context.Context, env *environment, act time.Duration) error {
	end, stop, err := env.endpoint("embedded")
	if err != nil {
		return err
	}
	defer stop()
	pool, err := end.Locks()
	if err != nil {
		return err
	}
	defer pool.Close()

	status := env.status()
	opts := demo.Options{Pool: pool, End: end, Act: act}
	opts.Watch = func(now demo.Situation) { status.Update(func() string { return demoStatus(now) }) }
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
	inside := now.Inside
	if inside == "" {
		inside = "nobody"
	}
	return fmt.Sprintf("%5.1f s  %-7s  %d members, inside: %-7s  turns %d, overlaps %d", now.At.Seconds(), now.Act, now.Members, inside, now.Turns, now.Overlaps)
}

func printEvent(env *environment, e demo.Event) {
	line := fmt.Sprintf("%5.1f s  %-7s  %s", e.At.Seconds(), e.Act, e.Text)
	if env.isTerminal(env.stdout) {
		line = wrap(line, env.width(env.stdout), 18)
	}
	fmt.Fprintln(env.stdout, line)
}

// demoJSON is what `demo --json` prints.
type demoJSON struct {
	Server   string         `json:"server"`
	Acts     []demoActJSON  `json:"acts"`
	Stages   map[string]int `json:"overlaps_by_stage"`
	Members  []demoWhoJSON  `json:"members"`
	Timeline []demoLineJSON `json:"timeline"`
	Overlaps int            `json:"overlaps"`
	Seconds  float64        `json:"seconds"`
	Complete bool           `json:"complete"`
}

type demoActJSON struct {
	Name     string  `json:"name"`
	Title    string  `json:"title"`
	Stage    string  `json:"stage"`
	Promises bool    `json:"promises_exclusion"`
	Seconds  float64 `json:"seconds"`
	Turns    int     `json:"turns"`
	Overlaps int     `json:"overlaps"`
}

type demoWhoJSON struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Turns   int    `json:"turns"`
	Longest int64  `json:"longest_wait_ms"`
	Crashed bool   `json:"crashed"`
	Lost    int    `json:"lost"`
	Errors  int    `json:"errors"`
	Error   string `json:"error,omitempty"`
}

type demoLineJSON struct {
	At    int64  `json:"at_ms"`
	Act   string `json:"act"`
	Text  string `json:"text"`
	Alarm bool   `json:"alarm,omitempty"`
}

func printDemo(env *environment, end *endpoint.Endpoint, r *demo.Result) error {
	if !env.global.json {
		return printDemoTables(env.stdout, r)
	}
	doc := demoJSON{Server: end.String(), Stages: map[string]int{}, Overlaps: len(r.Overlaps), Seconds: r.Elapsed.Seconds(), Complete: r.Complete}
	for _, a := range r.Acts {
		doc.Acts = append(doc.Acts, demoActJSON{a.Name, a.Title, a.Stage, a.Promises, a.Took.Seconds(), a.Turns, a.Overlaps})
	}
	for _, s := range r.Stages() {
		doc.Stages[s.Stage] = s.Overlaps
	}
	for _, m := range r.Members {
		who := demoWhoJSON{Name: m.Name, Kind: m.Kind, Turns: m.Turns, Longest: m.Longest.Milliseconds(), Crashed: m.Crashed, Lost: m.Lost, Errors: m.Errors}
		if m.Err != nil {
			who.Error = m.Err.Error()
		}
		doc.Members = append(doc.Members, who)
	}
	for _, e := range r.Timeline {
		doc.Timeline = append(doc.Timeline, demoLineJSON{e.At.Milliseconds(), e.Act, e.Text, e.Alarm})
	}
	return json.NewEncoder(env.stdout).Encode(doc)
}

// printDemoTables prints who got how many turns, what each act came to, and the count on the last line.
func printDemoTables(w io.Writer, r *demo.Result) error {
	var b strings.Builder
	most := 1
	for _, m := range r.Members {
		most = max(most, m.Turns)
	}
	b.WriteString("\nMEMBER   TURNS  LONGEST WAIT\n")
	for _, m := range r.Members {
		const widest = 30
		bar := strings.Repeat("#", (m.Turns*widest+most-1)/most)
		fmt.Fprintf(&b, "%-7s  %5d  %-12s  %s", m.Name, m.Turns, short(m.Longest), bar)
		if m.Crashed {
			b.WriteString(" (died inside)")
		}
		if m.Lost > 0 {
			fmt.Fprintf(&b, " (%d leases over too soon)", m.Lost)
		}
		if m.Err != nil {
			fmt.Fprintf(&b, " (%d errors, the last: %s)", m.Errors, terminal.Safe(m.Err.Error()))
		}
		b.WriteByte('\n')
	}
	b.WriteString("\nACT                         STAGE   TURNS  OVERLAPS\n")
	for _, a := range r.Acts {
		fmt.Fprintf(&b, "%-26s  %-6s  %5d  %8d\n", a.Title, a.Stage, a.Turns, a.Overlaps)
	}
	if !r.Complete {
		b.WriteString("(not played to the end)\n")
	}
	b.WriteByte('\n')
	for _, s := range r.Stages() {
		fmt.Fprintf(&b, "overlaps: %d at stage %s, %d turns\n", s.Overlaps, s.Stage, s.Turns)
	}
	fmt.Fprintf(&b, "overlaps: %d\n", len(r.Overlaps))
	_, err := io.WriteString(w, b.String())
	return err
}
