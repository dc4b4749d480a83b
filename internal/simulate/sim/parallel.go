package sim

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// Each calls do for each number below n, on so many threads at once (0: one for each core). Each thread has a World of its own. It
// begins with no further number when ctx is over.
func Each(ctx context.Context, threads, n int, do func(w *World, i int)) {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(threads, n) {
		group.Go(func() {
			var w World
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				do(&w, i)
			}
		})
	}
	group.Wait()
}

// Parallel plays runs side by side: the seeds of a fleet, and its masters, which have nothing to do with each other.
type Parallel struct {
	// Workers is how many threads are used; 0 is one for each core.
	Workers int
	// Overlap, if set, is called when a client comes in while another is inside, never twice at once.
	Overlap func(came, inside int)
}

// Run plays seeds runs of a fleet, from seed on. The sum is the same for any number of workers.
func (p *Parallel) Run(fleet *Fleet, seed uint64, seeds int) Sum {
	masters := max(fleet.Masters, 1)
	var sum Sum
	hashes := make([]uint64, masters*seeds)
	var adding, calling sync.Mutex
	Each(context.Background(), p.Workers, len(hashes), func(w *World, n int) {
		if p.Overlap != nil {
			w.Overlap = func(came, inside int) {
				calling.Lock()
				defer calling.Unlock()
				p.Overlap(came, inside)
			}
		}
		r := w.runMaster(fleet, seed+uint64(n/masters), n%masters)
		hashes[n] = r.Hash
		adding.Lock()
		defer adding.Unlock()
		sum.Add(&r)
	})
	sum.Hash = 0
	for _, hash := range hashes {
		sum.Hash = folded(sum.Hash, hash)
	}
	return sum
}
