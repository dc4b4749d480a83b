package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// spread is n values from lo to hi, evenly.
func spread(n int64, lo, hi float64) profile.Spread {
	return profile.Spread{N: n, Quantiles: []profile.Quantile{{Share: 0, MS: lo}, {Share: 1, MS: hi}}}
}

// observed is a profile of old clients on one key: lease 10 s, holds of 1 to 4 s, an hour long.
func observed(skews ...float64) profile.Profile {
	p := profile.Profile{Version: profile.Version, Window: profile.Window{Start: time.Unix(1e9, 0), Seconds: 3600, Masters: 1}}
	g := profile.Group{Keys: 1}
	for i, skew := range skews {
		p.Clients = append(p.Clients, profile.Client{
			Name: fmt.Sprintf("java-%d", i+1), Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewMS: skew, SkewKnown: true, PollMS: 100,
			Uses: []profile.Use{{Family: "order:#", Lease: profile.Lease{LeaseMS: 10_000, LeaseFrom: "given"}, Acquired: 400, Hold: spread(100_000, 1000, 4000), Wait: spread(400, 0, 3000), Think: spread(100_000, 0, 8000)}},
		})
		g.Clients, g.Acquired = append(g.Clients, i), append(g.Acquired, 400)
	}
	p.Families = []profile.Family{{Name: "order:#", Keys: 1, Groups: []profile.Group{g}}}
	return p
}

func made(t *testing.T, p profile.Profile, o Options) *Forecast {
	t.Helper()
	f, err := Make(p, o)
	require.NoError(t, err)
	return f
}

// measures leaves a test that simulates for many hours to a run without the race detector that names the components.
func measures(t *testing.T, components ...string) {
	redistest.Need(t, components...)
	redistest.Unraced(t)
}

// TestForecastCheck: the model agrees with what it makes itself, and not with none of it. A clock that drifts counts as it was: right at
// the beginning of the window, and 9 s ahead at its end. An hour from then on is worse.
func TestForecastCheck(t *testing.T) {
	measures(t, redistest.Proofs)
	p, o := observed(0, 7000, 0), Options{Draws: 20, Commands: 1, Today: true, Span: time.Hour}
	f := made(t, p, o)
	assert.False(t, f.Check.Agrees, "%+v: none was recorded", f.Check)
	expected := int64(f.Check.Expected.Mean + 0.5)
	require.Greater(t, expected, int64(20))
	p.Families[0].Overlaps = map[string]int64{"overrun": 1, "stale-delete": expected - 1}
	f = made(t, p, o)
	assert.True(t, f.Check.Agrees, "%+v", f.Check)
	assert.Equal(t, expected, f.Check.Recorded)

	p = observed(0, 9000, 0)
	for i := range 2 {
		p.Clients[1].Clock = append(p.Clients[1].Clock, profile.Reading{At: time.Unix(1e9+3600*int64(i), 0), SkewMS: 9000 * float64(i), ErrorMS: 1})
	}
	f = made(t, p, o)
	assert.Positive(t, f.Check.Expected.Mean)
	assert.Less(t, 2*f.Check.Expected.Mean, f.Stages[0].Count.Mean)
	p.Clients[0].Uses[0].LeaseMS = 0
	assert.Nil(t, made(t, p, o).Check, "a client is left out")
}

// TestForecastConditioned: runs that are conditioned on one long hold give the rate that waiting for it gives. The clocks are apart by
// 5 s, so holds beyond 5 s are risky: one in three hundred.
func TestForecastConditioned(t *testing.T) {
	measures(t, redistest.Proofs)
	p := observed(0, 5000, 0)
	for i := range p.Clients {
		p.Clients[i].Uses[0].Hold = profile.Spread{N: 1e7, Quantiles: []profile.Quantile{{Share: 0, MS: 1000}, {Share: 0.997, MS: 4000}, {Share: 1, MS: 9000}}}
		p.Clients[i].Uses[0].Acquired = 194
		p.Families[0].Groups[0].Acquired[i] = 194
		p.Clients[i].Uses[0].Think = spread(1e7, 0, 30_000)
	}
	f, err := fleetOf(p, false)
	require.NoError(t, err)
	o := Options{Draws: 60, Commands: 1}
	require.NoError(t, o.defaults())
	out := o.try(&f.groups[0], 1, o.ahead)
	require.True(t, out.rare, "holds beyond the edge are rare here")
	conditioned := 0.0
	for _, r := range out.rates {
		conditioned += r.perSecond / float64(len(out.rates))
	}

	d := f.groups[0].draw(rand.New(rand.NewPCG(1, 1)), 0, 0.5)
	const hours = 200
	found := play(new(sim.World), d.fleet(-1, hours*time.Hour), 1, 1)
	require.Greater(t, found.Overlaps, int64(60))
	waited := float64(found.Overlaps) / (hours * 3600)
	t.Logf("an hour has %.4f double holds by conditioning, %.4f by waiting for %d", 3600*conditioned, 3600*waited, found.Overlaps)
	assert.InEpsilon(t, waited, conditioned, 0.3)
}

