package lifetime

import "container/heap"

// deeds are the leases of a Renewer in the order of what happens to them next, as container/heap has it.
type deeds []*Lease

func (d deeds) Len() int           { return len(d) }
func (d deeds) Less(i, j int) bool { return d[i].at < d[j].at }

func (d deeds) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i+1, j+1
}

func (d *deeds) Push(lease any) {
	s := lease.(*Lease)
	*d = append(*d, s)
	s.index = len(*d)
}

func (d *deeds) Pop() any {
	last := len(*d) - 1
	s := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	s.index = 0
	return s
}

// push, pop and fix are for who holds the Renewer's mu. Pop tells whether the lease was there.
func (r *Renewer) push(s *Lease) { heap.Push(&r.heap, s) }
func (r *Renewer) fix(s *Lease)  { heap.Fix(&r.heap, s.index-1) }

func (r *Renewer) pop(s *Lease) bool {
	if s.index == 0 {
		return false
	}
	heap.Remove(&r.heap, s.index-1)
	return true
}
