package sim

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// Each calls do for each number below n, on all cores. Each thread has a World of its own. It begins with no further number when ctx is over.
func Each(ctx context.Context, n int, do func(w *World, i int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		group.Go(func() {
			var w World
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				do(&w, i)
			}
		})
	}
	group.Wait()
}

// RunAll plays runs side by side, from seed on: the seeds of a fleet, and its masters, which have nothing to do with each other. The sum is the
// same for any number of cores. Overlap, if it is not nil, is called when a client comes in while another is inside, never twice at once.
func RunAll(fleet *Fleet, seed uint64, seeds int, overlap func(came, inside int)) Sum {
	masters := max(fleet.Masters, 1)
	var sum Sum
	hashes := make([]uint64, masters*seeds)
	var one sync.Mutex
	Each(context.Background(), len(hashes), func(w *World, n int) {
		if overlap != nil {
			w.Overlap = func(came, inside int) {
				one.Lock()
				defer one.Unlock()
				overlap(came, inside)
			}
		}
		r := w.runMaster(fleet, seed+uint64(n/masters), n%masters)
		hashes[n] = r.Hash
		one.Lock()
		defer one.Unlock()
		sum.Add(&r)
	})
	sum.Hash = 0
	for _, hash := range hashes {
		sum.Hash = folded(sum.Hash, hash)
	}
	return sum
}
