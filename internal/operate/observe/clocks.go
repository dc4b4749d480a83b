package observe

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// sums are what one client's values on one family of keys say about offset + lease. Each sample is
// offset + lease + extra - delay - rounding, with delay >= 0 and 0 <= rounding < quantum: the largest is the closest.
type sums struct {
	n       int64
	top     [topSums]time.Duration // the largest, falling
	quantum time.Duration
	of      *protocol.Dialect // that wrote the values
	// trip is the shortest time between two commands of one attempt: a whole round trip and more, so that
	// the shortest delay of one way is below it.
	trip time.Duration
	run  suspects
	// seen are the last samples of a client that counts in coarse steps: how far they spread says how much of
	// a step rounding can have cost the largest of them.
	seen []time.Duration
	// readings are the largest samples of one stretch of time after the other.
	readings []reading
	stretch  time.Duration
	lease    within // and what the client adds, by what it did as a waiter
}

const (
	topSums  = 4
	seenSums = 64
	// coarse is from where on a step of the client's clock counts for more than delays.
	coarse = 50 * time.Millisecond
)

func (s *sums) add(x, quantum time.Duration) {
	if quantum > s.quantum {
		s.quantum = quantum
	}
	if quantum >= coarse {
		if len(s.seen) < seenSums {
			s.seen = append(s.seen, x)
		} else {
			s.seen[s.n%seenSums] = x
		}
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

// join takes in what another connection of the same client has seen.
func (s *sums) join(other *sums) {
	s.of, s.lease = other.of, s.lease.and(other.lease)
	if s.trip == 0 || other.trip > 0 && other.trip < s.trip {
		s.trip = other.trip
	}
	n := s.n + other.n
	samples := other.top[:min(other.n, topSums)]
	if len(other.seen) > 0 {
		samples = other.seen
	}
	for _, x := range samples {
		s.add(x, other.quantum)
	}
	s.n = n
}

// estimate returns offset + lease + extra and how far off that may be.
func (s *sums) estimate() (sum, off time.Duration) {
	kept := int(min(s.n, topSums))
	spread := s.top[0] - s.top[kept-1] // how rare the fastest are: what the next fastest would add
	lost := s.quantum / 2              // to rounding, give or take as much
	if s.quantum >= coarse {
		spread = 0 // is rounding
		lost = s.rounding() / 2
	}
	trip := s.trip
	if trip == 0 || trip > 50*time.Millisecond {
		trip = min(max(2*spread, 2*time.Millisecond), 50*time.Millisecond)
	}
	// The fastest sample came after some delay in (0, trip): its middle, give or take the rest.
	off = trip/2 + lost + spread
	if kept == 1 {
		off += 10 * time.Millisecond
	}
	return s.top[0] + trip/2 + lost, off
}

// rounding returns how much rounding can have taken from the largest sample. All samples lie within one
// step of the clock (but for delays), so what their spread leaves of it is the most.
func (s *sums) rounding() time.Duration {
	sorted := slices.Sorted(slices.Values(s.seen))
	if len(sorted) == 0 {
		return s.quantum
	}
	low := 0
	if len(sorted) >= 4 {
		low = 1 + len(sorted)/16 // one that was held up on its way makes the spread look larger
	}
	return min(max(s.quantum-(s.top[0]-sorted[low]), 0), s.quantum)
}

// pair is one client on one family of keys. Of direct pairs the lease is known by the TTL in the command,
// and taken off: their sum is the offset.
type pair struct {
	client *client
	family string
	direct bool
}

// party is whose clock is estimated: a connection, or several of a host that have seen too little each.
type party struct {
	pair
	members []*client
	sums    *sums
	// The estimate of offset + lease, or offset alone, with what the writers add taken off.
	sum, off time.Duration
	lease    within
}

// enough is how many samples make a connection a party of its own.
const enough = 3

// parties puts together connections of one host that have a sample or two each: clients that connect for
// each lock. One whose values disagree with the others has a clock of its own.
func parties(all map[pair]*sums) []*party {
	type crowd struct {
		host, family string
		direct       bool
		of           *protocol.Dialect
	}
	var out []*party
	few := map[crowd][]*party{}
	for p, s := range all {
		if s.n == 0 {
			continue
		}
		one := &party{pair: p, members: []*client{p.client}, sums: s}
		if id := (crowd{hostOf(p.client.addr), p.family, p.direct, s.of}); s.n < enough {
			few[id] = append(few[id], one)
		} else {
			out = append(out, one)
		}
	}
	for _, together := range few {
		slices.SortFunc(together, func(a, b *party) int { return cmp.Compare(b.sums.top[0], a.sums.top[0]) })
		for len(together) > 0 {
			first := together[0]
			all := &party{pair: first.pair, sums: &sums{}}
			reach := max(first.sums.quantum, coarse)
			var rest []*party
			for _, one := range together {
				if first.sums.top[0]-one.sums.top[0] > reach {
					rest = append(rest, one)
					continue
				}
				all.sums.join(one.sums)
				all.members = append(all.members, one.client)
			}
			out = append(out, all)
			together = rest
		}
	}
	for _, p := range out {
		p.sum, p.off = p.sums.estimate()
		if p.direct {
			p.off += time.Millisecond // the TTL was cut to whole milliseconds
		}
		extra := p.client.extra(p.sums.of)
		p.sum -= extra
		if p.lease.low = max(p.sums.lease.low-extra, 0); p.sums.lease.high > 0 {
			p.lease.high = max(p.sums.lease.high-extra, 1)
		}
	}
	slices.SortFunc(out, func(a, b *party) int { // maps have no order, results must
		return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.sum, b.sum), cmp.Compare(a.client.addr, b.client.addr))
	})
	return out
}

