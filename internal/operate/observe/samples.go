package observe

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
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

// spread is how the samples of several connections lie.
func spread(all ...*samples) profile.Spread {
	var out profile.Spread
	var kept []time.Duration // of those that were not thinned: each sample weighs the same
	var n int64
	var most time.Duration
	for _, s := range all {
		if s.stride > 1 {
			out = out.And(profile.SpreadOf(s.kept, s.n, s.most))
			continue
		}
		kept, n, most = append(kept, s.kept...), n+s.n, max(most, s.most)
	}
	return out.And(profile.SpreadOf(kept, n, most))
}
