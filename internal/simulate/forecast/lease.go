package forecast

import (
	"cmp"
	"math"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
)

// leaseSpan is between which leases, in ms, the old clients of a family may have theirs; both are 0 where it is known.
type leaseSpan struct{ low, high float64 }

// at is a lease at a share of the span.
func (s leaseSpan) at(share, lease float64) float64 {
	if s.high == 0 {
		return lease
	}
	return s.low + share*(s.high-s.low)
}

// leasesOf says how far the lease of a family is known. Only the sum of lease and clock is seen. Where most clocks are wrong with the
// lease of the profile, it is a guess. Then it is drawn from its bounds. Where one bound is missing, a clock of the fleet or
// the guess stands for it: some clock is right. Without any bound the guess counts.
func (f *fleet) leasesOf(family profile.Family) leaseSpan {
	old, right := 0, 0
	var lease, low, high float64
	least, most := math.Inf(1), 0.0
	close := true
	for i, c := range f.profile.Clients {
		u := c.Use(family.Name)
		shares := slices.ContainsFunc(family.Groups, func(g profile.Group) bool { return slices.Contains(g.Clients, i) })
		if !shares || c.Kind != "legacy" || !c.SkewKnown || u.LeaseFrom != "fleet" && u.LeaseFrom != "round" && u.LeaseFrom != "waits" {
			continue
		}
		old++
		lease, low = u.LeaseMS, max(low, u.LeaseLowMS)
		high = cmp.Or(min(high, cmp.Or(u.LeaseHighMS, high)), high, u.LeaseHighMS)
		least, most = min(least, u.LeaseMS+c.SkewMS), max(most, u.LeaseMS+c.SkewMS)
		close = close && u.LeaseFrom == "waits"
		if math.Abs(c.SkewMS) <= c.SkewErrorMS+50 {
			right++
		}
	}
	switch {
	case old == 0 || !close && 2*right >= old:
		return leaseSpan{}
	case high > 0 && low > high: // of several servers, or observations
		low, high = 0, 0
	case close:
		return leaseSpan{low, high}
	case low > 0 && high > 0:
		f.doubt("the lease of %s lies between %v and %v, by what waiters did: each draw takes one; observe --lease gives it", family.Name, millis(low), millis(high))
		return leaseSpan{low, high}
	}
	f.incomplete = true
	if low == 0 && high == 0 {
		f.doubt("the lease of %s is a guess: with %v most clocks would be wrong; observe --lease gives it", family.Name, millis(lease))
		return leaseSpan{}
	}
	span := leaseSpan{cmp.Or(low, min(least, lease, high)), cmp.Or(high, max(most, lease, low))}
	f.doubt("the lease of %s is a guess: it may lie between %v and %v, and each draw takes one; observe --lease gives it", family.Name, millis(span.low), millis(span.high))
	return span
}
