package observe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// host is whose clock is estimated: a connection, or several of a host that have seen too little each.
type host struct {
	series
	client  *client
	members []*client
	leads   *leads
	sum     time.Duration // offset + lease, or offset alone, with what the writers add taken off
	off     time.Duration // by how much that may be off
	within  bounds        // of the lease, by what it did as a waiter
}

// series are the leads on one family of keys whose sums mean the same.
type series struct {
	family string
	direct bool // the TTL in the command is the lease, and taken off: the sum is the offset
}

// enough is how many leads make a connection a host of its own.
const enough = 3

// hosts puts together connections of one host that have a lead or two each: clients that connect for
// each lock. One whose values disagree with the others has a clock of its own, or another lease.
func (o *Observer) hosts() []*host {
	type alike struct {
		series
		host string
		of   *protocol.Dialect
	}
	var out []*host
	few := map[alike][]*host{}
	for _, c := range o.clients {
		for family, u := range c.uses {
			for direct, s := range u.leads {
				one := &host{series: series{family, direct}, client: c, members: []*client{c}, leads: s}
				if id := (alike{one.series, hostOf(c.addr), s.of}); s.n >= enough {
					out = append(out, one)
				} else if s.n > 0 {
					few[id] = append(few[id], one)
				}
			}
		}
	}
	for _, together := range few {
		slices.SortFunc(together, func(a, b *host) int { return cmp.Compare(b.leads.top[0], a.leads.top[0]) })
		for len(together) > 0 {
			first := together[0]
			all := &host{series: first.series, client: first.client, leads: &leads{clock: unbounded}}
			reach := max(first.leads.quantum, coarse)
			for len(together) > 0 && first.leads.top[0]-together[0].leads.top[0] <= reach {
				all.leads.join(together[0].leads)
				all.members = append(all.members, together[0].client)
				together = together[1:]
			}
			out = append(out, all)
		}
	}
	for _, h := range out {
		h.sum, h.off = h.leads.estimate()
		if h.direct {
			h.off += time.Millisecond // the TTL was cut to whole milliseconds
		}
		h.sum -= h.client.extra(h.leads.of)
		h.within = h.leaseWithin()
	}
	slices.SortFunc(out, func(a, b *host) int { // maps have no order, results must
		return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.sum, b.sum), cmp.Compare(a.client.addr, b.client.addr))
	})
	return out
}

