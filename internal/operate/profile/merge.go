package profile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Merge makes one profile of several that were measured at different times: counts add, and a clock has the readings of all
// of them. Windows that overlap are refused, as the same commands would count twice, and so are profiles of other keys.
func Merge(all ...Profile) (Profile, error) {
	out := Profile{Version: Version}
	for i, p := range all {
		if err := p.Validate(); err != nil {
			return out, err
		}
		if len(p.Windows) == 0 {
			return out, fmt.Errorf("profile %d has no window", i+1)
		}
		if a, b := slices.Sorted(slices.Values(all[0].Match)), slices.Sorted(slices.Values(p.Match)); !slices.Equal(a, b) {
			return out, fmt.Errorf("the profiles are of different keys: %q and %q", a, b)
		}
		out.Windows = append(out.Windows, p.Windows...)
	}
	slices.SortFunc(out.Windows, func(a, b Window) int { return a.Start.Compare(b.Start) })
	for i := range len(out.Windows) - 1 {
		if a, b := out.Windows[i], out.Windows[i+1]; b.Start.Before(a.Start.Add(time.Duration(a.Seconds * float64(time.Second)))) {
			return out, fmt.Errorf("two profiles are of the same time: %v begins before %v is over", b.Start.Format(time.RFC3339), a.Start.Format(time.RFC3339))
		}
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Profile) int { return a.Windows[0].Start.Compare(b.Windows[0].Start) })
	out.join(all)
	return out, nil
}

// join takes in the clients and families of profiles, the earliest first.
func (p *Profile) join(all []Profile) {
	at := map[[3]string]int{}
	tables := map[string]*table{}
	for _, one := range all {
		if p.Match == nil {
			p.Match = one.Match
		}
		p.Failovers = p.Failovers.and(one.Failovers)
		for _, why := range one.NotSeen {
			if !slices.Contains(p.NotSeen, why) {
				p.NotSeen = append(p.NotSeen, why)
			}
		}
		index := make([]int, len(one.Clients))
		for i, c := range one.Clients {
			id := [3]string{c.Name, c.Kind, c.Dialect}
			n, known := at[id]
			if !known {
				n = len(p.Clients)
				at[id] = n
				p.Clients = append(p.Clients, Client{Name: c.Name, Kind: c.Kind, Dialect: c.Dialect})
			}
			index[i] = n
			p.Clients[n] = p.Clients[n].and(c)
		}
		for _, f := range one.Families {
			t := tables[f.Name]
			if t == nil {
				t = &table{ids: true, by: map[string]map[int]int64{}}
				tables[f.Name] = t
			}
			t.take(one, f, index)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		p.share(name, tables[name])
	}
}

// table is what several profiles say about the keys of a family.
type table struct {
	ids    bool
	times  int // profiles that have the family
	keys   int64
	by     map[string]map[int]int64 // by id: who acquired it how often
	groups []Group
	family Family // of what adds
}

func (t *table) take(p Profile, f Family, index []int) {
	t.times++
	t.ids = t.ids && f.IDs
	t.keys += f.Keys
	t.family.Beyond += f.Beyond
	t.family.Overlaps = Sum(t.family.Overlaps, f.Overlaps)
	add := func(id string, client int, n int64) {
		if t.by[id] == nil {
			t.by[id] = map[int]int64{}
		}
		t.by[id][client] += n
	}
	for i, c := range p.Clients {
		for _, u := range c.Uses {
			if u.Family == f.Name {
				for id, n := range u.Own.IDs {
					add(id, index[i], n)
				}
			}
		}
	}
	for _, g := range f.Groups {
		moved := Group{Keys: g.Keys, Sharers: g.Sharers}
		order := make([]int, len(g.Clients))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int { return index[g.Clients[a]] - index[g.Clients[b]] })
		for _, i := range order {
			moved.Clients, moved.Acquired = append(moved.Clients, index[g.Clients[i]]), append(moved.Acquired, g.Acquired[i])
			for k, id := range g.IDs {
				n := g.Acquired[i] / g.Keys
				if int64(k) < g.Acquired[i]%g.Keys {
					n++
				}
				add(id, index[g.Clients[i]], n)
			}
		}
		t.groups = append(t.groups, moved)
	}
}

