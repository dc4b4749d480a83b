package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// actor is one client on the keys of a group.
type actor struct {
	client int // in the profile
	member model.Member
	keys   []sim.KeySet // it works on; none: the group's one key

	skew, skewError   float64 // ms that its clock is ahead of the server's, at the end of the last window
	drift, driftError float64 // ppm; both 0 where it is not known
	lease             float64 // ms; the clock is the one that belongs to it
	leaseIn           leaseSpan
	perSecond         float64 // acquisitions, of keys that it has to itself too
	shared            float64 // those of keys that others use
	hold              profile.Spread
	pool              int            // of the group's holds: its own, and those of clients that hold alike
	think             profile.Spread // empty where the rate says it
	turn              float64        // ms that a turn takes on the average, its wait included
	crashed, acquired int64
}

// group is clients that share keys of a family. Where the keys are many, it is one of them, and there are times of it.
type group struct {
	family string
	times  float64
	actors []actor
	holds  []profile.Spread // by pool
	// shortest is the shortest lease of the family's old clients, as a namespace's record has it; 0: none is known.
	shortest time.Duration
	network  sim.Network
}

// drifts tells that a clock of the group drifts, so that it counts when it runs.
func (g *group) drifts() bool {
	return slices.ContainsFunc(g.actors, func(a actor) bool { return a.drift != 0 })
}

// pools puts the holds of clients together that hold alike. Few holds say little about long ones; those of several clients say
// more.
func (g *group) pools() {
	var firsts []int
	for i := range g.actors {
		a := &g.actors[i]
		a.pool = slices.IndexFunc(firsts, func(j int) bool {
			b := &g.actors[j]
			return a.member.Scheme == b.member.Scheme && a.member.Dialect == b.member.Dialect && a.lease == b.lease && alike(a.hold, b.hold)
		})
		if a.pool < 0 {
			a.pool = len(firsts)
			firsts = append(firsts, i)
		}
	}
	for n := range firsts {
		var members []profile.Spread
		for _, a := range g.actors {
			if a.pool == n {
				members = append(members, a.hold)
			}
		}
		g.holds = append(g.holds, profile.Mixed(members...))
	}
}

// alike tells that two spreads may well be of one law: by the test of Kolmogorov and Smirnov, at 5 %.
func alike(a, b profile.Spread) bool {
	farthest := 0.0
	for _, q := range slices.Concat(a.Quantiles, b.Quantiles) {
		farthest = max(farthest, math.Abs(a.Below(q.MS)-b.Below(q.MS)))
	}
	return farthest < 1.36*math.Sqrt(1/float64(max(a.N, 1))+1/float64(max(b.N, 1)))
}

// fleet is what a profile says of the double holds to come.
type fleet struct {
	profile    profile.Profile
	groups     []group
	shared     float64 // keys
	masters    int
	notKnown   []string
	incomplete bool // clients are left out, or a lease is a guess
	leftOut    bool
	whole      bool
	network    sim.Network
}

// fleetOf reads a profile. What it does not say enough about is left out, and named. Clients come together who share keys; of many keys
// that are alike one is taken. Whole: each family is one group, with all its clients and keys.
func fleetOf(p profile.Profile, whole bool) (*fleet, error) {
	f := &fleet{profile: p, masters: max(p.Window.Masters, 1), whole: whole, network: networkOf(p)}
	if p.Window.Seconds <= 0 {
		return nil, fmt.Errorf("the profile has no window: nothing was observed")
	}
	for _, why := range p.NotSeen {
		f.doubt("some traffic was not seen: %s", why)
	}
	members := make([]*model.Member, len(p.Clients))
	for i := range p.Clients {
		m, why := memberOf(p.Clients[i], i)
		if why != "" {
			f.leaveOut("%s is left out: %s", p.Clients[i].Name, why)
			continue
		}
		members[i] = m
		if !p.Clients[i].SkewKnown && m.Scheme.Old() {
			f.doubt("the clock of %s is not known, and is taken for the server's", p.Clients[i].Name)
		}
	}
	for _, family := range p.Families {
		if family.Beyond > 0 {
			f.doubt("%d tries for %s were on keys beyond the most that observe remembers", family.Beyond, family.Name)
		}
		leases := f.leasesOf(family)
		joint := together(family)
		if whole {
			joint = [][]profile.Group{family.Groups}
		}
		for _, groups := range joint {
			switch made := f.group(family.Name, groups, members, leases); {
			case whole, len(made.actors) > 1 && len(made.actors) <= maxActors:
				f.groups = append(f.groups, made)
			case len(made.actors) > maxActors:
				return nil, fmt.Errorf("%d clients share keys of %s, more than %d: observe with --group host", len(made.actors), family.Name, maxActors)
			}
		}
		for _, g := range family.Groups {
			f.shared += float64(g.Keys)
		}
	}
	for _, c := range p.Clients {
		for _, u := range c.Uses {
			if u.Own.Once > 0 {
				f.doubt("%s used %d keys of %s only once: who shares them is not known", c.Name, u.Own.Once, u.Family)
			}
			if u.Left > 0 {
				f.doubt("%s ended %d turns on %s without a release: how long it held is not known", c.Name, u.Left, u.Family)
			}
		}
	}
	return f, nil
}

