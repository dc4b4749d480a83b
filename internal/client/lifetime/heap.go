package lifetime

func (r *Renewer) push(s *Lease) {
	r.heap = append(r.heap, s)
	s.index = len(r.heap)
	r.up(s.index - 1)
}

func (r *Renewer) pop(s *Lease) bool {
	if s.index == 0 {
		return false
	}
	i, last := s.index-1, len(r.heap)-1
	r.swap(i, last)
	r.heap[last] = nil
	r.heap = r.heap[:last]
	s.index = 0
	if i < last {
		r.down(i)
		r.up(i)
	}
	return true
}

func (r *Renewer) fix(s *Lease) {
	i := s.index - 1
	r.down(i)
	r.up(i)
}

func (r *Renewer) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if r.heap[parent].at <= r.heap[i].at {
			return
		}
		r.swap(i, parent)
		i = parent
	}
}

func (r *Renewer) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(r.heap); child++ {
			if r.heap[child].at < r.heap[least].at {
				least = child
			}
		}
		if least == i {
			return
		}
		r.swap(i, least)
		i = least
	}
}

func (r *Renewer) swap(i, j int) {
	h := r.heap
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}