// TestForecastInterval: where the figures are exact and the span is as long as a run, the interval is that of chance alone.
func TestForecastInterval(t *testing.T) {
	measures(t, redistest.Proofs)
	p := observed(0, 7000, 0)
	f := made(t, p, Options{Span: time.Hour, Draws: 40, Commands: 1, Today: true})
	s := f.Stages[0]
	fl, err := fleetOf(p, false)
	require.NoError(t, err)
	inside, runs := 0, 60
	for n := range runs {
		d := fl.groups[0].draw(rand.New(rand.NewPCG(5, uint64(n))), 0, 0.5)
		found := play(new(sim.World), d.fleet(-1, time.Hour), uint64(n), 1)
		if c := float64(found.Overlaps); c >= s.Count.Low && c <= s.Count.High {
			inside++
		}
	}
	t.Logf("%+v: %d of %d runs inside", s.Count, inside, runs)
	assert.Greater(t, inside, runs*3/4)
	assert.Less(t, s.Count.High/s.Count.Low, 3.0)
}

// TestForecastBlame: it is the clock that is off, or the client that works for too long.
func TestForecastBlame(t *testing.T) {
	measures(t)
	f := made(t, observed(0, 0, 8000, 0), Options{Draws: 20, Commands: 1, Today: true})
	s := f.Stages[0]
	require.NotEmpty(t, s.Causes)
	assert.Equal(t, "java-3", s.Clients[0].Name, "%+v", s.Clients)
	assert.Contains(t, []string{"skew", "stale delete"}, s.Causes[0].Name)
	assert.Equal(t, "order:#", s.Families[0].Name)

	p := observed(0, 0, 0)
	p.Clients[1].Uses[0].Hold = spread(100_000, 1000, 14_000)
	s = made(t, p, Options{Draws: 20, Commands: 1, Today: true}).Stages[0]
	require.NotEmpty(t, s.Causes)
	assert.Equal(t, "java-2", s.Clients[0].Name, "%+v", s.Clients)
	assert.Greater(t, share(s.Causes, "overrun"), 0.3*s.Count.Mean, "%+v", s.Causes)
	sum := 0.0
	for _, c := range s.Clients {
		sum += c.Mean
	}
	assert.InEpsilon(t, s.Count.Mean, sum, 1e-6, "the parts are the whole")
}

// TestForecastBudget: the closed form says how far a clock may still move. The simulator finds no double hold before, and some beyond.
func TestForecastBudget(t *testing.T) {
	measures(t)
	p := observed(0, 1000, 500)
	f, err := fleetOf(p, false)
	require.NoError(t, err)
	budgets := f.budgets()
	require.Len(t, budgets, 3)
	b := budgets[slices.IndexFunc(budgets, func(b Budget) bool { return b.Client == "java-2" })]
	assert.InDelta(t, 5000, b.AheadMS, 1, "lease 10 s less hold 4 s less 1 s apart")
	assert.Equal(t, "java-1", b.Ahead)
	assert.Equal(t, -1.0, b.Hours, "no drift is known")
	for _, more := range []float64{-200, 600} {
		d := f.groups[0].draw(rand.New(rand.NewPCG(1, 1)), 0, 0.5)
		for i := range d.members {
			d.members[i].hold = law{Spread: profile.Spread{Quantiles: []profile.Quantile{{Share: 0, MS: 1000}, {Share: 1, MS: 4000}}}}
		}
		d.members[1].offset += b.AheadMS + more
		found := play(new(sim.World), d.fleet(-1, 8*time.Hour), 1, 1)
		assert.Equal(t, more > 0, found.Overlaps > 0, "%v ms beyond the budget: %d double holds", more, found.Overlaps)
	}
}

