package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Planned runs a fleet and returns the same run as a plan that draws nothing. Its length stays: with
// Stop, a run is over at its first overlap anyway, and a shrunk one may break later than the first.
// A fleet that has a plan draws nothing, so there is nothing to record.
func Planned(w *World, fleet *Fleet, seed uint64) (*Fleet, Result) {
	if fleet.Plan != nil {
		return clone(fleet), w.Run(fleet, seed)
	}
	var plan Plan
	w.Recorded = &plan
	result := w.Run(fleet, seed)
	w.Recorded = nil
	planned := clone(fleet)
	planned.Plan = &plan
	planned.Faults = slices.Clone(w.RecordedFaults)
	if len(planned.Faults) == 0 {
		planned.Faults = nil
	}
	for i := range planned.Clients {
		planned.Clients[i].Chaos = Chaos{}
	}
	return planned, result
}

// Shrink cuts a run with an overlap down to a smallest one that still has some: the fewest clients, then the fewest events, then the
// smallest skew; a clock's change by step counts. The fleet must have a plan, see Planned.
func Shrink(w *World, fleet *Fleet, step time.Duration) *Fleet {
	s := &shrinker{w, step}
	best := clone(fleet)
	best.Stop = true
	if !s.pair(&best) {
		s.round(&best)
	}
	for {
		before := WeightOf(best)
		s.clients(&best)
		s.events(&best)
		s.round(&best)
		s.skews(&best)
		s.commands(&best)
		if WeightOf(best) == before {
			return best
		}
	}
}

// Weight is a fleet's size in the order that matters.
type Weight struct {
	Clients, Events int
	Skew            time.Duration
}

// WeightOf weighs a planned fleet.
func WeightOf(f *Fleet) Weight {
	w := Weight{Clients: len(f.Clients), Events: len(f.Plan.Turns) + len(f.Plan.Delays) + len(f.Faults) + len(f.Opening)}
	for i := range f.Clients {
		w.Skew += f.Clients[i].Offset.Abs() + time.Duration(f.Clients[i].DriftPPM)
	}
	for _, fault := range f.Faults {
		w.Skew += fault.By.Abs()
	}
	return w
}

// shrinker tries candidates in a world.
type shrinker struct {
	world *World
	step  time.Duration
}

func (s *shrinker) breaks(f *Fleet) bool { return s.world.Run(f, 0).Overlaps > 0 }

// try replaces best by a changed copy if that still breaks.
func (s *shrinker) try(best **Fleet, change func(*Fleet)) bool {
	candidate := clone(*best)
	change(candidate)
	if !s.breaks(candidate) {
		return false
	}
	*best = candidate
	return true
}

// pair tries the simplest story there is: of two clients one takes the lock, and the other comes.
func (s *shrinker) pair(best **Fleet) bool {
	turns := (*best).Plan.Turns
	for i := range (*best).Clients {
		for j := range (*best).Clients {
			first := slices.IndexFunc(turns, func(t Turn) bool { return t.Client == i })
			second := slices.IndexFunc(turns, func(t Turn) bool { return t.Client == j })
			if i == j || first < 0 || second < 0 {
				continue
			}
			if s.try(best, func(f *Fleet) {
				a, b := turns[first], turns[second]
				a.At, b.At = 0, protocol.Instant(10*time.Millisecond)
				f.Plan = &Plan{Turns: []Turn{a, b}, Latency: time.Millisecond}
				f.Faults, f.Opening = nil, nil
			}) {
				return true
			}
		}
	}
	return false
}

// round drops all delays at once: most runs break without any, and are much easier to read then.
func (s *shrinker) round(best **Fleet) {
	for _, latency := range []time.Duration{time.Millisecond, 200 * time.Microsecond, 0} {
		if s.try(best, func(f *Fleet) { f.Plan.Delays, f.Plan.Latency = nil, latency }) {
			return
		}
	}
}

// clients drops clients one by one, with all that concerns them.
func (s *shrinker) clients(best **Fleet) {
	for i := len((*best).Clients) - 1; i >= 0; i-- {
		if len((*best).Clients) > 1 {
			s.try(best, func(f *Fleet) { dropClient(f, i) })
		}
	}
}

// events drops turns, faults, delays and opening values: in halves, quarters and so on, then one by one.
func (s *shrinker) events(best **Fleet) {
	for changed := true; changed; {
		changed = false
		changed = reduce(s, best, func(f *Fleet) *[]Turn { return &f.Plan.Turns }) || changed
		changed = reduce(s, best, func(f *Fleet) *[]Fault { return &f.Faults }) || changed
		changed = reduce(s, best, func(f *Fleet) *[]Delay { return &f.Plan.Delays }) || changed
		changed = reduce(s, best, func(f *Fleet) *[]model.Entry { return &f.Opening }) || changed
	}
}

