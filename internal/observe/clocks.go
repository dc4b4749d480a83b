package observe

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// sums are what one client's values on one family of keys say about offset + lease. Each sample is
// offset + lease - delay - rounding, with delay >= 0 and 0 <= rounding < quantum: the largest is the closest.
type sums struct {
	n       int64
	top     [topSums]time.Duration // the largest, falling
	quantum time.Duration
	// trip is the shortest time between two commands of one attempt: a whole round trip and more, so that
	// the shortest delay of one way is below it.
	trip time.Duration
	run  suspects
}

const topSums = 4

func (s *sums) add(x, quantum time.Duration) {
	if quantum > s.quantum {
		s.quantum = quantum
	}
	kept := int(min(s.n, topSums))
	s.n++
	at := kept
	for at > 0 && s.top[at-1] < x {
		at--
	}
	if at == topSums {
		return
	}
	copy(s.top[at+1:], s.top[at:])
	s.top[at] = x
}

// estimate returns offset + lease and how far off that may be.
func (s *sums) estimate() (sum, off time.Duration) {
	kept := int(min(s.n, topSums))
	second := s.top[kept-1]
	spread := s.top[0] - second // how rare the fastest are: what the next fastest would add
	trip := s.trip
	if trip == 0 || trip > 50*time.Millisecond {
		trip = min(max(2*spread, 2*time.Millisecond), 50*time.Millisecond)
	}
	// The fastest sample came after some delay in (0, trip): its middle, give or take the rest.
	off = trip/2 + s.quantum/2 + spread
	if kept == 1 {
		off += 10 * time.Millisecond
	}
	return s.top[0] + trip/2 + s.quantum/2, off
}

// pair is one client on one family of keys.
type pair struct {
	client *client
	family string
}

// Clocks are the solved offsets and leases.
type Clocks struct {
	lease  map[string]time.Duration // by family
	source map[string]string        // by family: given, fleet, round
	offset map[*client]time.Duration
	off    map[*client]time.Duration // the error bar
}

// solve tells offset and lease apart, of which only the sum is seen. Clients that lock keys of one family
// share its lease; an offset belongs to a client. What remains open is one constant for each family: all
// clocks of a fleet 5 s ahead with a lease of 30 s look like true clocks with a lease of 35 s. It is closed,
// in this order, by
//
//	given  --lease;
//	fleet  the lease, among those that people write down, with which most clients' clocks are right;
//	round  the same with one client only: the nearest lease that people write down.
//
// A fleet whose clocks are all wrong by the same amount is therefore not found without --lease, and one
// client alone only where its offset is small beside the steps between such leases.
func solve(all map[pair]*sums, given time.Duration) *Clocks {
	c := &Clocks{map[string]time.Duration{}, map[string]string{}, map[*client]time.Duration{}, map[*client]time.Duration{}}
	byFamily := map[string][]pair{}
	for p, s := range all {
		if s.n > 0 {
			byFamily[p.family] = append(byFamily[p.family], p)
		}
	}
	for family, pairs := range byFamily {
		var seen []time.Duration
		for _, p := range pairs {
			sum, _ := all[p].estimate()
			seen = append(seen, sum)
		}
		slices.Sort(seen) // maps have no order, results must
		switch lease, ok := roundLease(seen); {
		case given > 0:
			c.lease[family], c.source[family] = given, "given"
		case ok:
			c.lease[family], c.source[family] = lease, "fleet"
			if len(pairs) == 1 {
				c.source[family] = "round"
			}
		}
	}
	for p, s := range all {
		lease, ok := c.lease[p.family]
		if !ok || s.n == 0 {
			continue
		}
		sum, off := s.estimate()
		// Of several families the one with the smallest error bar speaks.
		if before, seen := c.off[p.client]; !seen || off < before || off == before && sum-lease < c.offset[p.client] {
			c.offset[p.client], c.off[p.client] = sum-lease, off
		}
	}
	return c
}

// written are the leases that people write down, in milliseconds: 1 to 9 of each decade and what divides a
// minute or an hour.
var written = func() []time.Duration {
	var all []time.Duration
	add := func(unit time.Duration, ns ...int) {
		for _, n := range ns {
			all = append(all, time.Duration(n)*unit)
		}
	}
	add(time.Millisecond, 10, 20, 30, 50, 60, 100, 150, 200, 250, 300, 400, 500, 600, 700, 750, 800, 900, 1500, 2500)
	add(time.Second, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 70, 75, 80, 90, 100, 120, 150,
		180, 200, 240, 250, 300, 360, 400, 420, 450, 480, 500, 540, 600, 720, 900, 1000, 1200, 1500, 1800, 2400, 2700, 3000, 3600)
	add(time.Hour, 2, 3, 4, 6, 8, 12, 24, 48, 72, 168)
	slices.Sort(all)
	return slices.Compact(all)
}()

// roundLease finds the lease that explains the sums best: a clock that is right costs nothing, one that is
// wrong costs by the order of magnitude of its error, so that a few clocks that are far off do not outvote
// those that are right. Among equals the lease in the middle of the sums wins, then the shorter.
func roundLease(sums []time.Duration) (time.Duration, bool) {
	if len(sums) == 0 {
		return 0, false
	}
	middle := sums[len(sums)/2]
	best, bestCost := time.Duration(0), math.Inf(1)
	for _, lease := range written {
		cost := 0.0
		for _, s := range sums {
			cost += math.Log1p(math.Abs(float64(s-lease)) / float64(20*time.Millisecond))
		}
		cost += 0.1 * math.Log1p(math.Abs(float64(middle-lease))/float64(20*time.Millisecond))
		if cost < bestCost {
			best, bestCost = lease, cost
		}
	}
	return best, true
}

// samples keeps a bounded, evenly thinned choice of durations.
type samples struct {
	kept   []time.Duration
	n      int64
	stride int64
}

const maxSamples = 512

func (s *samples) add(d time.Duration) {
	if s.stride == 0 {
		s.stride = 1
	}
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
	sorted := slices.SortedFunc(slices.Values(s.kept), cmp.Compare[time.Duration])
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
