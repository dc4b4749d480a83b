package forecast

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// failing is a fleet on one key, whose holds outlast an outage.
func failing(skews ...float64) profile.Profile {
	p := observed(skews...)
	for i := range p.Clients {
		u := &p.Clients[i].Uses[0]
		p.Clients[i].PollMS = 500
		u.LeaseMS, u.Hold, u.Think = 30_000, spread(1e6, 4000, 20_000), spread(1e6, 0, 40_000)
		u.Acquired, p.Families[0].Groups[0].Acquired[i] = 90, 90
	}
	return p
}

// waited counts what failovers that come now and then bring, and how many of them: the simulator's own.
func waited(g *group, failovers Failovers, run time.Duration) (found weighed, times int64) {
	f := g.draw(rand.New(rand.NewPCG(1, 1)), 0, 0.5).fleet(-1, run)
	f.Network.Timeout = clientTimeout
	f.Server = failovers.server()
	found = play(new(sim.World), f, 1, 1)
	return onlyFailovers(found), found.Failovers
}

// TestForecastFailovers: one failover brings as many double holds by conditioning as the simulator counts where failovers come now and
// then: for old clients, bridge members, tokens, and behind sidecars. Where clocks are apart as well, they are told apart.
func TestForecastFailovers(t *testing.T) {
	measures(t, redistest.Proofs)
	for _, c := range []struct {
		name    string
		becomes func(model.Member, protocol.MemberTerms) model.Member
		skews   []float64
		told    bool
		hours   time.Duration // for some two hundred double holds
	}{
		{"old", nil, []float64{0, 0, 0}, false, 120}, {"apart", nil, []float64{0, 15_000, 0}, false, 120},
		{"bridge", atBridge, []float64{0, 0, 0}, true, 300}, {"modern", atModern, []float64{0, 0, 0}, true, 300}, {"sidecar", model.BehindSidecar, []float64{0, 0, 0}, false, 300},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := fleetOf(failing(c.skews...), false)
			require.NoError(t, err)
			g := stage{becomes: c.becomes, share: 1}.of(f, nil)[0]
			o := Options{Draws: 60, Commands: 1_000_000, Failovers: Failovers{Every: 4 * time.Minute, Outage: time.Second, Behind: 4 * time.Second}}
			require.NoError(t, o.defaults())
			made := o.overthrown(&g, 1)
			each := sum(made.causes[:])
			found, times := waited(&g, o.Failovers, c.hours*time.Hour)
			waiting := float64(found.Overlaps) / float64(times)
			t.Logf("a failover brings %.4f by conditioning (%.0f events), %.4f by waiting for %d; told %.4f, %.4f", each, made.events, waiting, found.Overlaps, made.told, float64(found.Told[sim.FailedOver])/float64(times))
			require.Greater(t, found.Overlaps, int64(120))
			assert.InEpsilon(t, waiting, each, 0.3)
			if !c.told {
				assert.Zero(t, made.told)
				return
			}
			assert.InEpsilon(t, float64(found.Told[sim.FailedOver])/float64(times), made.told, 0.3)
		})
	}
}

// TestForecastAnyName: what a client is called changes no number. A blank in a name was taken for the end of a waiter's channel.
func TestForecastAnyName(t *testing.T) {
	measures(t)
	var each []float64
	for _, name := range []string{"java-2", "java 2 -\n{x}"} {
		p := failing(0, 0, 0)
		p.Clients[1].Name = name
		f, err := fleetOf(p, false)
		require.NoError(t, err)
		g := stage{becomes: atModern, share: 1}.of(f, nil)[0]
		o := Options{Draws: 20, Commands: 1, Failovers: Failovers{Every: time.Minute, Outage: time.Second, Behind: 4 * time.Second}}
		require.NoError(t, o.defaults())
		made := o.overthrown(&g, 1)
		each = append(each, sum(made.causes[:]))
	}
	assert.Positive(t, each[0])
	assert.Equal(t, each[0], each[1])
}

// TestForecastFailoversInTheSpan: the forecast has as many double holds as failovers bring, at every stage, and the interval
// has the chance of none. A replica that is never behind loses nothing.
func TestForecastFailoversInTheSpan(t *testing.T) {
	measures(t, redistest.Proofs)
	p := failing(0, 0, 0)
	o := Options{Draws: 20, Commands: 40_000, Span: 240 * time.Hour, Failovers: Failovers{Every: 2 * time.Hour, Outage: 2 * time.Second, Behind: 2 * time.Second}}
	f := made(t, p, o)
	for _, s := range f.Stages {
		l := s.Failovers
		require.NotNil(t, l, s.Name)
		assert.Positive(t, l.Count.Mean, s.Name)
		assert.InEpsilon(t, l.Count.Mean, 120*l.Each, 1e-9, "120 failovers of one master")
		assert.InEpsilon(t, l.Count.Mean, l.Told+l.Untold, 1e-9)
		assert.LessOrEqual(t, l.Count.Low, l.Count.Mean)
		assert.GreaterOrEqual(t, l.Count.High, l.Count.Mean)
		assert.InDelta(t, l.Count.Mean, share(s.Causes, "failover"), 1e-9, s.Name)
		assert.InDelta(t, l.Count.Mean, share(s.Clients, theServer), 1e-9, s.Name)
	}
	assert.Zero(t, f.Stages[0].Failovers.Told, "the old code hears of nothing")

	p.Window.Masters = 64
	o.Today = true
	assert.InEpsilon(t, f.Stages[0].Failovers.Count.Mean, made(t, p, o).Stages[0].Failovers.Count.Mean, 1e-9, "a key is on one master, of however many")
	o.Failovers.Behind = 0
	for _, s := range made(t, p, o).Stages {
		assert.Equal(t, Interval{}, s.Failovers.Count, s.Name)
	}
	o.Failovers = Failovers{}
	without := made(t, p, o)
	assert.Nil(t, without.Stages[0].Failovers)
	assert.Zero(t, share(without.Stages[0].Causes, "failover"))
}

func share(all []Share, name string) float64 {
	for _, s := range all {
		if s.Name == name {
			return s.Mean
		}
	}
	return 0
}