// reduce drops parts of a list.
func reduce[T any](s *shrinker, best **Fleet, list func(*Fleet) *[]T) (changed bool) {
	for size := len(*list(*best)); size >= 1; size /= 2 {
		for at := len(*list(*best)) - size; at > -size; at -= size {
			from := max(at, 0)
			to := min(at+size, len(*list(*best)))
			ok := from < to && s.try(best, func(f *Fleet) { l := list(f); *l = slices.Delete(*l, from, to) })
			changed = changed || ok
			at = min(at, len(*list(*best)))
		}
	}
	return changed
}

// skews brings every clock as close to the truth as the break allows, and makes every fault as small.
func (s *shrinker) skews(best **Fleet) {
	for i := range (*best).Clients {
		s.smallest(best, s.step, func(f *Fleet) *time.Duration { return &f.Clients[i].Offset })
		if (*best).Clients[i].DriftPPM != 0 {
			s.try(best, func(f *Fleet) { f.Clients[i].DriftPPM = 0 })
		}
	}
	for i := range (*best).Faults {
		s.smallest(best, s.step, func(f *Fleet) *time.Duration { return &f.Faults[i].By })
	}
}

// smallest moves one duration towards zero: all the way, then by halves, then step by step, so that
// one step less passes.
func (s *shrinker) smallest(best **Fleet, step time.Duration, field func(*Fleet) *time.Duration) {
	now := func() time.Duration { return *field(*best) }
	set := func(d time.Duration) bool {
		return s.try(best, func(f *Fleet) { *field(f) = d })
	}
	if now() == 0 || set(0) {
		return
	}
	if rounded := now() / step * step; rounded != now() && rounded != 0 {
		set(rounded)
	}
	for part := now() / 2 / step * step; part.Abs() >= step; part = part / 2 / step * step {
		for set(now() - part) {
			if now().Abs() <= part.Abs() {
				break
			}
		}
	}
	for toZero := step * time.Duration(cmp.Compare(now(), 0)); now().Abs() > step && set(now()-toZero); {
		continue
	}
}

// commands lets clients come later, so that they knock in vain less often, and the run begin at 0.
func (s *shrinker) commands(best **Fleet) {
	const attempt = 6 // legs of SETNX, GET and GETSET
	for i := range (*best).Plan.Turns {
		r := s.world.Run(*best, 0)
		at := protocol.Instant(r.Simulated).Add(-attempt * (*best).Plan.Latency)
		candidate := clone(*best)
		if candidate.Plan.Turns[i].At >= at {
			continue
		}
		candidate.Plan.Turns[i].At = at
		if again := s.world.Run(candidate, 0); again.Overlaps > 0 && again.Ops < r.Ops {
			*best = candidate
		}
	}
	s.try(best, func(f *Fleet) {
		first := f.Plan.Turns[0].At
		for _, t := range f.Plan.Turns {
			first = min(first, t.At)
		}
		for _, x := range f.Faults {
			first = min(first, x.At)
		}
		for i := range f.Plan.Turns {
			f.Plan.Turns[i].At -= first
		}
		for i := range f.Faults {
			f.Faults[i].At -= first
		}
	})
}

func dropClient(f *Fleet, i int) {
	f.Clients = slices.Delete(f.Clients, i, i+1)
	f.Plan.Turns = without(f.Plan.Turns, i, func(t *Turn) *int { return &t.Client })
	f.Plan.Delays = without(f.Plan.Delays, i, func(d *Delay) *int { return &d.Client })
	f.Faults = without(f.Faults, i, func(x *Fault) *int { return &x.Client })
}

// without are those events that are not of client i; those after it get the number before their own.
func without[T any](events []T, i int, client func(*T) *int) []T {
	events = slices.DeleteFunc(events, func(e T) bool { return *client(&e) == i })
	for at := range events {
		if c := client(&events[at]); *c > i {
			*c--
		}
	}
	return events
}

func clone(f *Fleet) *Fleet {
	c := *f
	c.Clients, c.Faults, c.Opening = slices.Clone(f.Clients), slices.Clone(f.Faults), slices.Clone(f.Opening)
	if f.Plan != nil {
		plan := *f.Plan
		plan.Turns, plan.Delays = slices.Clone(plan.Turns), slices.Clone(plan.Delays)
		c.Plan = &plan
	}
	return &c
}
