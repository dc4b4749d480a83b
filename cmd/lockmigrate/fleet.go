package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/load"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/report"
	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// mostWords is how many words an error lists: all options of a client, but not all names of a large fleet.
const mostWords = 60

// readScenario reads a fleet from a file.
func readScenario(path string) (*scenario.Scenario, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fileError(err)
	}
	if isProfile(path) {
		return nil, usageError("give --profile "+path, "%s is a profile of observe, and no scenario", path)
	}
	s, err := scenario.Parse(string(text))
	var line *scenario.Error
	switch {
	case errors.As(err, &line) && line.Word != "":
		hint := line.Hint()
		if len(line.Known) <= mostWords {
			hint = "known are " + strings.Join(line.Known, ", ")
		}
		return nil, usageError(hint, "%s: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// runScenario runs a scenario file and compares it with what the file expects.
func runScenario(env *environment, flags *simulateFlags) error {
	path := flags.scenario
	s, err := readScenario(path)
	if err != nil {
		return err
	}
	return runFleet(env, s, flags, path, nil)
}

// runFleet runs a fleet that a file describes. Where clients overlapped it says which, and how to see it. The page is written where
// there is one.
func runFleet(env *environment, s *scenario.Scenario, flags *simulateFlags, path string, page *report.Fleet) error {
	if flags.run > 0 {
		s.Fleet.Until = flags.run
	}
	if flags.load.on {
		return runLoad(env, &s.Fleet, &flags.load, s.Seed, flags.workers)
	}
	counts := map[[2]int]int64{}
	play := sim.Parallel{Workers: flags.workers, Overlap: func(came, inside int) { counts[[2]int{came, inside}]++ }}
	if page != nil {
		play.Watch = page.Watch
	}
	start := env.now()
	played := play.Run(&s.Fleet, s.Seed, max(s.Seeds, 1))
	wall := env.now().Sub(start)
	if flags.determinism {
		again := sim.Parallel{Workers: 1}
		if flags.workers == 1 {
			again.Workers = 3
		}
		if second := again.Run(&s.Fleet, s.Seed, max(s.Seeds, 1)); second.Sum() != played.Sum() {
			return failedError("this is a bug in the simulator", "two runs of the same seed differ")
		}
	}
	sum := played.Sum()
	tally, blamed := sum.Tally, blame(s, counts)
	if page != nil {
		status := env.status()
		page.Play(played, flags.workers, func(stage string) { status.Update(func() string { return "simulate: the fleet at stage " + stage }) })
		status.Clear()
		if err := writeFile(flags.html, page.Write); err != nil {
			return err
		}
		env.note("the page is in %s", flags.html)
	}
	if err := printFleet(env, s, &sum, blamed, wall); err != nil {
		return err
	}
	for _, e := range s.Expect {
		if got, ok := e.Met(&tally); !ok {
			hint := "lockmigrate replay " + path
			if len(blamed) > 0 {
				hint = flags.replay(path, played.Broken)
			}
			return unsafeError("see the run with: "+hint, "expected %s, got %d", e, got)
		}
	}
	return nil
}

// replay is the command that tells the run of a seed.
func (f *fleetFlags) replay(path string, seed uint64) string {
	return fmt.Sprintf("lockmigrate replay %s --seed %d --as story%s", path, seed, f.line())
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
func blame(s *scenario.Scenario, counts map[[2]int]int64) (list []overlapOf) {
	for pair, n := range counts {
		a, b := &s.Fleet.Clients[pair[0]], &s.Fleet.Clients[pair[1]]
		list = append(list, overlapOf{report.Who(&s.Fleet, pair[0]), a.Offset.Milliseconds(), report.Who(&s.Fleet, pair[1]), b.Offset.Milliseconds(), n})
	}
	slices.SortFunc(list, func(a, b overlapOf) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Client, b.Client), cmp.Compare(a.Beside, b.Beside))
	})
	return list
}

