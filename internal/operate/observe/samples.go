package observe

import (
	"slices"
	"time"
)

// samples keeps a bounded, evenly thinned choice of durations.
type samples struct {
	kept   []time.Duration
	n      int64
	stride int64
	most   time.Duration
	sum    time.Duration
}

const maxSamples = 256

func (s *samples) add(d time.Duration) {
	s.stride = max(s.stride, 1)
	s.most = max(s.most, d)
	s.sum += d
	if s.n%s.stride == 0 {
		if len(s.kept) == maxSamples {
			for i := range maxSamples / 2 {
				s.kept[i] = s.kept[2*i]
			}
			s.kept = s.kept[:maxSamples/2]
			s.stride *= 2
		}
		s.kept = append(s.kept, d)
	}
	s.n++
}

// at returns the value below which a share of the samples lies, 0 for none.
func (s *samples) at(share float64) time.Duration {
	if len(s.kept) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.kept))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
