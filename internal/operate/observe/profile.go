package observe

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Profile writes down the fleet as it was measured so far.
func (o *Observer) Profile() profile.Profile { return o.profile("") }

// profile names connections with the server that they lead to, unless it is empty; a host or a name is one client on all.
func (o *Observer) profile(server string) profile.Profile {
	o.solve(true)
	p := profile.Profile{Version: profile.Version, Windows: []profile.Window{{
		Start: o.first.Time(), Seconds: o.last.Sub(o.first).Seconds(), Masters: 1, Commands: o.commands, LockCommands: o.lockOps,
	}}}
	if o.unused > 0 {
		p.NotSeen = append(p.NotSeen, fmt.Sprintf("%d commands on kinds of keys beyond the %d that are remembered of a client", o.unused, mostUses))
	}
	type one struct {
		Row
		members []*client
	}
	var all []one
	rows := map[string]int{}
	for id, members := range o.groups() {
		row := one{o.row(id, members), members}
		if row.Tries > 0 || row.Acquired > 0 {
			all = append(all, row)
			rows[row.Addr]++
		}
	}
	slices.SortFunc(all, func(a, b one) int { return byKind(a.Row, b.Row) })
	index := map[*client]int{}
	for i, row := range all {
		c := o.profiled(row.Row, row.members)
		if rows[row.Addr] > 1 { // a host whose clients do different things
			c.Name += "/" + row.Dialect
		}
		if server != "" && o.opts.Group != ByHost && !(o.opts.Group == ByName && row.Addr == row.Name) {
			c.Name += " at " + server
		}
		p.Clients = append(p.Clients, c)
		for _, m := range row.members {
			index[m] = i
		}
	}
	o.shares(&p, index)
	return p
}

// profiled is one row of the report for a profile.
func (o *Observer) profiled(row Row, members []*client) profile.Client {
	c := profile.Client{Name: row.Addr, Kind: row.Kind, Dialect: row.Dialect, Connections: row.Connections, AtOnce: atOnce(members)}
	if row.PollMS != nil {
		c.PollMS = *row.PollMS
	}
	if row.SkewMS != nil {
		c.SkewKnown, c.SkewMS, c.SkewErrorMS = true, *row.SkewMS, *row.SkewErrorMS
		c.Clock = o.readings(*row.SkewMS, members)
	}
	var poll, pause []*samples
	uses := map[string][]*use{}
	ttl := time.Duration(0)
	gaveUp := map[string]*samples{}
	for _, m := range members {
		poll, pause = append(poll, &m.poll), append(pause, &m.pause)
		for family, u := range m.uses {
			uses[family] = append(uses[family], u)
		}
		if row.LeaseFrom == "ttl" && (ttl == 0 || m.ttl > 0 && m.ttl < ttl) {
			ttl = m.ttl
		}
		for id, a := range m.attempts { // it may have gone to other keys since
			if a.failed && a.last != 0 && m.gone(o.last.Sub(a.last)) {
				family := Family(id.name)
				if gaveUp[family] == nil {
					gaveUp[family] = &samples{}
				}
				gaveUp[family].add(a.last.Sub(a.first))
			}
		}
	}
	c.Poll, c.Pause = spread(poll), spread(pause)
	for _, family := range slices.Sorted(maps.Keys(uses)) {
		all := uses[family]
		u := profile.Use{Family: family}
		if lease, ok := o.clocks.lease[family]; ok && row.Kind == Legacy {
			u.LeaseMS, u.LeaseFrom = ms(lease), o.clocks.source[family]
		} else if ttl > 0 {
			u.LeaseMS, u.LeaseFrom = ms(ttl), "ttl"
		}
		for _, x := range all {
			u.Tries += x.tries
			u.Acquired += x.acquired
			u.Takeovers += x.takeovers
			u.Renewals += x.renewals
			u.Left += x.left
			u.Crashed += x.crashed
			for name, n := range x.hazards {
				if u.Hazards == nil {
					u.Hazards = map[string]int64{}
				}
				u.Hazards[name] += n
			}
			for hour, n := range x.hours {
				if n == 0 {
					continue
				}
				if u.ByHour == nil {
					u.ByHour = map[int]int64{}
				}
				u.ByHour[hour] += n
			}
		}
		of := func(field func(*use) *samples) profile.Spread {
			var each []*samples
			for _, x := range all {
				each = append(each, field(x))
			}
			return spread(each)
		}
		u.Hold = of(func(x *use) *samples { return &x.hold })
		u.Wait = of(func(x *use) *samples { return &x.wait })
		u.Think = of(func(x *use) *samples { return &x.think })
		u.Overrun = of(func(x *use) *samples { return &x.overrun })
		u.GaveUp = of(func(x *use) *samples { return &x.gaveUp })
		if late := gaveUp[family]; late != nil {
			u.GaveUp = u.GaveUp.And(spread([]*samples{late}))
		}
		c.Uses = append(c.Uses, u)
	}
	slices.SortStableFunc(c.Uses, func(a, b profile.Use) int { return int(b.Tries - a.Tries) })
	return c
}

