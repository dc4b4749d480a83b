package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/simulate/explore"
)

// exploreFlags are the flags of explore.
type exploreFlags struct {
	claims []string
	trace  bool
	states int
}

func newExploreCommand(env *environment) *cobra.Command {
	var flags exploreFlags
	cmd := &cobra.Command{
		Use:   "explore [flags]",
		Short: "Run every interleaving of a few clients: prove a claim or break it",
		Long: `explore takes claims about two to four lock clients and runs every interleaving of
their real protocol code. A claim says which delays, crashes, late deletes, lost
replies and failovers may happen. Either no interleaving has two holders at once, and
the claim holds within its bounds; or it prints the shortest run that has.

Each claim has the verdict that is known of it. Exit code 3 if one differs.`,
		Example: `  lockmigrate explore
  lockmigrate explore --claim LLL-clobber
  lockmigrate explore --claim 'LB-*' --trace`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runExplore(cmd.Context(), env, flags)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&flags.claims, "claim", nil, "only the claims of these `ID`s; a * at the end stands for any")
	f.BoolVar(&flags.trace, "trace", false, "print the counterexamples, also when all verdicts are as expected")
	f.IntVar(&flags.states, "states", explore.DefaultStates, "stop a search after this many states, as incomplete")
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
			prefix, wild := strings.CutSuffix(p, "*")
			if strings.EqualFold(c.ID, p) || wild && strings.HasPrefix(strings.ToLower(c.ID), strings.ToLower(prefix)) {
				chosen = append(chosen, c)
			}
		}
		if len(chosen) == before {
			return nil, usageError(`"lockmigrate explore" lists them`, "no claim is named %q", p)
		}
	}
	return slices.CompactFunc(chosen, func(a, b explore.Claim) bool { return a.ID == b.ID }), nil
}

func runExplore(ctx context.Context, env *environment, flags exploreFlags) error {
	claims, err := chooseClaims(flags.claims)
	if err != nil {
		return err
	}
	if flags.states < 1 {
		return usageError("give a number above zero", "--states %d", flags.states)
	}
	status := env.status()
	defer status.Clear()
	start := env.now()
	found := make([]explore.Finding, len(claims))
	done := searchAll(ctx, env, claims, flags.states, found)
	for i := range claims {
		status.Update(func() string { return fmt.Sprintf("%s (%d of %d)", claims[i].ID, i+1, len(claims)) })
		<-done[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		if !env.global.json {
			status.Clear()
			printFinding(env, &found[i], flags.trace || len(flags.claims) == 1)
		}
	}
	wall := env.now().Sub(start)
	status.Clear()
	if env.global.json {
		if err := printFindingsJSON(env, found); err != nil {
			return err
		}
	}
	return judgeFindings(env, found, wall)
}

// searchAll searches the claims on all cores; done[i] is closed when found[i] is there. The searches
// know nothing of each other, so their findings are the same in any order.
func searchAll(ctx context.Context, env *environment, claims []explore.Claim, states int, found []explore.Finding) []chan struct{} {
	done := make([]chan struct{}, len(claims))
	for i := range done {
		done[i] = make(chan struct{})
	}
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(claims) {
					return
				}
				start := env.now()
				found[i] = explore.Check(ctx, claims[i], explore.Limits{States: states})
				found[i].Took = env.now().Sub(start)
				close(done[i])
			}
		}()
	}
	return done
}

func judgeFindings(env *environment, found []explore.Finding, wall time.Duration) error {
	states := 0
	for i := range found {
		states += found[i].States
	}
	if !env.global.json {
		fmt.Fprintf(env.stdout, "%d claims, %s states, %.1fs (%s states a second)\n", len(found), thousands(int64(states)), wall.Seconds(), thousands(perSecond(int64(states), wall)))
	}
	for i := range found {
		f := &found[i]
		switch {
		case f.AsExpected():
		case f.Verdict == explore.Incomplete:
			return inconclusiveError("raise --states", "%s was not searched to its end", f.ID)
		default:
			return unsafeError("lockmigrate explore --claim "+f.ID, "%s is %s, expected %s", f.ID, f.Verdict, f.Expected)
		}
	}
	return nil
}

func printFinding(env *environment, f *explore.Finding, trace bool) {
	mark := "ok "
	if !f.AsExpected() {
		mark, trace = "NOT", true
	}
	complete := "complete"
	if !f.Complete {
		complete = "not complete"
	}
	size := fmt.Sprintf("%s states, depth %d, %s", thousands(int64(f.States)), f.Depth, complete)
	if f.Violated {
		size = fmt.Sprintf("%d server commands, depth %d, %s states", explore.Commands(f.Trace), f.Depth, thousands(int64(f.States)))
	}
	fmt.Fprintf(env.stdout, "%s %-10s %-26s %-6s %s (%s)\n", mark, f.Verdict, f.ID, f.Clients, f.Assumptions, size)
	if trace {
		for i := range f.Trace {
			fmt.Fprintf(env.stdout, "    %s\n", f.Trace[i].Text(f.Model))
		}
	}
}

// claimJSON is one claim in JSON.
type claimJSON struct {
	ID              string          `json:"id"`
	Clients         string          `json:"clients"`
	Assumptions     string          `json:"assumptions"`
	Verdict         explore.Verdict `json:"verdict"`
	Expected        explore.Verdict `json:"expected"`
	Complete        bool            `json:"complete"`
	States          int             `json:"states"`
	Depth           int             `json:"depth"`
	Commands        int             `json:"commands"`
	StatesPerSecond int64           `json:"states_per_second"`
	Trace           []string        `json:"trace"`
}

func printFindingsJSON(env *environment, found []explore.Finding) error {
	claims := make([]claimJSON, len(found))
	for i := range found {
		f := &found[i]
		claims[i] = claimJSON{
			f.ID, f.Clients, f.Assumptions, f.Verdict, f.Expected, f.Complete, f.States, f.Depth,
			explore.Commands(f.Trace), perSecond(int64(f.States), f.Took), []string{},
		}
		for j := range f.Trace {
			claims[i].Trace = append(claims[i].Trace, f.Trace[j].Text(f.Model))
		}
	}
	return json.NewEncoder(env.stdout).Encode(struct {
		Claims []claimJSON `json:"claims"`
	}{claims})
}
