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
	// Watch, if set, returns the Trace of the run of one master. It is called, and so are the traces, from all workers at once.
	Watch func(seed uint64, master int) func(*Record)
}

// Played is what some seeds of a fleet came to. It is the same for any number of workers.
type Played struct {
	// Masters has the sum of all seeds for each master.
	Masters []Result
	// Hash is over the traces of all runs.
	Hash uint64
	// Broken is the first seed with an overlap, if AnyBroken.
	Broken    uint64
	AnyBroken bool
}

// Sum is what the runs came to on all masters together.
func (p *Played) Sum() Result {
	sum := Sum(p.Masters)
	sum.Hash = p.Hash
	return sum
}

// Run plays seeds runs of a fleet, from seed on.
func (p *Parallel) Run(fleet *Fleet, seed uint64, seeds int) Played {
	masters := max(fleet.Masters, 1)
	played := Played{Masters: make([]Result, masters)}
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
		s := seed + uint64(n/masters)
		if p.Watch != nil {
			w.Trace = p.Watch(s, n%masters)
		}
		r := w.runMaster(fleet, s, n%masters)
		hashes[n] = r.Hash
		adding.Lock()
		defer adding.Unlock()
		sum := &played.Masters[n%masters]
		sum.Ops += r.Ops
		sum.Simulated += r.Simulated
		sum.Tally.Add(&r.Tally)
		if r.Overlaps > 0 && (!played.AnyBroken || s < played.Broken) {
			played.Broken, played.AnyBroken = s, true
		}
	})
	for i, hash := range hashes {
		if i == 0 {
			played.Hash = hash
			continue
		}
		played.Hash = played.Hash*0x9e3779b97f4a7c15 ^ hash
	}
	return played
}

// Sum is what a run came to on all masters together.
func Sum(masters []Result) Result {
	sum := masters[0]
	for i := 1; i < len(masters); i++ {
		r := &masters[i]
		sum.Hash = sum.Hash*0x9e3779b97f4a7c15 ^ r.Hash
		sum.Ops += r.Ops
		sum.Simulated = max(sum.Simulated, r.Simulated)
		sum.Tally.Add(&r.Tally)
	}
	return sum
}
