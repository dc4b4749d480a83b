package observe

import (
	"slices"
	"time"
)

// thinned keeps a bounded choice of what it is given, each of a stride of it.
type thinned[T any] struct {
	kept   []T
	n      int64 // that were given
	stride int64
}

// keep takes in one more, and keeps so many at most.
func (s *thinned[T]) keep(x T, most int) {
	s.stride = max(s.stride, 1)
	if s.n%s.stride == 0 {
		if len(s.kept) == most {
			for i := range most / 2 {
				s.kept[i] = s.kept[2*i]
			}
			s.kept = s.kept[:most/2]
			s.stride *= 2
		}
		s.kept = append(s.kept, x)
	}
	s.n++
}

// samples are durations.
type samples struct {
	thinned[time.Duration]
	most time.Duration
	sum  time.Duration
}

const maxSamples = 256

func (s *samples) add(d time.Duration) {
	s.most = max(s.most, d)
	s.sum += d
	s.keep(d, maxSamples)
}

// at returns the value below which a share of the samples lies, 0 for none.
func (s *samples) at(share float64) time.Duration {
	if len(s.kept) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.kept))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