// share writes down who shares the keys of a family. Keys of different times are known again by their ids. Where there are
// none, a key that one client alone had in one window may have been another's in the next: such keys tell nothing.
func (p *Profile) share(name string, t *table) {
	if t.ids {
		for i := range p.Clients {
			for j := range p.Clients[i].Uses {
				if u := &p.Clients[i].Uses[j]; u.Family == name {
					u.Own = Own{}
				}
			}
		}
		p.Share(name, t.by)
	} else {
		f := p.family(name)
		f.Keys, f.IDs = t.keys, false
		for _, g := range t.groups {
			i := slices.IndexFunc(f.Groups, func(o Group) bool {
				return o.Sharers == 0 && g.Sharers == 0 && slices.Equal(o.Clients, g.Clients)
			})
			if i < 0 {
				f.Groups = append(f.Groups, g)
				continue
			}
			f.Groups[i].Keys = max(f.Groups[i].Keys, g.Keys)
			for k, n := range g.Acquired {
				f.Groups[i].Acquired[k] += n
			}
		}
		f.bound()
		for i := range p.Clients {
			for j := range p.Clients[i].Uses {
				u := &p.Clients[i].Uses[j]
				if u.Family != name {
					continue
				}
				u.Own.IDs = nil
				if t.times > 1 {
					u.Own = Own{Once: u.Own.Keys + u.Own.Once}
				}
			}
		}
	}
	f := p.family(name)
	f.Beyond, f.Overlaps = t.family.Beyond, t.family.Overlaps
}

// and takes in what another profile says of the same client.
func (c Client) and(o Client) Client {
	fresh := c.Connections == 0
	c.Connections, c.AtOnce = max(c.Connections, o.Connections), max(c.AtOnce, o.AtOnce)
	sameLeases, stepped, longer := true, false, 0.0
	for _, u := range o.Uses {
		stepped = stepped || u.Hazards["step"] > 0
		i := slices.IndexFunc(c.Uses, func(x Use) bool { return x.Family == u.Family })
		switch {
		case i < 0 || c.Uses[i].LeaseMS == u.LeaseMS:
		case c.Uses[i].LeaseFrom == "waits" && u.LeaseFrom == "waits": // one lease, measured twice
			longer = c.Uses[i].LeaseMS - u.LeaseMS
		default:
			sameLeases = false
		}
	}
	switch {
	case !o.SkewKnown:
	case !c.SkewKnown:
		c.SkewKnown, c.SkewMS, c.SkewErrorMS, c.Clock = true, o.SkewMS, o.SkewErrorMS, o.Clock
	case sameLeases && !stepped:
		c.Clock = slices.Clone(c.Clock)
		for i := range c.Clock { // with the lease of the later window
			c.Clock[i].SkewMS += longer
		}
		c.SkewMS, c.SkewErrorMS, c.Clock = o.SkewMS, o.SkewErrorMS, slices.Concat(c.Clock, o.Clock)
	default: // another lease or a step: what was read before is not to be compared
		c.SkewMS, c.SkewErrorMS, c.Clock = o.SkewMS, o.SkewErrorMS, o.Clock
	}
	if fresh || o.Poll.N > c.Poll.N {
		c.PollMS = o.PollMS
	}
	c.Poll, c.Pause = c.Poll.And(o.Poll), c.Pause.And(o.Pause)
	c.Uses = slices.Clone(c.Uses)
	for _, u := range o.Uses {
		one := c.use(u.Family)
		*one = one.and(u)
	}
	slices.SortStableFunc(c.Uses, func(a, b Use) int { return cmp.Compare(b.Tries, a.Tries) })
	return c
}

// rank says how well a lease is known: not at all, as a guess, as one that clients' clocks speak for, as measured.
func (u Use) rank() int {
	switch {
	case u.LeaseMS == 0:
		return 0
	case u.LeaseFrom == "round":
		return 1
	case u.LeaseFrom == "fleet":
		return 2
	}
	return 3
}

func (u Use) and(o Use) Use {
	both := u.LeaseFrom == "waits" && o.LeaseFrom == "waits" // the later clock belongs to the later lease
	if a, b := u.rank(), o.rank(); b > a || b == a && o.LeaseMS < u.LeaseMS || both {
		u.LeaseMS, u.LeaseFrom, u.LeaseLowMS, u.LeaseHighMS = o.LeaseMS, o.LeaseFrom, o.LeaseLowMS, o.LeaseHighMS
	}
	u.Tries += o.Tries
	u.Acquired += o.Acquired
	u.Takeovers += o.Takeovers
	u.Renewals += o.Renewals
	u.Crashed += o.Crashed
	u.Left += o.Left
	u.Open += o.Open
	u.Hold, u.Wait, u.Think = u.Hold.And(o.Hold), u.Wait.And(o.Wait), u.Think.And(o.Think)
	u.Overrun, u.GaveUp = u.Overrun.And(o.Overrun), u.GaveUp.And(o.GaveUp)
	u.Own.Keys += o.Own.Keys
	u.Own.Acquired += o.Own.Acquired
	u.Own.Once += o.Own.Once
	u.Hazards, u.ByHour = Sum(u.Hazards, o.Hazards), Sum(u.ByHour, o.ByHour)
	return u
}

// Sum adds the counts of both. It changes neither.
func Sum[K comparable](a, b map[K]int64) map[K]int64 {
	out := maps.Clone(a)
	if out == nil {
		return maps.Clone(b)
	}
	for k, n := range b {
		out[k] += n
	}
	return out
}
