package profile

import (
	"cmp"
	"fmt"
	"slices"
)

// Set is Count keys that a client works on equally often. Clients with a set of the same name share its keys.
type Set struct {
	Name     string // unlike every other set's; no key's name is kept
	Family   string
	Count    int
	Acquired float64 // by this client on one of the keys; of a client that only tried, half a one
}

// Sets lays the keys out as they were shared: what each client works on, the most used first. Keys that were acquired once
// are laid out as the client's own, although nobody knows who else may come: Unsure counts them.
func (p Profile) Sets() [][]Set {
	all := make([][]Set, len(p.Clients))
	add := func(client int, name, family string, count, acquired int64) {
		if count > 0 {
			all[client] = append(all[client], Set{name, family, int(count), max(float64(acquired)/float64(count), 0.5)})
		}
	}
	for _, f := range p.Families {
		for n, g := range f.Groups {
			each := int64(len(g.Clients))
			if g.Sharers > 0 {
				each = min(max(int64(g.Sharers+0.5), 1), each)
			}
			// So many clients at a time take their part of the keys together.
			parts := int64(len(g.Clients)) / each
			for i, c := range g.Clients {
				part := min(int64(i)/each, parts-1)
				count := g.Keys / parts
				if part < g.Keys%parts {
					count++
				}
				add(c, fmt.Sprintf("%s, group %d.%d, key ", f.Name, n+1, part+1), f.Name, count, g.Acquired[i])
			}
		}
	}
	for i, c := range p.Clients {
		for _, u := range c.Uses {
			add(i, fmt.Sprintf("%s, of client %d, key ", u.Family, i+1), u.Family, u.Own.Keys, u.Own.Acquired)
			add(i, fmt.Sprintf("%s, once, of client %d, key ", u.Family, i+1), u.Family, u.Own.Once, u.Own.Once)
		}
		slices.SortStableFunc(all[i], func(a, b Set) int {
			return cmp.Compare(b.Acquired*float64(b.Count), a.Acquired*float64(a.Count))
		})
	}
	return all
}

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
