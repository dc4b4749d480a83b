package playground_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/simulate/playground"
	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// usual are the settings that the page begins with.
func usual(scheme string, change func(*playground.Settings)) playground.Settings {
	s := playground.Settings{Scheme: scheme, Clients: 4, SkewMS: 9000, LeaseMS: 10000, HoldMS: 2000, PollMS: 240}
	change(&s)
	return s
}

func TestWhereItBreaks(t *testing.T) {
	true0 := func(s *playground.Settings) { s.SkewMS = 0 }
	for _, c := range []struct {
		name     string
		settings playground.Settings
		cause    string // empty: it does not break
	}{
		{"a clock ahead", usual("legacy", func(*playground.Settings) {}), "skew"},
		{"a clock behind", usual("legacy", func(s *playground.Settings) { s.SkewMS = -9000 }), "skew"},
		{"true clocks", usual("legacy", true0), ""},
		{"work beyond the lease", usual("legacy", func(s *playground.Settings) { s.SkewMS, s.HoldMS = 0, 12000 }), "overrun"},
		{"pauses", usual("legacy", func(s *playground.Settings) { s.SkewMS, s.PauseMS = 0, 20000 }), "overrun"},
		{"the bridge", usual("bridge", func(*playground.Settings) {}), ""},
		{"tokens", usual("modern", func(*playground.Settings) {}), ""},
		{"tokens, and pauses beyond the TTL", usual("modern", func(s *playground.Settings) { s.PauseMS = 20000 }), "overrun"},
		{"tokens, and a failover", usual("modern", func(s *playground.Settings) { s.Failover = 3000 }), "failover"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := playground.Play(c.settings)
			require.NoError(t, err)
			assert.Len(t, p.Lanes, 4)
			assert.NotEmpty(t, p.Key)
			if c.cause == "" {
				assert.Nil(t, p.Break)
				assert.Greater(t, p.Turns, int64(20))
				return
			}
			require.NotNil(t, p.Break)
			assert.Equal(t, c.cause, p.Break.Cause)
			assert.NotEqual(t, p.Break.Inside.Name, p.Break.Second.Name)
			assert.Positive(t, p.Break.AtMS)
			assert.Equal(t, p.Break.AtMS, p.Both[0][0], "the picture shows it")
			last := p.Steps[len(p.Steps)-1]
			assert.Equal(t, "overlap", last.Mark, "the sentences lead up to it")
			assert.Contains(t, last.Sentence, p.Break.Second.Name)
			if c.cause == "skew" && c.settings.SkewMS > 0 {
				assert.Positive(t, p.Break.Inside.LeftMS, "the lease was live")
				assert.EqualValues(t, 9000, p.Break.Second.ClockMS)
			}
		})
	}
}

// TestTheSameRunAsAScenario: the file that the page offers has the run that the page shows. And the map never shows a break where the page's
// longer look finds none.
func TestTheSameRunAsAScenario(t *testing.T) {
	for n := range uint64(60) {
		g := rand.New(rand.NewPCG(n, 5))
		s := playground.Settings{
			Scheme: sim.Schemes[g.IntN(len(sim.Schemes))], Clients: 2 + g.IntN(9), SkewMS: 500 * (g.IntN(49) - 24), LeaseMS: 1000 * (2 + g.IntN(19)),
			HoldMS: 500 * (1 + g.IntN(24)), PollMS: 20 * (1 + g.IntN(50)), PauseMS: 1000 * max(0, g.IntN(40)-20), Failover: 100 * max(0, g.IntN(60)-30),
		}
		p, err := playground.Play(s)
		require.NoError(t, err, "%+v", s)
		again, err := scenario.Parse(p.Scenario)
		require.NoError(t, err, p.Scenario)
		r := new(sim.World).Run(&again.Fleet, again.Seed)
		assert.Equal(t, p.Break != nil, r.Overlaps > 0, "%+v", s)
		for _, e := range again.Expect {
			_, met := e.Met(&r.Tally)
			assert.True(t, met, "%v: %+v", e, s)
		}
		broken, err := playground.Broken(s)
		require.NoError(t, err)
		if broken%8 > 0 {
			assert.NotNil(t, p.Break, "%+v", s)
		}
	}
}

func TestSettingsThatMakeNoFleet(t *testing.T) {
	for name, s := range map[string]playground.Settings{
		"no scheme":                          usual("redlock", func(*playground.Settings) {}),
		"no clients":                         usual("legacy", func(s *playground.Settings) { s.Clients = 0 }),
		"no lease":                           usual("legacy", func(s *playground.Settings) { s.LeaseMS = 0 }),
		"no poll":                            usual("legacy", func(s *playground.Settings) { s.PollMS = 0 }),
		"a pause that ends before it begins": usual("legacy", func(s *playground.Settings) { s.PauseMS = -1 }),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := playground.Play(s)
			require.Error(t, err)
			_, err = playground.Broken(s)
			require.Error(t, err)
		})
	}
}

// TestSweep: the page of a sweep is one small file that loads nothing, the same for the same seed. Each scheme that breaks has a smallest run of
// each of its maps, which breaks; the last run is the clobber.
func TestSweep(t *testing.T) {
	table := sim.StandardGrid()
	table.Skews = sim.Range(-12*time.Second, 12*time.Second, 6*time.Second)
	plan := sim.Sweep{Cells: table.Cells(), Runs: 2, Seed: 1}
	outcomes, err := plan.Run(t.Context())
	require.NoError(t, err)
	r := sim.Collect(table, outcomes, 1)
	s := playground.OfSweep(r, "lockmigrate simulate")
	var page, again bytes.Buffer
	require.NoError(t, s.Write(&page))
	require.NoError(t, playground.OfSweep(r, "lockmigrate simulate").Write(&again))
	assert.Equal(t, page.String(), again.String(), "the same seed is the same file")
	assert.Less(t, page.Len(), 500_000)
	assert.NotContains(t, page.String(), "ZgotmplZ")
	assert.NotRegexp(t, `(?i)src\s*=\s*"?(https?:|//)|\burl\(|@import|fetch\(|XMLHttpRequest`, page.String(), "nothing may be loaded")
	shown := map[string]int{}
	for _, run := range s.Runs {
		shown[run.Scheme]++
		require.NotNil(t, run.Break, run.Scenario)
		require.NotEmpty(t, run.Replay)
		file, err := scenario.Parse(run.Scenario)
		require.NoError(t, err)
		assert.Positive(t, new(sim.World).Run(&file.Fleet, file.Seed).Overlaps, run.Scenario)
	}
	assert.Equal(t, "clobber", s.Runs[len(s.Runs)-1].Scheme)
	for _, row := range s.Schemes {
		broken := 0
		for i, cells := range append(slices.Clone(row.Maps["lease"]), row.Maps["hold"]...) {
			for c, n := range cells {
				if n%8 > 0 {
					broken++
				}
				o := &outcomes[slices.Index(table.Schemes, row.Scheme)*len(table.Skews)*(len(table.Leases)+len(table.Holds))+i*len(cells)+c]
				require.Equal(t, o.Breaks(), n >= 8, "%+v", o.Cell)
			}
		}
		assert.Equal(t, row.Broken, broken, row.Scheme)
		assert.Equal(t, broken > 0, shown[row.Scheme] > 0, row.Scheme)
	}
}
