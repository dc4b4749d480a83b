package forecast

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

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
