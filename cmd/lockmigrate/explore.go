package main

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/simulate/explore"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

func newExploreCommand(env *environment) *cobra.Command {
	var wanted []string
	cmd := &cobra.Command{
		Use:   "explore [flags]",
		Short: "Run every interleaving of a few clients: prove a claim or break it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runExplore(cmd.Context(), env, wanted)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&wanted, "claim", nil, "list the claims of these `ID`s; a * stands for any")
	completes(cmd, "claim", claimNames)
	return cmd
}

// chooseClaims finds claims by their ids.
func chooseClaims(patterns []string) ([]explore.Claim, error) {
	all := explore.Claims()
	if len(patterns) == 0 {
		return all, nil
	}
	var chosen []explore.Claim
	for _, p := range patterns {
		before := len(chosen)
		for _, c := range all {
			if named, _ := path.Match(strings.ToLower(p), strings.ToLower(c.ID)); named {
				chosen = append(chosen, c)
			}
		}
		if len(chosen) == before {
			return nil, usageError(`"lockmigrate explore --claim '*'" lists them`, "no claim is named %q", p)
		}
	}
	return slices.CompactFunc(chosen, func(a, b explore.Claim) bool { return a.ID == b.ID }), nil
}

func claimNames() (names []string) {
	for _, c := range explore.Claims() {
		names = append(names, c.ID)
	}
	return names
}

func runExplore(ctx context.Context, env *environment, wanted []string) error {
	claims, err := chooseClaims(wanted)
	if err != nil {
		return err
	}
	status := env.status()
	defer status.Clear()
	start := env.now()
	found := make([]explore.Finding, len(claims))
	var done atomic.Int64
	sim.Each(ctx, len(claims), func(_ *sim.World, i int) { // the searches know nothing of each other: their findings are the same in any order
		status.Update("explore %s %d of %d claims: %s", bar(float64(done.Load())/float64(len(claims))), done.Load(), len(claims), claims[i].ID)
		found[i] = explore.Finding{Claim: claims[i], Outcome: explore.Search(ctx, claims[i].Model, explore.DefaultStates)}
		done.Add(1)
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	wall := env.now().Sub(start)
	status.Clear()
	if err := env.print(findingsJSON{found}, func(b *strings.Builder) { exploreText(b, env, found, len(wanted) > 0, wall) }); err != nil {
		return err
	}
	return judgeFindings(found)
}

// findingsJSON is what explore prints as JSON.
type findingsJSON struct {
	Claims []explore.Finding `json:"claims"`
}

func judgeFindings(found []explore.Finding) error {
	for i := range found {
		f := &found[i]
		switch {
		case f.AsExpected():
		case f.Verdict == explore.Incomplete:
			return inconclusiveError("it has more states than a search keeps", "%s was not searched to its end", f.ID)
		default:
			return unsafeError("lockmigrate explore --claim "+f.ID, "%s is %s, expected %s", f.ID, f.Verdict, f.Expected)
		}
	}
	return nil
}

// exploreText is the claims one by one, if they were chosen, and their sums; then what broke that should not, and the count.
func exploreText(b *strings.Builder, env *environment, found []explore.Finding, chosen bool, wall time.Duration) {
	if chosen {
		b.WriteString(claimTable(env, found) + "\n")
	}
	b.WriteString(summary(env, found))
	if !chosen {
		b.WriteString("\nall claims:        lockmigrate explore --claim '*'\none, with its run: lockmigrate explore --claim LLL-clobber\n")
	}
	states := 0
	for i := range found {
		f := &found[i]
		states += f.States
		if !f.AsExpected() || chosen && len(found) == 1 {
			b.WriteString(counterexample(f))
		}
	}
	fmt.Fprintf(b, "\n%s, %s states, %.1fs (%s states a second)\n", counted(int64(len(found)), "claim"), thousands(int64(states)), wall.Seconds(), thousands(perSecond(int64(states), wall)))
}

// summary counts the verdicts, and says what they mean.
func summary(env *environment, found []explore.Finding) string {
	proven, broken, wrong := 0, 0, 0
	for i := range found {
		switch f := &found[i]; {
		case !f.AsExpected():
			wrong++
		case f.Verdict == explore.Violated:
			broken++
		default:
			proven++
		}
	}
	ink := env.ink()
	otherwise := "0"
	if wrong > 0 {
		otherwise = ink.Bad(fmt.Sprint(wrong))
	}
	return fmt.Sprintf(`proven               %s: all interleavings of a few clients were run, and none breaks the claim
broken, as expected  %d: the claim leaves out what the lock needs, or the old scheme does
otherwise            %s: not what is known of the claim, or not searched to the end
`, ink.Good(fmt.Sprint(proven)), broken, otherwise)
}

// claimTable has a row for each claim.
func claimTable(env *environment, found []explore.Finding) string {
	ink := env.ink()
	t := newTable("VERDICT|wrap", "CLAIM", "CLIENTS|wrap", "UNDER WHAT|wrap", "STATES|right spare", "DEPTH|right spare", "COMMANDS|right spare")
	for i := range found {
		f := &found[i]
		commands := ""
		if f.Verdict == explore.Violated {
			commands = fmt.Sprint(f.Ran)
		}
		t.Row(verdictWords(f, ink), f.ID, f.Clients, f.Assumptions, thousands(int64(f.States)), fmt.Sprint(f.Depth), commands)
	}
	return t.Render(env.screen(), ink)
}

// verdictWords says what a verdict is, beside the one that was expected.
func verdictWords(f *explore.Finding, ink palette) string {
	switch {
	case f.Verdict == explore.Incomplete:
		return ink.Warn("not searched to the end")
	case f.AsExpected() && f.Verdict == explore.Violated:
		return "broken, as expected"
	case f.AsExpected():
		return ink.Good("proven")
	case f.Verdict == explore.Violated && f.Expected == explore.Violated:
		return ink.Bad("BROKEN, but not as briefly as expected")
	case f.Verdict == explore.Violated:
		return ink.Bad("BROKEN, expected to hold")
	default:
		return ink.Bad("HOLDS, expected to break")
	}
}

// counterexample is the shortest run that breaks a claim, empty if there is none.
func counterexample(f *explore.Finding) string {
	if len(f.Trace) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, the shortest run that breaks it (%s; t counts ticks, inside is who holds the lock):\n", f.ID, counted(int64(f.Ran), "server command"))
	for _, line := range f.Trace {
		fmt.Fprintf(&b, "    %s\n", line)
	}
	return b.String()
}