// TestForecastDrift: a clock that drifts reaches its edge within the span, and the forecast has the double holds of the time after.
func TestForecastDrift(t *testing.T) {
	measures(t, redistest.Proofs)
	p := observed(0, 0, 0)
	start := time.Unix(1e9, 0)
	for i := range p.Clients {
		p.Clients[i].Clock = []profile.Reading{{At: start, SkewMS: 0, ErrorMS: 1}, {At: start.Add(time.Hour), SkewMS: 0, ErrorMS: 1}}
	}
	p.Clients[2].Clock[1].SkewMS = 18 // 5 ppm: 6 s in two weeks
	f := made(t, p, Options{Draws: 20, Commands: 1, Today: true})
	assert.Greater(t, f.Stages[0].Count.Mean, 10.0)
	assert.Equal(t, "java-3", f.Stages[0].Clients[0].Name)
	i := 0
	for i < len(f.Budgets) && f.Budgets[i].Client != "java-3" {
		i++
	}
	assert.InEpsilon(t, 6000/0.018/1000, f.Budgets[i].Hours, 0.02)
	p.Clients[2].Clock[1].SkewMS = 0
	assert.Less(t, made(t, p, Options{Draws: 20, Commands: 1, Today: true}).Stages[0].Count.Mean, 0.01)
}

// TestSameNumbers: the same profile, seed and options give the same forecast, and another seed another one.
func TestSameNumbers(t *testing.T) {
	o := Options{Draws: 20, Commands: 1, Today: true, Seed: 3}
	a, b := made(t, observed(0, 7000), o), made(t, observed(0, 7000), o)
	assert.Equal(t, a, b)
	o.Seed = 4
	assert.NotEqual(t, a.Stages, made(t, observed(0, 7000), o).Stages)
}

// TestBoundedLease: a lease within bounds is drawn from these, and the clocks with it. One that is in doubt makes the forecast incomplete. Of one that
// varies the shortest counts, and the clocks are known.
func TestBoundedLease(t *testing.T) {
	wrong, right := []float64{-2500, -2500, -3000}, []float64{0, 0, 2500}
	for _, c := range []struct {
		from       string
		skews      []float64
		low, high  float64
		varies     bool
		doubt      string
		span       leaseSpan
		incomplete bool
	}{
		{"written", right, 9970, 10_020, false, "", leaseSpan{9970, 10_020}, false},
		{"written", wrong, 7000, 11_000, false, "", leaseSpan{7000, 11_000}, false},
		{"written", wrong, 7000, 10_000, false, "most clocks are wrong", leaseSpan{7000, 10_000}, true},
		{"written", wrong, 10_000, 10_000, false, "most clocks are wrong", leaseSpan{}, true},
		{"written", right, 10_000, 10_000, false, "", leaseSpan{}, false},
		{"written", right, 4000, 10_000, true, "", leaseSpan{}, false},
		{"given", wrong, 7000, 11_000, false, "", leaseSpan{}, false},
	} {
		p := observed(c.skews...)
		for i := range p.Clients {
			u := &p.Clients[i].Uses[0]
			u.LeaseFrom, u.LeaseLeastMS, u.LeaseMostMS, u.LeaseVaries, u.LeaseDoubt = c.from, c.low, c.high, c.varies, c.doubt
		}
		f, err := fleetOf(p, false)
		require.NoError(t, err)
		assert.Equal(t, c.incomplete, f.incomplete, "%+v: %v", c, f.notKnown)
		for _, a := range f.groups[0].actors {
			assert.Equal(t, c.span, a.leaseIn, "%+v", c)
		}
		d := f.groups[0].draw(rand.New(rand.NewPCG(1, 1)), 0, 0.25)
		for i, m := range d.fleet(-1, time.Hour).Clients {
			sum := 10_000 + c.skews[i]
			if c.varies {
				sum += c.low - 10_000
			}
			assert.InDelta(t, sum, float64(m.Member.Lease+m.Offset)/1e6, 1e-3, "the sum was seen: %+v", c)
			if c.span.high > 0 {
				assert.InDelta(t, c.span.low+(c.span.high-c.span.low)/4, float64(m.Member.Lease)/1e6, 1e-3, "%+v", c)
			}
		}
	}
}

