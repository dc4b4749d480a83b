package profile

import (
	"slices"
	"time"
)

// Spread is how N values lie: quantiles, with the least at share 0 and the largest at share 1. Between two quantiles the
// values are taken to lie evenly.
type Spread struct {
	N         int64      `json:"n"`
	Quantiles []Quantile `json:"quantiles,omitempty"`
}

// Quantile says that a share of the values lies at or below MS.
type Quantile struct {
	Share float64 `json:"share"` // 0 to 1, rising
	MS    float64 `json:"ms"`
}

// shares are those that are written down.
var shares = []float64{0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1}

// SpreadOf makes a spread of a choice of n values. The largest of all n is most.
func SpreadOf(kept []time.Duration, n int64, most time.Duration) Spread {
	if len(kept) == 0 {
		return Spread{N: n}
	}
	sorted := slices.Sorted(slices.Values(kept))
	s := Spread{N: n}
	shares := shares
	if k := len(sorted); k < len(shares) { // each as it is
		shares = nil
		for i := range max(k, 2) {
			shares = append(shares, float64(i)/float64(max(k, 2)-1))
		}
	}
	for _, share := range shares {
		at := share * float64(len(sorted)-1)
		low := int(at + 1e-9)
		ms := millis(sorted[low])
		if low+1 < len(sorted) {
			ms += max(at-float64(low), 0) * (millis(sorted[low+1]) - ms)
		}
		s.Quantiles = append(s.Quantiles, Quantile{share, ms})
	}
	last := &s.Quantiles[len(s.Quantiles)-1]
	last.MS = max(last.MS, millis(most))
	return s
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// At returns the value at a share, in milliseconds: 0.5 is the median. It is 0 where nothing was measured.
func (s Spread) At(share float64) float64 {
	q := s.Quantiles
	for i := range q {
		if q[i].Share >= share {
			if i == 0 || q[i].Share == q[i-1].Share {
				return q[i].MS
			}
			return q[i-1].MS + (share-q[i-1].Share)/(q[i].Share-q[i-1].Share)*(q[i].MS-q[i-1].MS)
		}
	}
	return s.Most()
}

// Most is the largest value in milliseconds, 0 for none.
func (s Spread) Most() float64 {
	if len(s.Quantiles) == 0 {
		return 0
	}
	return s.Quantiles[len(s.Quantiles)-1].MS
}

// Mean is the mean in milliseconds, 0 for none.
func (s Spread) Mean() (mean float64) {
	last := Quantile{MS: s.At(0)}
	for _, x := range s.Quantiles {
		mean += (x.Share - last.Share) * (x.MS + last.MS) / 2
		last = x
	}
	return mean
}

// Below is the share of the values that lie at or below ms.
func (s Spread) Below(ms float64) float64 {
	q := s.Quantiles
	for i := len(q) - 1; i >= 0; i-- {
		if q[i].MS > ms {
			continue
		}
		if i == len(q)-1 {
			return 1
		}
		return q[i].Share + (q[i+1].Share-q[i].Share)*(ms-q[i].MS)/(q[i+1].MS-q[i].MS)
	}
	return 0
}

// And is the spread of the values of both.
func (s Spread) And(other Spread) Spread {
	switch {
	case len(other.Quantiles) == 0:
		s.N += other.N
		return s
	case len(s.Quantiles) == 0:
		other.N += s.N
		return other
	}
	both := Spread{N: s.N + other.N}
	all := Mixed(s, other)
	for _, share := range shares {
		both.Quantiles = append(both.Quantiles, Quantile{share, all.At(share)})
	}
	return both
}

// Mixed is the spread of the values of all, with every quantile of each.
func Mixed(all ...Spread) (out Spread) {
	var values []float64
	for _, s := range all {
		out.N += max(s.N, 1)
		for _, q := range s.Quantiles {
			values = append(values, q.MS)
		}
	}
	slices.Sort(values)
	for _, ms := range slices.Compact(values) {
		share := 0.0
		for _, s := range all {
			share += float64(max(s.N, 1)) / float64(out.N) * s.Below(ms)
		}
		out.Quantiles = append(out.Quantiles, Quantile{Share: min(share, 1), MS: ms})
	}
	out.Quantiles[0].Share, out.Quantiles[len(out.Quantiles)-1].Share = 0, 1
	return out
}

// rises tells that neither shares nor values fall.
func (s Spread) rises() bool {
	last := Quantile{}
	for _, x := range s.Quantiles {
		if x.Share < last.Share || x.Share > 1 || x.MS < last.MS {
			return false
		}
		last = x
	}
	return true
}
