package main

import (
	"runtime"
	"slices"
	"syscall"
	"time"
)

// meter measures what a stretch of work costs this process and the server.
type meter struct {
	start   time.Time
	cpu     time.Duration
	mallocs uint64
	server  usage
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// fromSystem is the memory that the Go runtime has of the system: stacks, heap and its own.
func fromSystem() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Sys)
}

func (w *worker) begin() (meter, error) {
	u, err := info(w.admin)
	return meter{server: u, mallocs: mallocs(), cpu: cpuTime(), start: time.Now()}, err
}

func (w *worker) end(m meter, ops int) (Result, error) {
	r := Result{Ops: ops, Took: time.Since(m.start), CPU: cpuTime() - m.cpu}
	r.Mallocs = float64(mallocs()-m.mallocs) / float64(max(ops, 1))
	u, err := info(w.admin)
	spent := u.since(m.server)
	r.Server, r.Reads, r.Clients = spent.cpu, spent.reads, spent.clients-2 // without the measurement's own two
	return r, err
}

// warmUp is how long a process works before each slice of its measurement: others had the caches since.
const warmUp = 5 * time.Millisecond

// inSlices measures work as the sum of short slices, between which the other contestants have theirs: what
// the machine does besides, which lasts longer than a slice, then hits all of them alike.
func (w *worker) inSlices(work func(end time.Time) (int, error)) (Result, error) {
	runtime.GC()
	all, mallocs := Result{}, 0.0
	for range w.spec.Slices {
		if err := w.ready(); err != nil {
			return Result{}, err
		}
		if _, err := work(time.Now().Add(warmUp)); err != nil {
			return Result{}, err
		}
		m, err := w.begin()
		if err != nil {
			return Result{}, err
		}
		ops, err := work(m.start.Add(w.spec.For / time.Duration(w.spec.Slices)))
		if err != nil {
			return Result{}, err
		}
		r, err := w.end(m, ops)
		if err != nil {
			return Result{}, err
		}
		if len(w.waits) > 0 {
			r.Wait99 = quantile(w.waits, 0.99)
		}
		mallocs += r.Mallocs * float64(ops)
		all.addSlice(r)
	}
	all.Mallocs = mallocs / float64(max(all.Ops, 1))
	return all, nil
}

// addSlice adds what the same process found later.
func (r *Result) addSlice(next Result) {
	r.Ops += next.Ops
	r.Took += next.Took
	r.CPU += next.CPU
	r.Server += next.Server
	r.Reads += next.Reads
	r.Clients = next.Clients
	r.Slices = append(r.Slices, next)
}

// ratio is the median over the slices of two contestants that had their turns one after the other. It
// holds still where the ratio of their sums does not: a slice in which the machine was busy elsewhere
// counts for one, however long it took.
func ratio(of func(Sample) float64, s, base Sample) float64 {
	if len(s.Slices) == 0 || len(s.Slices) != len(base.Slices) {
		return of(s) / of(base)
	}
	var all []float64
	for i := range s.Slices {
		all = append(all, of(Sample{Result: s.Slices[i]})/of(Sample{Result: base.Slices[i]}))
	}
	slices.Sort(all)
	return median(all)
}

// measureSlices lets all contestants of a scenario work in turns on one server, each in a process of its own.
func measureSlices(s *server, spec Spec, field []contestant, prefix string) (map[string]Sample, error) {
	samples := map[string]Sample{}
	procs := map[string]*process{}
	defer func() {
		for _, p := range procs {
			p.end()
		}
	}()
	if _, err := s.conn.Do("FLUSHALL"); err != nil {
		return nil, err
	}
	for _, c := range field {
		path, err := newBoard()
		if err != nil {
			return nil, err
		}
		defer removeBoard(path)
		spec.Contestant, spec.Addr, spec.Key, spec.Shared = c.name, s.addr, prefix+c.name, path
		p, err := startProcess(spec)
		if err != nil {
			return nil, err
		}
		procs[c.name] = p
	}
	for slice := range spec.Slices + 1 {
		for i := range field {
			name := field[(i+slice)%len(field)].name
			p := procs[name]
			if _, over := samples[name]; over {
				continue
			}
			if slice > 0 {
				p.word()
			}
			if slice < spec.Slices {
				if err := p.awaitReady(); err != nil {
					sample, err := failed(err)
					if err != nil {
						return nil, err
					}
					samples[name] = sample
				}
				continue
			}
			r, err := p.result()
			if err != nil {
				return nil, err
			}
			samples[name] = Sample{Result: r}
		}
	}
	return samples, nil
}
