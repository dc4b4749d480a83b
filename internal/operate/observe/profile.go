package observe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// Profile writes down the fleet as it was measured so far.
func (o *Observer) Profile() profile.Profile { return observers{o}.profile(nil) }

// profile names connections with the server that they lead to, where there are several; a host or a name is one client on all.
func (all observers) profile(live *window) profile.Profile {
	window := profile.Window{Masters: len(all)}
	window.Start, window.Seconds = all.watched(live)
	var unused int64
	for _, o := range all {
		window.Commands += o.counts.Commands
		window.LockCommands += o.counts.LockCommands
		unused += o.unused
	}
	p := profile.Profile{Version: profile.Version, Window: window}
	if unused > 0 {
		p.NotSeen = append(p.NotSeen, fmt.Sprintf("%d commands on kinds of keys beyond the %d that are remembered of a client", unused, mostUses))
	}
	rows := slices.DeleteFunc(all.rows(), func(r clientRow) bool { return r.Tries == 0 && r.Acquired == 0 })
	alike := map[[2]string]int{}
	for _, row := range rows {
		alike[[2]string{row.Addr, row.Server}]++
	}
	index := map[*client]int{}
	for i, row := range rows {
		c := row.profiled()
		if alike[[2]string{row.Addr, row.Server}] > 1 { // a host whose clients do different things
			c.Name += "/" + row.Dialect
		}
		if row.Server != "" {
			c.Name += " at " + row.Server
		}
		p.Clients = append(p.Clients, c)
		for _, m := range row.members {
			index[m] = i
		}
	}
	for _, o := range all {
		o.crashes(&p, index)
	}
	all.shares(&p, index)
	return p
}

// profiled is one row of the report for a profile. A service behind a sidecar is played as a member at stage bridge: it locks with the same
// tokens, whatever its own clock says.
func (row *clientRow) profiled() profile.Client {
	c := profile.Client{Name: row.Addr, Kind: row.Kind, Dialect: row.Dialect, Or: row.DialectOr, Doubt: row.DialectDoubt, Connections: row.Connections, AtOnce: atOnce(row.members), Poll: row.poll, PollMS: row.PollMS, Pause: row.pause}
	if c.Kind == Sidecar {
		c.Kind = Bridge
	}
	c.SkewKnown = c.Kind == Member // it follows the server's clock
	if row.SkewMS != nil {
		c.SkewKnown, c.SkewMS, c.SkewErrorMS, c.Clock = true, *row.SkewMS, *row.SkewErrorMS, row.readings()
	}
	for _, family := range slices.Sorted(maps.Keys(row.uses)) {
		u := joined(row.uses[family])
		u.Family = family
		var l lease
		if row.Kind == Legacy {
			l = leaseOf(row.members, family)
		}
		if l.likely == 0 && row.LeaseFrom == "ttl" {
			l = ttlOf(row.members, family)
		}
		u.Lease = l.measured()
		c.Uses = append(c.Uses, u)
	}
	slices.SortStableFunc(c.Uses, func(a, b profile.Use) int { return cmp.Compare(b.Tries, a.Tries) })
	return c
}

// joined is what several connections did on one family.
func joined(all []*use) (u profile.Use) {
	var hold, wait, think []*samples
	for _, x := range all {
		u.Tries += x.tries
		u.Acquired += x.acquired
		u.Left += x.left
		u.Crashed += x.crashed
		hold, wait, think = append(hold, &x.hold), append(wait, &x.wait), append(think, &x.think)
	}
	u.Hold, u.Wait, u.Think = spread(hold...), spread(wait...), spread(think...)
	return u
}

// atOnce is how many connections worked at the same time, each from its first use of a lock to its last command.
func atOnce(members []*client) int {
	var begins, ends []protocol.Instant
	for _, c := range members {
		if c.first != 0 {
			begins, ends = append(begins, c.first), append(ends, max(c.last, c.first))
		}
	}
	slices.Sort(begins)
	slices.Sort(ends)
	over, most := 0, 1
	for i, at := range begins {
		for ends[over] < at {
			over++
		}
		most = max(most, i+1-over)
	}
	return most
}