// atOnce is how many connections worked at the same time, each from its first use of a lock to its last command.
func atOnce(members []*client) int {
	type step struct {
		at protocol.Instant
		by int
	}
	var steps []step
	for _, c := range members {
		if c.first != 0 {
			steps = append(steps, step{c.first, +1}, step{max(c.last, c.first) + 1, -1})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
	now, most := 0, 1
	for _, s := range steps {
		now += s.by
		most = max(most, now)
	}
	return most
}

// spread puts the samples of several connections together.
func spread(all []*samples) profile.Spread {
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

// shares writes down who uses which keys, what became of the holds that nobody has ended, and the overlaps.
func (o *Observer) shares(p *profile.Profile, index map[*client]int) {
	keys := map[string][]profile.KeyUse{}
	more := map[string]int64{}
	for id, lk := range o.locks {
		by := map[int]int64{}
		for _, u := range lk.users {
			if i, shown := index[u.c]; shown {
				by[i] += u.acquired
			}
		}
		if len(by) > 0 {
			keys[lk.family] = append(keys[lk.family], profile.KeyUse{ID: profile.KeyID(id.db, id.name), By: by})
		}
		more[lk.family] += lk.more
		holds := slices.Clone(lk.past)
		if lk.holder != nil {
			holds = append(holds, lk.holder)
		}
		for _, h := range holds {
			if i, shown := index[h.c]; shown {
				p.Clients[i].Unended(lk.family, o.crashed(lk, h))
			}
		}
	}
	for name, all := range keys {
		p.Share(name, all)
	}
	for i := range p.Families {
		f := &p.Families[i]
		f.Beyond = more[f.Name]
		if seen := o.families[f.Name]; seen != nil {
			f.Beyond += seen.beyond
			if len(seen.overlaps) > 0 {
				f.Overlaps = maps.Clone(seen.overlaps)
			}
		}
	}
}

// mostClock is how many readings of a clock are written down.
const mostClock = 4

// readings are the clock of a row over time. What the row's skew rests on is the largest sample of all; each stretch of time
// has a largest sample of its own, and the difference is the difference of the clock, but for delays.
func (o *Observer) readings(skew float64, members []*client) []profile.Reading {
	type kind struct {
		family string
		direct bool
	}
	sums, n := map[kind][]*sums{}, map[kind]int64{}
	for p, s := range o.sums {
		if slices.Contains(members, p.client) {
			k := kind{p.family, p.direct}
			sums[k], n[k] = append(sums[k], s), n[k]+s.n
		}
	}
	var best kind
	for k, count := range n {
		if count > n[best] || count == n[best] && k.family < best.family {
			best = k
		}
	}
	var all []reading
	top, quantum, trip := time.Duration(math.MinInt64), time.Duration(0), time.Duration(0)
	for _, s := range sums[best] {
		all, quantum = append(all, s.readings...), max(quantum, s.quantum)
		if s.n > 0 {
			top = max(top, s.top[0])
		}
		if s.trip > 0 && (trip == 0 || s.trip < trip) {
			trip = s.trip
		}
	}
	if len(all) == 0 || top == math.MinInt64 {
		return nil
	}
	if trip == 0 || trip > coarse {
		trip = coarse
	}
	slices.SortFunc(all, func(a, b reading) int { return int(a.from - b.from) })
	stretch := max(all[len(all)-1].from.Sub(all[0].from)/mostClock+1, firstStretch)
	var merged []reading
	for _, r := range all {
		merged = gathered(merged, r, stretch)
	}
	var out []profile.Reading
	for _, r := range merged {
		if r.n < enough {
			continue
		}
		out = append(out, profile.Reading{At: r.at.Time(), SkewMS: round1(skew + ms(r.most-top)), ErrorMS: round1(ms(trip/2+quantum/2+min(r.most-r.next, coarse)) + 0.05)})
	}
	slices.SortFunc(out, func(a, b profile.Reading) int { return a.At.Compare(b.At) }) // stretches of several connections overlap
	return out
}
