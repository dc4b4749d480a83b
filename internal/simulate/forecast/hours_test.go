package forecast

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// TestForecastByHour: a fleet with a clock that is off works from 8 to 18 h, and hardly in the other hours. The forecast of both times is what
// a simulation of each of them finds. Before, all day was as busy as the mean.
func TestForecastByHour(t *testing.T) {
	measures(t, redistest.Proofs)
	p := observed(0, 7000, 0)
	p.Windows[0] = profile.Window{Start: time.Date(2026, 5, 4, 0, 0, 0, 0, time.UTC), Seconds: 24 * 3600, Masters: 1}
	found := map[bool]float64{} // double holds an hour: busy or not
	perHour := map[bool][]float64{}
	pauses := map[bool]profile.Spread{true: spread(100_000, 0, 3000), false: spread(100_000, 0, 120_000)}
	for _, busy := range []bool{true, false} {
		fl, err := fleetOf(observed(0, 7000, 0))
		require.NoError(t, err)
		g := fl.groups[0]
		turns := make([]float64, len(g.actors))
		for i := range g.actors {
			g.actors[i].think = pauses[busy]
		}
		hours := map[bool]float64{true: 10, false: 300}[busy]
		d := g.draw(rand.New(rand.NewPCG(3, 3)), 0, 0.5)
		playing := d.fleet(-1, time.Duration(hours*float64(time.Hour)))
		j := NewJudge(playing)
		w := &sim.World{Trace: func(r *sim.Record) {
			j.See(r)
			if r.Kind == sim.Enters {
				turns[r.Client]++
			}
		}}
		w.Run(playing, 1)
		found[busy] = float64(j.N) / hours
		for _, n := range turns {
			perHour[busy] = append(perHour[busy], n/hours)
		}
	}
	require.Greater(t, found[true], 20*found[false])
	for i := range p.Clients {
		u := &p.Clients[i].Uses[0]
		u.ByHour, u.Acquired = map[int]int64{}, 0
		for hour := range 24 {
			n := int64(perHour[hour >= 8 && hour < 18][i])
			u.ByHour[hour] = n
			u.Acquired += n
		}
		day, night := pauses[true], pauses[false]
		day.N, night.N = int64(10*perHour[true][i]), int64(14*perHour[false][i])
		u.Think = day.And(night)
		p.Families[0].Groups[0].Acquired[i] = u.Acquired
	}

	s := made(t, p, Options{Span: 10 * 24 * time.Hour, Draws: 20, Commands: 1, Today: true}).Stages[0]
	require.Len(t, s.Times, 3)
	t.Logf("an hour of the day has %.1f, of the night %.2f; forecast %v", found[true], found[false], s.Times)
	assert.Equal(t, "08:00 to 18:00 UTC", s.Times[1].Name)
	assert.InEpsilon(t, 100*found[true], s.Times[1].Mean, 0.15)
	assert.Equal(t, []string{"00:00 to 08:00 UTC", "18:00 to 24:00 UTC"}, []string{s.Times[0].Name, s.Times[2].Name})
	assert.InEpsilon(t, 140*found[false], s.Times[0].Mean+s.Times[2].Mean, 0.3)
	assert.InEpsilon(t, s.Count.Mean, s.Times[0].Mean+s.Times[1].Mean+s.Times[2].Mean, 1e-9, "the parts are the whole")

	for i := range p.Clients {
		p.Clients[i].Uses[0].ByHour = nil
	}
	even := made(t, p, Options{Span: 10 * 24 * time.Hour, Draws: 20, Commands: 1, Today: true}).Stages[0]
	assert.Empty(t, even.Times)
	assert.Less(t, even.Count.Mean, 0.8*s.Count.Mean, "clients that come at the same hours meet more often")
}

// TestNightlyClient: a client that comes at night only meets nobody by day.
func TestNightlyClient(t *testing.T) {
	p := observed(0, 7000)
	p.Windows[0] = profile.Window{Start: time.Date(2026, 5, 4, 0, 0, 0, 0, time.UTC), Seconds: 24 * 3600, Masters: 1}
	for i, hours := range [][2]int{{6, 20}, {0, 6}} {
		u := &p.Clients[i].Uses[0]
		u.ByHour, u.Acquired = map[int]int64{}, 0
		for hour := hours[0]; hour < hours[1]; hour++ {
			u.ByHour[hour] = 400
			u.Acquired += 400
		}
		p.Families[0].Groups[0].Acquired[i] = u.Acquired
	}
	assert.Zero(t, made(t, p, Options{Draws: 20, Commands: 1, Today: true}).Stages[0].Count.Mean)
	p.Clients[1].Uses[0].ByHour[12] = 400
	assert.Positive(t, made(t, p, Options{Draws: 20, Commands: 1, Today: true}).Stages[0].Count.Mean)
}
