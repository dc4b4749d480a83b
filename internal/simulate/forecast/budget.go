package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Budget is how far the clock of one old client may still move before the longest hold that was seen overlaps with another:
// the lease, or the shortest that it may be, less that hold less what the clocks are apart. Below 0 it overlaps already.
type Budget struct {
	Client   string  `json:"client"`
	SkewMS   float64 `json:"skew_ms"`
	AheadMS  float64 `json:"ahead_ms"`  // how far it may still move ahead
	BehindMS float64 `json:"behind_ms"` // and behind
	Ahead    string  `json:"ahead_of"`  // whose hold it would then cut short
	Behind   string  `json:"behind_of"` // who would then cut its hold short
	// DriftPPM is its drift with DriftErrorPPM, known where it is larger than its error.
	DriftPPM      float64 `json:"drift_ppm"`
	DriftErrorPPM float64 `json:"drift_error_ppm"`
	DriftKnown    bool    `json:"drift_known"`
	// Hours is when the first overlap comes at the measured drifts of both, from the end of the observation; 0 is now, -1 never or not
	// known.
	Hours float64 `json:"hours"`
}

// budgets applies the closed form: two old clients exclude each other as long as their clocks are apart by no more than
// lease less hold.
func (f *fleet) budgets() []Budget {
	made := map[int]*Budget{}
	for _, g := range f.groups {
		for i := range g.actors {
			a := &g.actors[i]
			if a.member.Scheme != model.Legacy {
				continue
			}
			b := made[a.client]
			if b == nil {
				b = &Budget{Client: f.profile.Clients[a.client].Name, SkewMS: a.skew, AheadMS: math.Inf(1), BehindMS: math.Inf(1), Hours: -1}
				if ppm, e, known := f.profile.Clients[a.client].Drift(); known {
					b.DriftPPM, b.DriftErrorPPM, b.DriftKnown = ppm, e, math.Abs(ppm) > e
				}
				made[a.client] = b
			}
			for j := range g.actors {
				other := &g.actors[j]
				if i == j || other.member.Scheme != model.Legacy {
					continue
				}
				name := f.profile.Clients[other.client].Name
				ahead := other.leaseIn.at(0, other.lease) - other.hold.Most() - (a.skew - other.skew)
				behind := a.leaseIn.at(0, a.lease) - a.hold.Most() - (other.skew - a.skew)
				if ahead < b.AheadMS {
					b.AheadMS, b.Ahead = ahead, name
				}
				if behind < b.BehindMS {
					b.BehindMS, b.Behind = behind, name
				}
				b.reach(ahead, a.drift-other.drift)
				b.reach(behind, other.drift-a.drift)
			}
		}
	}
	var all []Budget
	for _, b := range made {
		if !math.IsInf(b.AheadMS, 0) {
			all = append(all, *b)
		}
	}
	slices.SortFunc(all, func(a, b Budget) int {
		return cmp.Or(cmp.Compare(min(a.AheadMS, a.BehindMS), min(b.AheadMS, b.BehindMS)), cmp.Compare(a.Client, b.Client))
	})
	return all
}

// reach notes when a margin is used up by two clocks that come apart at some ppm.
func (b *Budget) reach(left, ppm float64) {
	if left > 0 && ppm <= 0 {
		return
	}
	hours := 0.0
	if left > 0 {
		hours = left / (ppm / 1000) / 3600
	}
	if b.Hours < 0 || hours < b.Hours {
		b.Hours = hours
	}
}

// Margin writes how far a clock may still move.
func Margin(ms float64) string {
	if ms <= 0 {
		return fmt.Sprintf("used up (%v)", millis(ms).Round(time.Millisecond))
	}
	if ms < 10_000 {
		return millis(ms).Round(time.Millisecond).String()
	}
	return millis(ms).Round(100 * time.Millisecond).String()
}

// Drift writes the drift of a clock and its error.
func (b Budget) Drift() string {
	switch {
	case b.DriftKnown:
		return fmt.Sprintf("%+.1f ppm ±%.1f", b.DriftPPM, b.DriftErrorPPM)
	case b.DriftErrorPPM > 0:
		return fmt.Sprintf("not known, within ±%.0f ppm", math.Abs(b.DriftPPM)+b.DriftErrorPPM)
	}
	return "not known"
}

// When writes when the first overlap comes.
func (b Budget) When() string {
	switch {
	case b.Hours == 0:
		return "now"
	case b.Hours > 0:
		return "in " + Hours(b.Hours)
	}
	return "not known"
}