// TestBoundedLeaseWidens: of a lease within bounds the interval reaches from what the shortest brings to what the longest does.
func TestBoundedLeaseWidens(t *testing.T) {
	measures(t)
	of := func(from string, lease, low, high float64) Interval {
		p := observed(6500, 0, 0)
		for i := range p.Clients {
			p.Clients[i].SkewMS += 10_000 - lease
			u := &p.Clients[i].Uses[0]
			u.LeaseFrom, u.LeaseMS, u.LeaseLeastMS, u.LeaseMostMS = from, lease, low, high
		}
		return made(t, p, Options{Span: 24 * time.Hour, Draws: 20, Commands: 200_000, Today: true}).Stages[0].Count
	}
	short, long, between := of("given", 9500, 0, 0), of("given", 10_500, 0, 0), of("written", 10_000, 9500, 10_500)
	t.Logf("9.5 s %+v; 10.5 s %+v; between them %+v", short, long, between)
	assert.Greater(t, short.Low, long.High)
	assert.Less(t, between.Low, short.Low)
	assert.Greater(t, between.High, long.High)
	assert.Greater(t, between.Mean, long.Mean)
	assert.Less(t, between.Mean, short.Mean)
}

// TestLeftOut: what the profile does not say is named, and makes the forecast incomplete.
func TestLeftOut(t *testing.T) {
	p := observed(0, 7000, 0)
	p.Clients[0].Uses[0].LeaseMS = 0
	p.Clients[1].SkewKnown = false
	p.Clients[2].Kind = "unknown"
	p.NotSeen = []string{"a failover"}
	f := made(t, p, Options{Draws: 20, Today: true})
	assert.True(t, f.Incomplete)
	said := strings.Join(f.NotKnown, "\n")
	for _, want := range []string{"java-1 is left out on order:#: its lease is not known", "the clock of java-2 is not known", "java-3 is left out", "a failover"} {
		assert.Contains(t, said, want)
	}
	for _, o := range []Options{{Span: -1}, {Span: time.Millisecond}, {Draws: 5}, {Span: math.MaxInt64}} {
		_, err := Make(p, o)
		assert.Error(t, err, "%+v", o)
	}
	_, err := Make(profile.Profile{}, Options{})
	assert.ErrorContains(t, err, "no window")
}

// TestLaw measures values of a known distribution, and wants back its chances, within and beyond what was seen.
func TestLaw(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 400
	got := map[float64]float64{1000: 0, 3000: 0, 6000: 0, 9000: 0} // of an exponential of 1 s
	const windows = 300
	for range windows {
		var seen []time.Duration
		for range n {
			seen = append(seen, time.Duration(r.ExpFloat64()*float64(time.Second)))
		}
		l := drawLaw(profile.SpreadOf(seen, n, 0), r)
		for ms := range got {
			got[ms] += math.Log(l.beyond(ms)) / windows
		}
		assert.InDelta(t, 1000, l.mean(), 300)
	}
	// The typical law, by the mean of the logarithms: within 15 % where values were seen, within a factor of 2 at the edge of
	// what was seen, and of 4 at half as far again.
	for ms, factor := range map[float64]float64{1000: 1.15, 3000: 1.3, 6000: 2, 9000: 4} {
		off := got[ms] + ms/1000
		assert.Less(t, math.Abs(off), math.Log(factor), "beyond %v: %g, not %g", ms, math.Exp(got[ms]), math.Exp(-ms/1000))
	}
}

// TestLawParts draws from the parts of a law below and above an edge, and wants the law's own shares back.
func TestLawParts(t *testing.T) {
	l := law{Spread: profile.Spread{Quantiles: []profile.Quantile{{Share: 0, MS: 100}, {Share: 0.5, MS: 200}, {Share: 0.96, MS: 1000}}}, tail: 0.04, scale: 500}
	g := sim.NewGenerator(1, 1)
	const n = 50_000
	for _, edge := range []float64{150, 600, 1000, 1700} {
		p := l.beyond(edge)
		below, above, all := l.upTo(edge), l.above(edge), l.all()
		inAll, sum := 0, 0.0
		for range n {
			low, x := below.Draw(&g).Seconds()*1000, above.Draw(&g).Seconds()*1000
			require.False(t, low > edge+1 || x < edge-1, "parted at %v: %v and %v", edge, low, x)
			sum += x - edge
			if all.Draw(&g).Seconds()*1000 > edge {
				inAll++
			}
		}
		assert.InDelta(t, p, float64(inAll)/n, 0.004, "beyond %v", edge)
		if edge >= 1000 {
			assert.InEpsilon(t, 500, sum/n, 0.1, "beyond the last value the tail is exponential")
		}
	}
	assert.Zero(t, law{Spread: profile.Spread{Quantiles: []profile.Quantile{{Share: 0, MS: 1}, {Share: 1, MS: 2}}}}.beyond(3), "no tail")
	assert.Empty(t, law{}.all())
}