// extra is what a client adds to now + lease, as far as what it does tells.
func (c *client) extra(of *protocol.Dialect) time.Duration {
	v := c.leading()
	switch {
	case of == nil:
		return 0
	case v.dialect == blindSet && c.sent["SETNX"] == 0 && c.sent["SET NX"] == 0:
		return 0 // celery_once; node-resque, which tries SETNX first, adds one
	case of == protocol.RedisPyFloat && v.dialect == protocol.RedisObjects.Name:
		of = protocol.RedisObjects
	}
	return extraOf(of)
}

// Clocks are the solved offsets and leases.
type Clocks struct {
	lease  map[string]time.Duration // by family
	within map[string]within        // its bounds, by family
	source map[string]string        // by family: given, expire, waits, fleet, round
	offset map[*client]time.Duration
	off    map[*client]time.Duration // the error bar
	n      map[*client]int64         // samples
}

// solve tells offset and lease apart: only their sum is seen. Clients that lock keys of one family
// share its lease; an offset belongs to a client. What remains open is one constant for each family: all
// clocks of a fleet 5 s ahead with a lease of 30 s look like true clocks with a lease of 35 s. It is closed,
// in this order, by
//
//	given   --lease;
//	expire  the TTL that the clients set after they have written the value, where most clocks are right with it;
//	waits   what waiters did, where it bounds the lease closely from both sides;
//	fleet   the lease, among those that people write down, with which most clients' clocks are right;
//	round   the same with one client only, or where no clock is right with it, or most agree with each other on a lease that people
//	        do not write down: a guess. That other lease is taken where it lies between the bounds. Where there are two bounds,
//	        most clocks must be right with a lease that is no guess.
//
// All but the given lease lie within what waiters did, where that is known. A fleet whose clocks are all wrong by the same amount,
// and that nobody waits in, is not found without --lease. One client alone is found only where its offset is small beside the
// steps between such leases.
//
// Where clients write whole seconds, some languages cut the clock and some round it, which moves the sum by
// half a second. The fleet tells which, as it tells the lease; an error bar is never below half a step.
func solve(all map[pair]*sums, families map[string]*family, given time.Duration) *Clocks {
	c := &Clocks{map[string]time.Duration{}, map[string]within{}, map[string]string{}, map[*client]time.Duration{}, map[*client]time.Duration{}, map[*client]int64{}}
	for p, s := range all {
		c.n[p.client] += s.n
	}
	byFamily := map[string][]*party{}
	for _, p := range parties(all) {
		byFamily[p.family] = append(byFamily[p.family], p)
	}
	for name, fleet := range byFamily {
		var direct, indirect []*party
		for _, p := range fleet {
			if p.direct {
				direct = append(direct, p)
			} else {
				indirect = append(indirect, p)
			}
		}
		c.offsets(direct, 0)
		if len(indirect) > 0 {
			var lease time.Duration
			bounds := leaseWithin(indirect)
			switch ttl, ok := families[name].ttl(); {
			case given > 0:
				lease, c.source[name] = given, "given"
			case ok && bounds.has(ttl) && explains(indirect, ttl):
				lease, c.source[name] = ttl, "expire"
			default:
				lease = roundLease(indirect, bounds)
				other, agree := agreesOnOther(indirect, lease)
				switch {
				case bounds.narrow():
					c.source[name] = "waits"
				case len(indirect) == 1 || agree || right(indirect, lease) == 0 || bounds.low > 0 && bounds.high > 0 && !explains(indirect, lease):
					c.source[name] = "round"
				default:
					c.source[name] = "fleet"
				}
				if agree && bounds.high > 0 && bounds.has(other) {
					lease = other
				}
			}
			c.lease[name], c.within[name] = lease, bounds
			c.offsets(indirect, lease)
		}
	}
	return c
}