// leaseWithin is what the bounds of a clock leave of the sum. Threads that share a connection tell nothing.
func (h *host) leaseWithin() bounds {
	w, clock := unbounded, h.leads.clock
	if h.client.o.pooled[hostOf(h.client.addr)] {
		return w
	}
	if clock.high < forever {
		w.low = h.sum - clock.high
	}
	if clock.low > -forever {
		w.high = max(h.sum-clock.low, time.Millisecond)
	}
	return w
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

// lease is what is known of the lease of one client on one family of keys.
type lease struct {
	likely      time.Duration // the largest, where it varies
	least, most time.Duration
	varies      bool   // what it writes is of several leases, from least to most; else it is one lease between these
	from        string // given, ttl or written
	doubt       string // why it may be another; empty where it is known
}

// clock is what is known of one client's.
type clock struct {
	known       bool
	offset, off time.Duration // off is the error bar
}

// lease is a client's own on a family of keys, as it was solved last: where it is not known, that of the family. Likely is 0 where that is not known either.
func (c *client) lease(family string) lease {
	if u := c.uses[family]; u != nil && u.lease.likely > 0 {
		return u.lease
	}
	return c.o.family(family).lease
}

// solve tells offset and lease apart: only their sum is seen. Clients that lock keys of one family as a rule
// share its lease; an offset belongs to a client. What remains open is one constant for each family: all
// clocks of a fleet 5 s ahead with a lease of 30 s look like true clocks with a lease of 35 s. It is closed by one of three sources:
//
//	given    --lease;
//	ttl      the TTL that the clients set after they have written the value, where most clocks are right with it;
//	written  the lease, among those that people write down, with which most clients' clocks are right. What a client did as a waiter bounds
//	         its clock, and so its lease, whatever is written. Where the bounds meet that is the lease.
//
// What does not follow is a doubt: one client alone, a lease with which most clocks are wrong, a client whose clock is off by exactly what
// makes its lease another one that people write down. A fleet whose clocks are all wrong by the same amount,
// and that nobody waits in, is not found without --lease. One client alone is found only where its offset is small beside the
// steps between such leases.
//
// Where clients write whole seconds, some languages cut the clock and some round it, which moves the sum by
// half a second. The fleet tells which, as it tells the lease; an error bar is never below half a step.
func (o *Observer) solve(now bool) {
	if !now && o.solved != 0 && o.last.Sub(o.solved) < time.Second { // of the stream
		return
	}
	o.solved = o.last
	for _, c := range o.clients {
		c.clock = clock{}
	}
	fleets := map[series][]*host{}
	for _, h := range o.hosts() {
		fleets[h.series] = append(fleets[h.series], h)
	}
	for of, fleet := range fleets {
		own := make([]lease, len(fleet))
		if !of.direct {
			f := o.family(of.family)
			f.lease = familyLease(fleet, f, o.opts.Lease)
			shift := rounded(fleet, f.lease.likely)
			for i, h := range fleet {
				own[i] = h.lease(f.lease, shift)
				for _, m := range h.members {
					m.uses[of.family].lease = own[i]
				}
			}
		}
		offsets(fleet, own)
	}
}

// familyLease is the lease that the clients of a family share, as far as they do.
func familyLease(fleet []*host, f *family, given time.Duration) lease {
	within := leaseWithin(fleet)
	one := func(d time.Duration, from, doubt string) lease { return lease{d, d, d, false, from, doubt} }
	if given > 0 {
		return one(given, "given", "")
	}
	if ttl := f.ttl; ttl.high > 0 && within.has(ttl.high) && explains(fleet, ttl.high) {
		return lease{ttl.high, ttl.low, ttl.high, ttl.low < ttl.high, "ttl", ""}
	}
	likely := roundLease(fleet, within)
	if within.narrow() {
		return lease{likely, max(within.low, 0), within.high, false, "written", ""}
	}
	l := one(likely, "written", "")
	switch {
	case len(fleet) == 1:
		l.doubt = "one client alone uses these keys, and a wrong clock looks like another lease"
	case !explains(fleet, likely):
		l.doubt = "most clocks would be wrong with it, or the leases differ"
	case right(fleet, likely) < 2:
		l.doubt = "no two clocks are right with it"
	}
	below, above := within.low > 0, within.high < forever
	if l.doubt == "" || !below && !above {
		return l
	}
	l.least, l.most = within.low, within.high
	switch {
	case below && above: // so far it is known
		l.doubt = ""
	case above: // some clock of the fleet is right
		l.least = min(max(fleet[0].sum, time.Millisecond), l.likely, l.most)
	default:
		l.most = max(fleet[len(fleet)-1].sum, l.likely, l.least)
	}
	return l
}

// lease is that of one host, where the family has another one.
func (h *host) lease(of lease, shift time.Duration) lease {
	l := of
	wrong := h.offset(l.likely, shift).Abs() > h.off+coarse
	say := func(b bounds) string {
		switch {
		case b.high == forever:
			return fmt.Sprintf("of %v or more", b.low.Round(time.Millisecond))
		case b.low <= 0:
			return fmt.Sprintf("of %v or less", b.high.Round(time.Millisecond))
		}
		return fmt.Sprintf("between %v and %v", b.low.Round(time.Millisecond), b.high.Round(time.Millisecond))
	}
	contradicts := l.likely < h.within.low-nearBounds || l.likely > h.within.high+nearBounds
	switch own := h.rightLease(shift); {
	case contradicts && l.from == "given":
		l.doubt = "its waiters did what they do with one " + say(h.within)
	case l.from == "written" && h.within.narrow():
		l = lease{l.likely, max(h.within.low, 0), h.within.high, false, "written", ""}
		if contradicts {
			l.likely = h.within.middle()
		}
	case contradicts && h.within.low <= h.within.high:
		l.likely = roundLease([]*host{h}, h.within)
		l.least, l.most = max(min(h.within.low, l.likely), 0), max(min(h.within.high, h.sum), l.likely)
		l.from, l.doubt = "written", "its waiters did what they do with one "+say(h.within)
	case l.from == "written" && l.doubt == "" && wrong && own > 0 && own != l.likely:
		l.least, l.most = min(own, l.likely), max(own, l.likely)
		l.doubt = fmt.Sprintf("it is %v if its clock is right", own)
	}
	if l.from == "written" && h.leads.of != nil && h.leads.of.Unit == protocol.FloatSeconds {
		switch other, _ := h.client.other(); other {
		case protocol.RedisPyFloat.Name: // it adds a second less
			l.most = max(l.most, l.likely+time.Second)
		case protocol.RedisObjects.Name:
			l.least = max(min(l.least, l.likely-time.Second), time.Millisecond)
		}
	}
	if by, varies := h.leads.below(l.likely); by > 0 {
		most := l.likely
		if offset := h.offset(most, shift); offset < 0 && offset > -4*(h.off+coarse) { // its clock may be right, and its longest lease shorter
			most += offset
		}
		l.least = max(min(l.least, most-by-h.off), time.Millisecond)
		l.varies = varies
	}
	return l
}

// rightLease is the lease that people write down with which a clock is right; 0: there is none.
func (h *host) rightLease(shift time.Duration) time.Duration {
	for _, d := range written {
		if h.within.has(d) && h.offset(d, shift).Abs() <= h.off+coarse && (h.leads.quantum < coarse || d%h.leads.quantum == 0) {
			return d
		}
	}
	return 0
}

// offset is what a lease leaves of the sum. Shift is what clients that count in coarse steps round up by.
func (h *host) offset(lease, shift time.Duration) time.Duration {
	if h.leads.quantum < coarse {
		shift = 0
	}
	return h.sum - lease - shift
}

// offsets takes the leases off the sums of a family; those of direct writers are 0.
func offsets(fleet []*host, leases []lease) {
	most := time.Duration(0)
	for _, l := range leases {
		most = max(most, l.likely)
	}
	shift := rounded(fleet, most)
	for i, h := range fleet {
		offset, off := h.offset(leases[i].likely, shift), h.off
		if h.leads.quantum >= coarse {
			off += h.leads.quantum / 2
		}
		for _, m := range h.members {
			// Of several families the one with the smallest error bar speaks.
			if before := m.clock; !before.known || off < before.off || off == before.off && offset < before.offset {
				m.clock = clock{true, offset, off}
			}
		}
	}
}

// rounded tells whether clients that count in coarse steps cut the time or round it: 0, or half a step.
func rounded(fleet []*host, lease time.Duration) time.Duration {
	shift := time.Duration(0)
	for _, h := range fleet {
		if h.leads.quantum >= coarse {
			shift = h.leads.quantum / 2
		}
	}
	if shift > 0 && cost(fleet, lease, shift) < cost(fleet, lease, 0) {
		return shift
	}
	return 0
}

// explains tells that half of a fleet's clocks are right with a lease.
func explains(fleet []*host, lease time.Duration) bool { return 2*right(fleet, lease) >= len(fleet) }

// right is how many clocks of a fleet are right with a lease.
func right(fleet []*host, lease time.Duration) (right int) {
	shift := rounded(fleet, lease)
	for _, h := range fleet {
		if h.offset(lease, shift).Abs() <= h.off+coarse {
			right++
		}
	}
	return right
}

// cost is how badly a lease explains a fleet: a clock that is right costs nothing, one that is wrong costs by
// the order of magnitude of its error, so that a few clocks that are far off do not outvote those that are
// right. What an estimate may be off by is no error.
func cost(fleet []*host, lease, shift time.Duration) float64 {
	total := 0.0
	for _, h := range fleet {
		total += math.Log1p(float64(h.offset(lease, shift).Abs()) / float64(20*time.Millisecond+h.off))
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
func roundLease(fleet []*host, within bounds) time.Duration {
	middle := fleet[len(fleet)/2] // they are in order
	best, bestCost := within.middle(), math.Inf(1)
	for _, lease := range written {
		if !within.has(lease) {
			continue
		}
		for _, shift := range []time.Duration{0, middle.leads.quantum / 2} {
			if shift > 0 && middle.leads.quantum < coarse || middle.leads.quantum >= coarse && lease%middle.leads.quantum != 0 {
				continue
			}
			c := cost(fleet, lease, shift) + 0.1*cost([]*host{middle}, lease, shift)
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
