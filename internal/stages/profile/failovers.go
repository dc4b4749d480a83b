package profile

import (
	"cmp"
	"time"
)

// Failovers are what masters remember of how they came to be masters. A server knows that it has taken a master's place until it is started
// again, or has had no replica for an hour. So there were at least so many.
type Failovers struct {
	Seen    int64   `json:"seen"`    // masters that have taken another's place
	Seconds float64 `json:"seconds"` // since they were started, all masters together
}

// Every is the time between two failovers of one master, as far as the masters remember; 0 where they remember none.
func (f *Failovers) Every() time.Duration {
	if f == nil || f.Seen == 0 {
		return 0
	}
	return time.Duration(f.Seconds / float64(f.Seen) * float64(time.Second))
}

// Beside adds what masters of other keys remember.
func (f *Failovers) Beside(o *Failovers) *Failovers {
	if f == nil || o == nil {
		return cmp.Or(f, o)
	}
	return &Failovers{f.Seen + o.Seen, f.Seconds + o.Seconds}
}