// offset is what a lease leaves of the sum. Shift is what clients that count in coarse steps round up by.
func (p *party) offset(lease, shift time.Duration) time.Duration {
	if p.sums.quantum < coarse {
		shift = 0
	}
	return p.sum - lease - shift
}

// offsets takes the lease off the sums of a family.
func (c *Clocks) offsets(fleet []*party, lease time.Duration) {
	shift := rounded(fleet, lease)
	for _, p := range fleet {
		offset, off := p.offset(lease, shift), p.off
		if p.sums.quantum >= coarse {
			off += p.sums.quantum / 2
		}
		for _, m := range p.members {
			// Of several families the one with the smallest error bar speaks.
			if before, seen := c.off[m]; !seen || off < before || off == before && offset < c.offset[m] {
				c.offset[m], c.off[m] = offset, off
			}
		}
	}
}

// rounded tells whether clients that count in coarse steps cut the time or round it: 0, or half a step.
func rounded(fleet []*party, lease time.Duration) time.Duration {
	shift := time.Duration(0)
	for _, p := range fleet {
		if p.sums.quantum >= coarse {
			shift = p.sums.quantum / 2
		}
	}
	if shift > 0 && cost(fleet, lease, shift) < cost(fleet, lease, 0) {
		return shift
	}
	return 0
}

// ttl returns the TTL that most EXPIREs of expiries gave.
func (f *family) ttl() (time.Duration, bool) {
	var best time.Duration
	if f == nil {
		return 0, false
	}
	for ttl, n := range f.ttls {
		if n > f.ttls[best] || n == f.ttls[best] && ttl < best {
			best = ttl
		}
	}
	return best, best > 0
}

// explains tells that half of a fleet's clocks are right with a lease.
func explains(fleet []*party, lease time.Duration) bool { return 2*right(fleet, lease) >= len(fleet) }

// right is how many clocks of a fleet are right with a lease.
func right(fleet []*party, lease time.Duration) (right int) {
	shift := rounded(fleet, lease)
	for _, p := range fleet {
		if p.offset(lease, shift).Abs() <= p.off+50*time.Millisecond {
			right++
		}
	}
	return right
}

// agreesOnOther finds another lease with which most clocks of a fleet would be right together, where they are wrong with this one.
// Either may be true.
func agreesOnOther(fleet []*party, lease time.Duration) (other time.Duration, agree bool) {
	if explains(fleet, lease) {
		return 0, false
	}
	i := slices.IndexFunc(fleet, func(p *party) bool { return 2*right(fleet, p.sum) > len(fleet) })
	if i < 0 {
		return 0, false
	}
	return fleet[i].sum.Round(time.Millisecond), true
}

// cost is how badly a lease explains a fleet: a clock that is right costs nothing, one that is wrong costs by
// the order of magnitude of its error, so that a few clocks that are far off do not outvote those that are
// right. What an estimate may be off by is no error.
func cost(fleet []*party, lease, shift time.Duration) float64 {
	total := 0.0
	for _, p := range fleet {
		total += math.Log1p(float64(p.offset(lease, shift).Abs()) / float64(20*time.Millisecond+p.off))
	}
	return total
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

// roundLease finds the lease that explains the sums best, within bounds. Among equals the lease in the middle of the sums
// wins, then the shorter. Clients that write whole seconds take leases of whole seconds. Where people write down none within the
// bounds it is their middle.
func roundLease(fleet []*party, bounds within) time.Duration {
	middle := fleet[len(fleet)/2] // they are in order
	best, bestCost := bounds.middle(), math.Inf(1)
	for _, lease := range written {
		if !bounds.has(lease) {
			continue
		}
		for _, shift := range []time.Duration{0, middle.sums.quantum / 2} {
			if shift > 0 && middle.sums.quantum < coarse || middle.sums.quantum >= coarse && lease%middle.sums.quantum != 0 {
				continue
			}
			c := cost(fleet, lease, shift) + 0.1*cost([]*party{middle}, lease, shift)
			if shift > 0 {
				c += 0.05 // most languages cut
			}
			if c < bestCost {
				best, bestCost = lease, c
			}
		}
	}
	return best
}

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