// crashes writes down the holds that nobody has ended, and nobody will.
func (o *Observer) crashes(p *profile.Profile, index map[*client]int) {
	for _, lk := range o.locks {
		holds := lk.past
		if lk.holder != nil {
			holds = append(slices.Clip(holds), lk.holder)
		}
		for _, h := range holds {
			if i, shown := index[h.c]; shown && o.crashed(lk, h) {
				p.Clients[i].Crash(lk.family)
			}
		}
	}
}

// shares writes down who uses which keys, and the overlaps. A server that takes another's place has the same keys.
func (all observers) shares(p *profile.Profile, index map[*client]int) {
	keys := map[string]map[traffic.Key]map[int]int64{} // by family: who acquired each how often
	beyond, overlaps := map[string]int64{}, map[string]map[string]int64{}
	for _, o := range all {
		for id, lk := range o.locks {
			by := map[int]int64{}
			for _, u := range lk.users {
				if i, shown := index[u.c]; shown {
					by[i] += u.acquired
				}
			}
			if len(by) > 0 {
				if keys[lk.family] == nil {
					keys[lk.family] = map[traffic.Key]map[int]int64{}
				}
				keys[lk.family][id] = profile.Sum(keys[lk.family][id], by)
			}
		}
		for name, f := range o.families {
			beyond[name] += f.beyond
			overlaps[name] = profile.Sum(overlaps[name], f.overlaps)
		}
	}
	for name, all := range keys {
		p.Share(name, slices.Collect(maps.Values(all)))
	}
	for i := range p.Families {
		f := &p.Families[i]
		f.Beyond, f.Overlaps = beyond[f.Name], overlaps[f.Name]
	}
}

// mostClock is how many readings of a clock are written down, shortestStretch how far they are apart at least.
const (
	mostClock       = 4
	shortestStretch = 5 * time.Second
)

// readings are the clock of a row over time. What the row's skew rests on is the largest lead of all; each stretch of time
// has a largest lead of its own, and the difference is the difference of the clock, but for delays.
func (row *clientRow) readings() (out []profile.Reading) {
	all := map[series]*leads{}
	for _, c := range row.members {
		if c.o != row.clock.o { // another server, with another clock
			continue
		}
		for family, u := range c.uses {
			for direct, s := range u.leads {
				of := series{family, direct}
				if all[of] == nil {
					all[of] = &leads{}
				}
				all[of].join(s)
			}
		}
	}
	var best *leads
	from := ""
	for of, s := range all {
		if best == nil || s.n > best.n || s.n == best.n && of.family < from {
			best, from = s, of.family
		}
	}
	if best == nil || best.n == 0 {
		return nil
	}
	kept, trip := best.kept, min(cmp.Or(best.trip, coarse), coarse)
	slices.SortFunc(kept, func(a, b lead) int { return cmp.Compare(a.at, b.at) })
	stretch := max(kept[len(kept)-1].at.Sub(kept[0].at)/mostClock+1, shortestStretch)
	for len(kept) > 0 {
		n := 1
		for n < len(kept) && kept[n].at.Sub(kept[0].at) < stretch {
			n++
		}
		one := kept[:n]
		kept = kept[n:]
		if n < enough {
			continue
		}
		slices.SortFunc(one, func(a, b lead) int { return cmp.Compare(b.ahead, a.ahead) })
		most, next := one[0], one[1]
		out = append(out, profile.Reading{At: most.at.Time(), SkewMS: round1(*row.SkewMS + ms(most.ahead-best.top[0])), ErrorMS: round1(ms(trip/2+best.quantum/2+min(most.ahead-next.ahead, coarse)) + 0.05)})
	}
	return out
}