// mostJoint is how many keys are simulated together at most. A client that waits for one key does not ask for another: among few
// keys that tells, among many it does not.
const mostJoint = 64

// together sorts the groups of a family: those that share clients come together where they have few keys.
func together(family profile.Family) (out [][]profile.Group) {
	var all [][]profile.Group // no two of them share a client
	for _, g := range family.Groups {
		joined := []profile.Group{g}
		all = slices.DeleteFunc(all, func(other []profile.Group) bool {
			shares := slices.ContainsFunc(other, func(o profile.Group) bool {
				return slices.ContainsFunc(o.Clients, func(c int) bool { return slices.Contains(g.Clients, c) })
			})
			if shares {
				joined = append(joined, other...)
			}
			return shares
		})
		all = append(all, joined)
	}
	for _, groups := range all {
		keys := int64(0)
		for _, g := range groups {
			keys += g.Keys
			if g.Sharers > 0 {
				keys = mostJoint + 1
			}
		}
		if keys <= mostJoint {
			out = append(out, groups)
			continue
		}
		out = slices.AppendSeq(out, slices.Chunk(groups, 1))
	}
	return out
}

// group makes the clients of some groups of one family.
func (f *fleet) group(family string, groups []profile.Group, members []*model.Member, leases leaseSpan) group {
	made, seconds := group{family: family, times: 1, shortest: f.shortest(family), network: f.network}, f.profile.Window.Seconds
	one := len(groups) == 1 && groups[0].Keys > mostJoint && !f.whole
	prefix := fmt.Sprintf("%s.%d.", plainName(family), 1+slices.IndexFunc(f.profile.Families, func(o profile.Family) bool { return o.Name == family }))
	if one {
		made.times = float64(groups[0].Keys)
	}
	for c, client := range f.profile.Clients {
		if members[c] == nil {
			continue
		}
		a := actor{client: c, member: *members[c]}
		for n, g := range groups {
			if i := slices.Index(g.Clients, c); i >= 0 && g.Acquired[i] > 0 {
				a.shared += float64(g.Acquired[i]) / seconds / made.times
				a.keys = append(a.keys, keySet(fmt.Sprintf("%s%d:", prefix, n+1), g.Keys, g.Acquired[i]))
			}
		}
		u := client.Use(family)
		if a.shared == 0 && !(f.whole && u.Own.Keys > 0) {
			continue
		}
		switch {
		case u.LeaseMS <= 0:
			f.leaveOut("%s is left out on %s: its lease is not known", client.Name, family)
			continue
		case len(u.Hold.Quantiles) == 0:
			f.leaveOut("%s is left out on %s: no hold of it was seen from begin to end", client.Name, family)
			continue
		}
		lease := u.LeaseMS
		if u.LeaseVaries {
			lease = u.LeaseLeastMS
		}
		a.skew, a.skewError, a.lease, a.hold, a.crashed, a.acquired = client.SkewMS, client.SkewErrorMS, lease, u.Hold, u.Crashed, u.Acquired
		switch a.member.Lease = millis(a.lease); {
		case a.member.Scheme.Old():
			a.leaseIn = leases
			if a.member.Scheme == model.GoLegacy {
				a.member.Renew = a.member.Lease / 3
			}
		case a.member.Scheme == model.Bridge:
			poll := a.member.Poll
			a.member = model.CompatMember(a.member, protocol.MemberTerms{TTL: a.member.Lease, Shortest: made.shortest}, false)
			if client.AtOnce < 2 { // it has no connection to hear of changes on: an old client behind a sidecar, which asks again and again
				a.member.Poll, a.member.Tracks = poll, false
			}
		default:
			a.member.Renew = a.member.Lease / 3
		}
		a.perSecond, a.turn = a.shared, u.Hold.Mean()+u.Wait.Mean()
		if one {
			a.keys = nil
		} else {
			a.think = u.Think
			if own := u.Own.Keys + u.Own.Once; own > 0 {
				acquired := u.Own.Acquired + u.Own.Once
				a.keys = append(a.keys, keySet(fmt.Sprintf("%sown-%d:", prefix, c+1), own, acquired))
				a.perSecond += float64(acquired) / seconds
			}
		}
		if ppm, e, known := client.Drift(); known && math.Abs(ppm) > e {
			a.drift, a.driftError = ppm, e
		}
		threads := client.AtOnce
		if client.Dialect == lockmigrate { // a process of ours has several connections for one thread too: as many as hold at once
			threads = min(threads, int(math.Ceil(float64(u.Acquired)/seconds*u.Hold.Mean()/1000)))
		}
		if threads > 1 { // each takes turns of its own: what is between two turns of the row is not between two of a thread
			a.think, a.perSecond, a.shared = profile.Spread{}, a.perSecond/float64(threads), a.shared/float64(threads)
			if u.Own.Keys > 0 {
				f.doubt("%s works on %d connections at once: whether they share its own keys of %s is not known", client.Name, threads, family)
			}
		}
		for range max(threads, 1) {
			made.actors = append(made.actors, a)
		}
	}
	made.pools()
	return made
}

