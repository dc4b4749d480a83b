package forecast

import (
	"cmp"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
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

// leasesOf says how far the lease of a family is known. Only the sum of lease and clock is seen. Where the profile has bounds for the lease
// it is drawn from these, and the clock with it; without any the likely one counts. A lease that varies counts as the shortest.
func (f *fleet) leasesOf(family profile.Family) (span leaseSpan) {
	for i, c := range f.profile.Clients {
		u := c.Use(family.Name)
		shares := slices.ContainsFunc(family.Groups, func(g profile.Group) bool { return slices.Contains(g.Clients, i) })
		if !shares || c.Kind != "legacy" || !c.SkewKnown || u.LeaseFrom != "written" {
			continue
		}
		low, high := u.Between()
		f.incomplete = f.incomplete || u.LeaseDoubt != ""
		switch {
		case u.LeaseVaries:
			f.doubt("the leases of %s on %s vary from %v to %v: the forecast takes the shortest", c.Name, family.Name, millis(low), millis(high))
			continue
		case u.LeaseDoubt != "":
			f.doubt("the lease of %s may be another than %v: %s; observe --lease gives it", family.Name, millis(u.LeaseMS), u.LeaseDoubt)
		case low < high && high-low > max(nearBounds, high/50):
			f.doubt("the lease of %s lies between %v and %v: each draw takes one; observe --lease gives it", family.Name, millis(low), millis(high))
		}
		if low < high && (span.high == 0 || low > span.low || high < span.high) {
			span = leaseSpan{max(low, span.low), min(high, cmp.Or(span.high, high))}
		}
	}
	if span.low > span.high { // of several servers
		return leaseSpan{}
	}
	return span
}

// nearBounds are those between which a lease is known, in ms.
const nearBounds = 50
