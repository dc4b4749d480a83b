package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// readScenario reads a fleet from a file.
func readScenario(path string) (*sim.Scenario, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fileError(err)
	}
	if strings.HasPrefix(strings.TrimSpace(string(text)), "{") {
		return nil, usageError(fmt.Sprintf("make one of it: lockmigrate forecast %s --scenario legacy", path), "%s is a profile of observe, and no scenario", path)
	}
	s, err := sim.Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// runScenario runs a scenario's fleet and compares it with what the file expects. Where clients overlapped it says which, and how to
// see it.
func runScenario(env *environment, s *sim.Scenario, path string) error {
	counts := map[[2]int]int64{}
	start := env.now()
	sum := sim.RunAll(&s.Fleet, s.Seed, max(s.Seeds, 1), func(came, inside int) { counts[[2]int{came, inside}]++ })
	wall := env.now().Sub(start)
	if err := printFleet(env, s, &sum, blame(s, counts), wall); err != nil {
		return err
	}
	for _, e := range s.Expect {
		if got, ok := e.Met(&sum.Tally); !ok {
			seed := s.Seed
			if sum.Broken > 0 {
				seed = sum.FirstSeed
			}
			return unsafeError(fmt.Sprintf("see the run with: lockmigrate simulate --scenario %s --seed %d --as story", path, seed), "expected %s, got %d", e, got)
		}
	}
	return nil
}

// overlapOf is how often one client came in while another was inside.
type overlapOf struct {
	Client  string `json:"client"`   // who came in
	ClockMS int64  `json:"clock_ms"` // by how much its clock is ahead at the start
	Beside  string `json:"beside"`
	OtherMS int64  `json:"beside_clock_ms"`
	Times   int64  `json:"times"`
}

// blame names the pairs that were inside at once, the most frequent first.
func blame(s *sim.Scenario, counts map[[2]int]int64) (list []overlapOf) {
	for pair, n := range counts {
		a, b := &s.Fleet.Clients[pair[0]], &s.Fleet.Clients[pair[1]]
		list = append(list, overlapOf{s.Fleet.Name(pair[0]), a.Offset.Milliseconds(), s.Fleet.Name(pair[1]), b.Offset.Milliseconds(), n})
	}
	slices.SortFunc(list, func(a, b overlapOf) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Client, b.Client), cmp.Compare(a.Beside, b.Beside))
	})
	return list
}

func printFleet(env *environment, s *sim.Scenario, sum *sim.Sum, blamed []overlapOf, wall time.Duration) error {
	t := &sum.Tally
	doc := struct {
		Seed         uint64           `json:"seed"`
		Seeds        int              `json:"seeds"`
		TraceHash    string           `json:"trace_hash"`
		Acquisitions int64            `json:"acquisitions"`
		Overlaps     int64            `json:"overlaps"`
		Failovers    int64            `json:"failovers"`
		OverlapMS    int64            `json:"overlap_ms"`
		Hazards      map[string]int64 `json:"hazards"`
		MeanWaitMS   int64            `json:"mean_wait_ms"`
		LongestMS    int64            `json:"longest_wait_ms"`
		BlockedMS    int64            `json:"ghost_blocked_ms"`
		Between      []overlapOf      `json:"overlaps_between"`
		WallSecs     float64          `json:"wall_seconds"`
	}{s.Seed, s.Seeds, fmt.Sprintf("%016x", sum.Hash), t.Acquisitions, t.Overlaps, t.Failovers, t.Overlapped.Milliseconds(),
		hazardCounts(t), meanWait(t).Milliseconds(), t.LongestWait.Milliseconds(), t.Blocked.Milliseconds(), append([]overlapOf{}, blamed...), wall.Seconds()}
	return env.print(doc, func(out *strings.Builder) {
		fmt.Fprintf(out, "played       %s on %s, %s of %v from seed %d, trace %016x\n", counted(int64(len(s.Fleet.Clients)), "client"), counted(int64(max(s.Fleet.Masters, 1)), "master"),
			counted(int64(s.Seeds), "run"), s.Fleet.Until, s.Seed, sum.Hash)
		fmt.Fprintf(out, "turns        %s, with %s; mean wait %s, longest %s\n", thousands(t.Turns), counted(t.Acquisitions, "acquisition"), short(meanWait(t)), short(t.LongestWait))
		if t.Failovers > 0 {
			fmt.Fprintf(out, "failovers    %s: %s of the holders at that moment lost their value\n", thousands(t.Failovers), thousands(t.Hazards[sim.LostUpdate]))
		}
		fmt.Fprintf(out, "hazards      %s\n", (&observe.Report{Hazards: doc.Hazards}).HazardText())
		fmt.Fprintf(out, "overlaps     %s\n", env.ink().Count(t.Overlaps))
		for a := range t.Pairs {
			for b, n := range t.Pairs[a] {
				if n > 0 {
					fmt.Fprintf(out, "             of %s with %s: %s\n", model.Scheme(a), model.Scheme(b), thousands(n))
				}
			}
		}
		if len(blamed) > 0 {
			pairs := newTable("CAME IN|wrap", "CLOCK|right", "BESIDE|wrap", "CLOCK|right", "TIMES|right")
			for _, o := range blamed[:min(len(blamed), 10)] {
				pairs.Row(o.Client, fmt.Sprintf("%+d ms", o.ClockMS), o.Beside, fmt.Sprintf("%+d ms", o.OtherMS), thousands(o.Times))
			}
			out.WriteString("\n" + pairs.Render(env.screen(), env.ink()))
			more(out, len(blamed)-10, "pairs")
		}
		fmt.Fprintf(out, "\n%s server operations in %.1fs (%s a second)\n", thousands(sum.Ops), wall.Seconds(), thousands(perSecond(sum.Ops, wall)))
	})
}

func meanWait(t *sim.Tally) time.Duration {
	if t.Acquisitions == 0 {
		return 0
	}
	return t.Waited / time.Duration(t.Acquisitions)
}

// nextOf is how a reader of a profile's page asks for the next step.
func nextOf(match []string) string {
	if len(match) == 0 {
		match = []string{aPattern}
	}
	return "lockmigrate next --namespace " + aName + matchFlags(match)
}