// lockmigrate is what a profile calls the dialect of clients of this project.
const lockmigrate = "lockmigrate"

// keySet is so many keys, each drawn as often as it was acquired.
func keySet(prefix string, keys, acquired int64) sim.KeySet {
	return sim.KeySet{Prefix: prefix, Count: int(keys), Weight: uint32(max(1, 1000*acquired/keys))}
}

// maxActors bounds the clients that are simulated together.
const maxActors = 1000

// shortest is the shortest lease of the old clients of a family.
func (f *fleet) shortest(family string) (least time.Duration) {
	for _, c := range f.profile.Clients {
		if lease := millis(c.Use(family).LeaseMS); c.Kind == "legacy" && lease > 0 && (least == 0 || lease < least) {
			least = lease
		}
	}
	return least
}

// leaveOut says which client has no part in the forecast.
func (f *fleet) leaveOut(format string, args ...any) {
	f.incomplete, f.leftOut = true, true
	f.doubt(format, args...)
}

func (f *fleet) doubt(format string, args ...any) {
	if said := fmt.Sprintf(format, args...); !slices.Contains(f.notKnown, said) {
		f.notKnown = append(f.notKnown, said)
	}
}

// memberOf is the client of the simulator that plays a client.
func memberOf(c profile.Client, number int) (m *model.Member, why string) {
	m = &model.Member{
		Name: fmt.Sprint("client-", number+1), Dialect: protocol.JedisMS, Key: "key", Patience: time.Hour, Release: protocol.JedisMS.Release,
		Owner: fmt.Sprintf("%08x-0000-4000-8000-000000000000", number+1),
		Poll:  millis(cmp.Or(c.Poll.At(0.5), c.PollMS, 100)),
	}
	if sleep, regular := sleepOf(c); regular {
		m.Poll = millis(sleep)
	}
	switch c.Kind {
	case "redisson":
		m.Scheme, m.Redisson = model.Modern, true
		return m, ""
	case "member":
		c.Kind = model.GoLegacy.String()
	}
	var known bool
	if m.Scheme, known = model.SchemeNamed(c.Kind); !known {
		return nil, fmt.Sprintf("the simulator does not play clients of kind %s", c.Kind)
	}
	if d, err := protocol.DialectNamed(c.Dialect); err == nil {
		m.Dialect = d
	} else if m.Scheme.Old() {
		return nil, fmt.Sprintf("the simulator does not play dialect %q", c.Dialect)
	}
	if m.Release = m.Dialect.Release; m.Scheme == model.Modern {
		m.Queue, m.Poll, m.Fence = true, 100*time.Millisecond, protocol.FenceKey(m.Key)
	}
	return m, ""
}

// networkOf is the way to the server and the delays of the clients beside it. A client that waits sends SETNX and GET each
// poll: by how much a poll is longer than the shortest is what two commands were delayed. Where nobody polls, it is what the pauses
// of takeovers were, or else a near network. Takeovers come last, since most happen when something else is late already.
func networkOf(p profile.Profile) sim.Network {
	var polls, pauses profile.Spread
	for _, c := range p.Clients {
		if sleep, regular := sleepOf(c); regular {
			late := profile.Spread{N: c.Poll.N}
			for _, q := range c.Poll.Quantiles {
				late.Quantiles = append(late.Quantiles, profile.Quantile{Share: q.Share, MS: max(q.MS-sleep, leastDelay)})
			}
			polls = polls.And(late)
		}
		if c.Pause.N > 0 {
			pauses = pauses.And(c.Pause)
		}
	}
	leg := sim.Spread(50*time.Microsecond, 150*time.Microsecond, time.Millisecond, 5*time.Millisecond)
	switch {
	case polls.N > 0:
		leg = legs(polls, 4)
	case pauses.N >= 5:
		leg = legs(pauses, 2)
	}
	return sim.Network{Request: leg, Reply: leg, Timeout: time.Minute}
}

// sleepOf is for how long an old client sleeps between two looks, in ms, where it always sleeps for the same time.
func sleepOf(c profile.Client) (ms float64, regular bool) {
	least, usual := c.Poll.At(0.01), c.Poll.At(0.5)
	return least - leastDelay, c.Kind == "legacy" && c.Poll.N >= 20 && least > leastDelay && usual-least < 0.1*usual
}

// leastDelay is what the shortest poll has of delays, in ms: two round trips of a near network.
const leastDelay = 0.4

// legs parts a delay into some ways to or from the server. The usual delay is made of equal parts. A long one is one way's.
func legs(s profile.Spread, ways float64) (d sim.Distribution) {
	for _, q := range s.Quantiles {
		share, ms := q.Share, q.MS/ways
		if q.Share > usualDelays {
			share, ms = 1-(1-q.Share)/ways, q.MS
		}
		d = append(d, sim.Quantile{Permyriad: uint32(share * 10000), Value: millis(ms)})
	}
	return d
}

const usualDelays = 0.8

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
