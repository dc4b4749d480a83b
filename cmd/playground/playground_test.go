//go:build !js

package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// usual are the settings that the page begins with.
func usual(scheme string, change func(*Settings)) Settings {
	s := Settings{Scheme: scheme, Clients: 4, SkewMS: 9000, LeaseMS: 10000, HoldMS: 2000, PollMS: 240}
	change(&s)
	return s
}

func TestWhereItBreaks(t *testing.T) {
	true0 := func(s *Settings) { s.SkewMS = 0 }
	for _, c := range []struct {
		name     string
		settings Settings
		cause    string // empty: it does not break
	}{
		{"a clock ahead", usual("legacy", func(*Settings) {}), "skew"},
		{"a clock behind", usual("legacy", func(s *Settings) { s.SkewMS = -9000 }), "skew"},
		{"true clocks", usual("legacy", true0), ""},
		{"work beyond the lease", usual("legacy", func(s *Settings) { s.SkewMS, s.HoldMS = 0, 12000 }), "overrun"},
		{"pauses", usual("legacy", func(s *Settings) { s.SkewMS, s.PauseMS = 0, 20000 }), "overrun"},
		{"the bridge", usual("bridge", func(*Settings) {}), ""},
		{"tokens", usual("modern", func(*Settings) {}), ""},
		{"tokens, and pauses beyond the TTL", usual("modern", func(s *Settings) { s.PauseMS = 20000 }), "overrun"},
		{"tokens, and a failover", usual("modern", func(s *Settings) { s.Failover = 3000 }), "failover"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Play(c.settings)
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
		s := Settings{
			Scheme: sim.Schemes[g.IntN(len(sim.Schemes))], Clients: 2 + g.IntN(9), SkewMS: 500 * (g.IntN(49) - 24), LeaseMS: 1000 * (2 + g.IntN(19)),
			HoldMS: 500 * (1 + g.IntN(24)), PollMS: 20 * (1 + g.IntN(50)), PauseMS: 1000 * max(0, g.IntN(40)-20), Failover: 100 * max(0, g.IntN(60)-30),
		}
		p, err := Play(s)
		require.NoError(t, err, "%+v", s)
		again, err := sim.Parse(p.Scenario)
		require.NoError(t, err, p.Scenario)
		r := new(sim.World).Run(&again.Fleet, again.Seed)
		assert.Equal(t, p.Break != nil, r.Overlaps > 0, "%+v", s)
		for _, e := range again.Expect {
			_, met := e.Met(&r.Tally)
			assert.True(t, met, "%v: %+v", e, s)
		}
		broken, err := Broken(s)
		require.NoError(t, err)
		if broken%8 > 0 {
			assert.NotNil(t, p.Break, "%+v", s)
		}
	}
}

func TestSettingsThatMakeNoFleet(t *testing.T) {
	for name, s := range map[string]Settings{
		"no scheme":                          usual("redlock", func(*Settings) {}),
		"no clients":                         usual("legacy", func(s *Settings) { s.Clients = 0 }),
		"no lease":                           usual("legacy", func(s *Settings) { s.LeaseMS = 0 }),
		"no poll":                            usual("legacy", func(s *Settings) { s.PollMS = 0 }),
		"a pause that ends before it begins": usual("legacy", func(s *Settings) { s.PauseMS = -1 }),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Play(s)
			require.Error(t, err)
			_, err = Broken(s)
			require.Error(t, err)
		})
	}
}
