package forecast

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// law is how long something takes, in milliseconds: straight lines between the quantiles that were measured, and an
// exponential tail beyond the longest.
type law struct {
	profile.Spread         // its last share is 1 - tail
	tail, scale    float64 // how much lies beyond the last value, and how far on the average
}

// drawLaw draws one of the laws that N values can come from. The shares between the quantiles vary as N values make them
// vary (a Dirichlet distribution). The next value is beyond the longest of N with a chance of 1 in N + 1. How far beyond, the
// longest tenth says.
func drawLaw(s profile.Spread, r *rand.Rand) law {
	if len(s.Quantiles) == 0 {
		return law{}
	}
	n := max(float64(s.N), 1)
	l := law{Spread: profile.Spread{Quantiles: slices.Clone(s.Quantiles)}}
	sum, last := 0.0, s.Quantiles[0].Share
	for i := range l.Quantiles {
		sum += gamma(n*(s.Quantiles[i].Share-last), r)
		l.Quantiles[i].Share, last = sum, s.Quantiles[i].Share
	}
	l.tail = gamma(1, r)
	sum += l.tail
	for i := range l.Quantiles {
		l.Quantiles[i].Share /= sum
	}
	l.tail /= sum
	longest := max(0.1*n, 1)
	l.scale = (s.Most() - s.At(0.9)) / (math.Log(longest) + 0.577)
	l.scale *= (longest + 1) / gamma(longest+1, r)
	return l
}

// gamma draws from the gamma distribution of that shape and scale 1 (Marsaglia and Tsang).
func gamma(shape float64, r *rand.Rand) float64 {
	if shape <= 0 {
		return 0
	}
	if shape < 1 {
		return gamma(shape+1, r) * math.Pow(1-r.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// exponentially is the law of the time until something that happens at random, mean on the average.
func exponentially(mean float64) law {
	return law{Spread: profile.Spread{Quantiles: make([]profile.Quantile, 1)}, tail: 1, scale: mean}
}

// beyond is the chance of more than ms.
func (l law) beyond(ms float64) float64 {
	switch most := l.Most(); {
	case ms < most:
		return 1 - l.Below(ms)
	case l.tail == 0 || l.scale == 0:
		return 0
	default:
		return l.tail * math.Exp((most-ms)/l.scale)
	}
}

// at returns the value that the share rest of all values lies beyond.
func (l law) at(rest float64) float64 {
	if rest <= l.tail {
		return l.Most() + l.scale*math.Log(l.tail/max(rest, 1e-300))
	}
	return l.At(1 - rest)
}

// mean is the mean in milliseconds.
func (l law) mean() float64 { return l.Mean() + l.tail*(l.Most()+l.scale) }

// part is the law of those values alone that have shares from to down to less of all values beyond them, for the simulator.
// part(1, 0) is all.
func (l law) part(from, to float64) sim.Distribution {
	if len(l.Quantiles) == 0 || from <= to {
		return nil
	}
	// The shares at which the line bends, and points along the tail, which is a curve.
	rests := []float64{from}
	for _, q := range l.Quantiles {
		rests = append(rests, 1-q.Share)
	}
	for _, more := range []float64{0.5, 0.2, 0.1, 0.03, 0.01, 0.001} {
		rests = append(rests, min(l.tail, from)*more)
	}
	var d sim.Distribution
	for _, rest := range append(rests, to) {
		if rest > from || rest < to || len(d) > 0 && rest > from-(from-to)*float64(d[len(d)-1].Permyriad)/10000 {
			continue
		}
		share := uint32(math.Round(10000 * (from - rest) / (from - to)))
		value := time.Duration(l.at(max(rest, from*1e-4)) * float64(time.Millisecond))
		if n := len(d); n > 0 && (d[n-1].Permyriad == share || d[n-1].Value > value) {
			continue
		}
		d = append(d, sim.Quantile{Permyriad: share, Value: value})
	}
	return d
}

// all is every value.
func (l law) all() sim.Distribution { return l.part(1, 0) }

// above are the values beyond ms, upTo those below.
func (l law) above(ms float64) sim.Distribution { return l.part(l.beyond(ms), 0) }
func (l law) upTo(ms float64) sim.Distribution  { return l.part(1, l.beyond(ms)) }