func printFleet(env *environment, s *scenario.Scenario, sum *sim.Result, blamed []overlapOf, wall time.Duration) error {
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
		var hazards []string
		for h, n := range t.Hazards {
			if n > 0 {
				hazards = append(hazards, sim.Hazard(h).String()+" "+thousands(n))
			}
		}
		fmt.Fprintf(out, "hazards      %s\n", cmp.Or(strings.Join(hazards, ", "), "none"))
		overlaps := env.ink().Good("none")
		if t.Overlaps > 0 {
			overlaps = env.ink().Bad(thousands(t.Overlaps))
		}
		fmt.Fprintf(out, "overlaps     %s\n", overlaps)
		for a := range t.Pairs {
			for b, n := range t.Pairs[a] {
				if n > 0 {
					fmt.Fprintf(out, "             of %s with %s: %s\n", model.Scheme(a), model.Scheme(b), thousands(n))
				}
			}
		}
		if len(blamed) > 0 {
			pairs := terminal.NewTable(terminal.Column{Head: "CAME IN", Wrap: true}, terminal.Column{Head: "CLOCK", Right: true}, terminal.Column{Head: "BESIDE", Wrap: true},
				terminal.Column{Head: "CLOCK", Right: true}, terminal.Column{Head: "TIMES", Right: true})
			for _, o := range blamed[:min(len(blamed), 10)] {
				pairs.Row(o.Client, fmt.Sprintf("%+d ms", o.ClockMS), o.Beside, fmt.Sprintf("%+d ms", o.OtherMS), thousands(o.Times))
			}
			out.WriteString("\n" + pairs.Render(env.screen(), env.ink()))
			if more := len(blamed) - 10; more > 0 {
				fmt.Fprintf(out, "and %s\n", counted(int64(more), "more pair"))
			}
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

// runProfile simulates the fleet that observe saw.
func runProfile(env *environment, flags *simulateFlags) error {
	s, err := readProfile(env, flags.profile, &flags.fleetFlags, flags.axes.Lease, flags.axes.Hold)
	if err == nil {
		err = writable(flags.html)
	}
	if err != nil {
		return err
	}
	s.Seed, s.Seeds = flags.seed, flags.runs
	s.Fleet.Masters = cmp.Or(flags.load.masters, s.Fleet.Masters)
	flags.load.family = s.family
	if flags.html == "" {
		return runFleet(env, &s.Scenario, flags, flags.profile, nil)
	}
	page := &report.Fleet{
		From: flags.profile, Command: flags.command, Plays: &s.Fleet, Clients: s.clients, Seed: s.Seed, Seeds: s.Seeds,
		Family: s.family,
		Replay: func(seed uint64) string { return flags.replay(flags.profile, seed) },
		Next:   nextOf(s.match),
	}
	return runFleet(env, &s.Scenario, flags, flags.profile, page)
}

// nextOf is how a reader of a profile's page asks for the next step.
func nextOf(match []string) string {
	if len(match) == 0 {
		match = []string{"PATTERN"}
	}
	return "lockmigrate next --namespace NAME" + matchFlags(match)
}

// profiled is the fleet of a profile, with the names that the profile has for its clients and keys.
type profiled struct {
	scenario.Scenario
	clients  []string          // by number
	families map[string]string // by the prefix of their keys
	match    []string          // the patterns that observe was given
}

// family is where a key of the fleet comes from, as the profile names it.
func (p *profiled) family(key string) string { return p.families[strings.TrimRight(key, "0123456789")] }

// isProfile tells a profile of observe, which is JSON, from a scenario, which is text.
func isProfile(path string) bool {
	text, err := os.ReadFile(path)
	return err == nil && strings.HasPrefix(strings.TrimSpace(string(text)), "{")
}

// readProfile makes a fleet of what observe wrote. Lease and hold stand in where observe could not tell them.
func readProfile(env *environment, path string, flags *fleetFlags, lease, hold time.Duration) (*profiled, error) {
	p, err := openProfile(path)
	if err != nil {
		return nil, err
	}
	setting, err := flags.setting()
	if err != nil {
		return nil, err
	}
	s := &profiled{Scenario: scenario.Scenario{Seeds: 1}, families: map[string]string{}, match: p.Match}
	s.Fleet = sim.Fleet{Network: setting.Network, Until: 10 * time.Minute}
	for _, w := range p.Windows {
		s.Fleet.Masters = max(s.Fleet.Masters, w.Masters)
	}
	if err := flags.remember(env, p.Failovers); err != nil {
		return nil, err
	}
	s.Fleet.Server = flags.failovers.server()
	prefixes, named := map[string]string{}, map[string]bool{} // of the sets that the profile names; the clients
	for i, sets := range p.Sets() {
		scheme, dialect, why := playedBy(&p.Clients[i], setting.Dialect)
		if why != "" {
			env.note("left out: %s: no scheme here plays clients of %s", terminal.Quoted(p.Clients[i].Name), why)
			continue
		}
		for len(sets) > 0 { // a client that works on several families has a lease and hold times for each
			family := sets[0].Family
			ofFamily := func(set profile.Set) bool { return set.Family == family }
			c := workOn(p, i, family, lease, hold)
			c.Scheme, c.Dialect, c.Chaos = scheme, dialect, setting.Chaos
			c.Member.Release = c.Dialect.Release
			if !scheme.Old() {
				c.Renew, c.Settle, c.Grace = c.Lease/3, 50*time.Millisecond, 500*time.Millisecond
			}
			if scheme == model.Bridge { // as package compat waits
				c.Queue, c.Tracks, c.Yield, c.Claim = true, true, dialect.Poll+dialect.Poll/5, min(c.Lease/3, 3*time.Second)
			}
			for _, set := range sets {
				if ofFamily(set) {
					c.Keys = append(c.Keys, keySetOf(set, prefixes))
					s.families[c.Keys[len(c.Keys)-1].Prefix] = set.Family
				}
			}
			sets = slices.DeleteFunc(sets, ofFamily)
			for range max(p.Clients[i].AtOnce, 1) {
				one := c
				one.Owner = fmt.Sprintf("%08x-0000-4000-8000-000000000000", len(s.Fleet.Clients)+1)
				if one.Name = plainName(p.Clients[i].Name); named[one.Name] {
					one.Name = fmt.Sprintf("%s.%d", one.Name, len(s.Fleet.Clients)+1)
				}
				named[one.Name] = true
				s.clients = append(s.clients, p.Clients[i].Name)
				if s.Fleet.Clients = append(s.Fleet.Clients, one); len(s.Fleet.Clients) > load.MostClients {
					return nil, usageError("observe one namespace at a time", "%s names more than %d clients", path, load.MostClients)
				}
			}
		}
	}
	if len(s.Fleet.Clients) == 0 {
		return nil, usageError("observe for longer, or where locks are used", "%s names no client that takes locks", path)
	}
	s.Expect = []scenario.Expectation{{What: "overlaps", Op: "=", N: 0}}
	return s, nil
}

// playedBy is what plays a client that was observed, or why nothing does.
func playedBy(seen *profile.Client, usual *protocol.Dialect) (scheme model.Scheme, dialect *protocol.Dialect, why string) {
	scheme, known := model.SchemeNamed(seen.Kind)
	if !known {
		return scheme, nil, "kind " + terminal.Quoted(seen.Kind)
	}
	dialect, err := protocol.DialectNamed(seen.Dialect)
	switch {
	case err == nil:
		return scheme, dialect, ""
	case seen.Kind == "legacy" && seen.Dialect != "":
		return scheme, nil, fmt.Sprintf("kind %s, dialect %s", seen.Kind, terminal.Quoted(seen.Dialect))
	default:
		return scheme, usual, ""
	}
}

// workOn is one connection of a client, at work on one family of keys.
func workOn(p profile.Profile, i int, family string, lease, hold time.Duration) sim.Client {
	seen := &p.Clients[i]
	use := seen.Use(family)
	c := sim.Client{Member: model.Member{
		Patience: time.Hour, Lease: ms(use.LeaseMS, lease), Poll: ms(seen.PollMS, 100*time.Millisecond),
	}, Offset: time.Duration(seen.SkewMS * float64(time.Millisecond))}
	if rate, e, ok := seen.Drift(); ok && math.Abs(rate) > e {
		c.DriftPPM = int64(rate)
	}
	hold = min(hold, c.Lease/2)
	c.Hold, c.Think = sim.Uniform(hold/2, hold*3/2), sim.Uniform(0, hold)
	if use.Hold.N > 0 {
		c.Hold = measured(use.Hold)
	}
	if use.Acquired > 0 && p.Seconds() > 0 {
		c.Think = between(float64(use.Acquired)/p.Seconds()/float64(max(seen.AtOnce, 1)), c.Hold)
	}
	c.First = sim.Uniform(0, c.Think.Mean()+c.Hold.Mean())
	return c
}

// keySetOf is a set of the profile by a name that a scenario can have.
func keySetOf(set profile.Set, prefixes map[string]string) sim.KeySet {
	prefix, known := prefixes[set.Name]
	if !known {
		prefix = fmt.Sprintf("%s.%d:", plainName(set.Family), len(prefixes)+1)
		prefixes[set.Name] = prefix
	}
	return sim.KeySet{Prefix: prefix, Count: set.Count, Weight: uint32(min(max(set.Acquired*100, 1), 1<<20-1))}
}

// plainName replaces what means something to a scenario's reader.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || strings.ContainsRune("#*%@=", r) {
			return '-'
		}
		return r
	}, name)
}

func ms(n float64, or time.Duration) time.Duration {
	if n <= 0 {
		return or
	}
	return time.Duration(n * float64(time.Millisecond))
}

// between is the pause after each turn with which a client takes a lock so often: what is left of the
// average turn's share of the time. Waits come on top of it: a fleet that waits takes fewer.
func between(perSecond float64, hold sim.Distribution) sim.Distribution {
	think := max(time.Duration(float64(time.Second)/perSecond)-hold.Mean(), 0)
	return sim.Uniform(think/2, think*3/2)
}

// measured makes a distribution of what observe saw.
func measured(seen profile.Spread) sim.Distribution {
	var d sim.Distribution
	for _, q := range seen.Quantiles {
		d = append(d, sim.Quantile{Permyriad: uint32(q.Share * 10000), Value: time.Duration(q.MS * float64(time.Millisecond))})
	}
	return d
}
