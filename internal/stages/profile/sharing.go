package profile

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
)

// The bounds that keep a profile small: of a family of more keys so many groups are written down as they are, the others are put together.
const (
	manyKeys   = 2048
	mostGroups = 64
)

// Share writes down who shares the keys of a family: Own of its clients' uses, and the groups. Of each key it is told how often each client
// acquired it; a client that only tried has 0.
func (p *Profile) Share(family string, keys []map[int]int64) {
	f := p.family(family)
	f.Keys, f.Groups = int64(len(keys)), nil
	groups := map[string]*Group{}
	for _, by := range keys {
		clients := slices.Sorted(maps.Keys(by))
		if len(clients) == 1 {
			p.own(clients[0], family, by[clients[0]])
			continue
		}
		var total int64
		for _, n := range by {
			total += n
		}
		// Keys that are used about equally often, within a factor of four, can stand together: a busy key and a quiet one can not.
		at := fmt.Sprint(bits.Len64(uint64(total))/2, clients)
		if groups[at] == nil {
			groups[at] = &Group{Clients: clients, Acquired: make([]int64, len(clients))}
		}
		g := groups[at]
		g.Keys++
		for i, c := range clients {
			g.Acquired[i] += by[c]
		}
	}
	for _, at := range slices.Sorted(maps.Keys(groups)) {
		f.Groups = append(f.Groups, *groups[at])
	}
	f.bound()
}

// family returns the family of a name, and makes it.
func (p *Profile) family(name string) *Family {
	i, found := slices.BinarySearchFunc(p.Families, name, func(f Family, name string) int { return cmp.Compare(f.Name, name) })
	if !found {
		p.Families = slices.Insert(p.Families, i, Family{Name: name})
	}
	return &p.Families[i]
}

// own takes in a key that one client alone was seen on.
func (p *Profile) own(client int, family string, n int64) {
	u := p.Clients[client].use(family)
	if n >= 2 {
		u.Own.Keys++
		u.Own.Acquired += n
	} else {
		u.Own.Once++
	}
}

// Use is a client's use of a family; the zero value where it has none.
func (c Client) Use(family string) Use {
	c.Uses = slices.Clip(c.Uses) // one that is made for it is nobody's
	return *c.use(family)
}

// use returns a client's use of a family, and makes it.
func (c *Client) use(family string) *Use {
	i := slices.IndexFunc(c.Uses, func(u Use) bool { return u.Family == family })
	if i < 0 {
		i = len(c.Uses)
		c.Uses = append(c.Uses, Use{Family: family})
	}
	return &c.Uses[i]
}

// Total is how often the keys of a group were acquired.
func (g Group) Total() int64 {
	var n int64
	for _, a := range g.Acquired {
		n += a
	}
	return n
}

// bound puts the groups together that are beyond mostGroups, those that are used least: by how many clients share a key, and
// how often it is used.
func (f *Family) bound() {
	slices.SortStableFunc(f.Groups, func(a, b Group) int { return cmp.Compare(b.Total(), a.Total()) })
	if f.Keys <= manyKeys || len(f.Groups) <= mostGroups {
		return
	}
	rest := map[[2]int][]Group{}
	for _, g := range f.Groups[mostGroups:] {
		at := [2]int{bits.Len(uint(len(g.Clients))), bits.Len64(uint64(g.Total()/g.Keys)) / 4}
		rest[at] = append(rest[at], g)
	}
	f.Groups = slices.Clip(f.Groups[:mostGroups])
	for _, at := range slices.SortedFunc(maps.Keys(rest), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		f.Groups = append(f.Groups, together(rest[at]))
	}
}

// together makes one group of several.
func together(all []Group) Group {
	by, sharing, out := map[int]int64{}, 0.0, Group{}
	for _, g := range all {
		out.Keys += g.Keys
		sharing += cmp.Or(g.Sharers, float64(len(g.Clients))) * float64(g.Keys)
		for i, c := range g.Clients {
			by[c] += g.Acquired[i]
		}
	}
	out.Sharers = sharing / float64(out.Keys)
	for _, c := range slices.Sorted(maps.Keys(by)) {
		out.Clients, out.Acquired = append(out.Clients, c), append(out.Acquired, by[c])
	}
	return out
}

// Crash counts a hold whose holder has crashed.
func (c *Client) Crash(family string) { c.use(family).Crashed++ }

// Unsure is how many keys were acquired once, and by how many clients: nobody knows who else may lock them.
func (p Profile) Unsure() (keys int64, clients int) {
	for _, c := range p.Clients {
		var n int64
		for _, u := range c.Uses {
			n += u.Own.Once
		}
		if n > 0 {
			clients++
		}
		keys += n
	}
	return keys, clients
}
