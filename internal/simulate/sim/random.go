package sim

import (
	"math/bits"
	"time"
)

// Generator is splitmix64: small, fast, and the same everywhere for ever.
type Generator struct{ state uint64 }

// NewGenerator returns the n-th independent stream of a seed.
func NewGenerator(seed, n uint64) Generator {
	g := Generator{state: seed ^ n*0xd1342543de82ef95}
	g.state = g.Next() ^ seed
	return g
}

// Next returns 64 random bits.
func (g *Generator) Next() uint64 {
	g.state += 0x9e3779b97f4a7c15
	z := g.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Below returns a number in [0, n).
func (g *Generator) Below(n uint64) uint64 {
	high, _ := bits.Mul64(g.Next(), n)
	return high
}

// PPM is a chance in parts of a million.
type PPM uint32

// Hits decides once.
func (p PPM) Hits(g *Generator) bool { return p != 0 && g.Below(1e6) < uint64(p) }

// Distribution is a distribution of durations, given by its quantiles and straight lines between
// them: integer arithmetic, so that it draws the same on every machine, and what a measurement
// yields anyway. The zero value is always 0.
type Distribution []Quantile

// Quantile says that a share of Permyriad/10000 lies at or below Value.
type Quantile struct {
	Permyriad uint32
	Value     time.Duration
}

// Fixed is always d.
func Fixed(d time.Duration) Distribution { return Distribution{{10000, d}} }

// Uniform is evenly spread from lo to hi.
func Uniform(lo, hi time.Duration) Distribution { return Distribution{{0, lo}, {10000, hi}} }

// Spread has the given least, median, 99th percentile and greatest value, as network delays have.
func Spread(least, median, p99, greatest time.Duration) Distribution {
	return Distribution{{0, least}, {5000, median}, {9900, p99}, {10000, greatest}}
}

// Draw draws one duration.
func (d Distribution) Draw(g *Generator) time.Duration {
	switch len(d) {
	case 0:
		return 0
	case 1:
		return d[0].Value
	}
	const scale = 1 << 20 // permyriads with 20 more bits
	at := g.Below(10000 * scale)
	if at <= uint64(d[0].Permyriad)*scale {
		return d[0].Value
	}
	for i := 1; i < len(d); i++ {
		end := uint64(d[i].Permyriad) * scale
		if at < end || i == len(d)-1 {
			start := uint64(d[i-1].Permyriad) * scale
			span := uint64(max(d[i].Value-d[i-1].Value, 0))
			high, low := bits.Mul64(span, at-start)
			q, _ := bits.Div64(high, low, max(end-start, 1))
			return d[i-1].Value + time.Duration(q)
		}
	}
	return 0
}

// Mean returns the mean.
func (d Distribution) Mean() time.Duration {
	var mean time.Duration
	for i := range d {
		if i == 0 {
			mean = d[0].Value * time.Duration(d[0].Permyriad) / 10000
			if len(d) == 1 {
				return d[0].Value
			}
			continue
		}
		mean += time.Duration(d[i].Permyriad-d[i-1].Permyriad) * ((d[i].Value + d[i-1].Value) / 2) / 10000
	}
	return mean
}

// Max returns the greatest value that can be drawn.
func (d Distribution) Max() time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[len(d)-1].Value
}
