package forecast

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// rate is what one draw of a group's figures came to, for one key.
type rate struct {
	perSecond float64 // double holds
	noise     float64 // variance of perSecond that comes from running for so long only
}

// outcome is what the runs of one group came to.
type outcome struct {
	rates  []rate  // one for each draw
	spread float64 // variance of the count over its mean: double holds come in chains
	// causes, told and clients are double holds a second on one key, on the average of the draws.
	causes  [sim.Causes]float64
	told    float64
	clients map[int]float64 // by number in the profile
	// events is how many independent double holds were seen in all runs: few leave the mean itself uncertain. One event would have
	// counted each double holds a second. Both are 0 where nothing can happen.
	events, each float64
	// rare: the draws were conditioned on a hold that outlasts its edge.
	rare bool
	runs time.Duration // of the fleet's time
}

// blocks is how often a draw is run: from the difference between the blocks follows how much is chance.
const blocks = 2

// partsOfSpan is at how many times of the span a draw is run where a clock drifts: it gets worse, or better, over the span.
const partsOfSpan = 4

// rareShare is how much of the time may lie near a risky hold before conditioning on one hold at a time stops being right.
const rareShare = 0.02

// ahead is the time from now on at a share of the span.
func (o *Options) ahead(share float64) time.Duration { return time.Duration(share * float64(o.Span)) }

// try runs a group for all draws, with the clocks as they are at the times that when has for the shares from 0 to 1.
func (o *Options) try(g *group, number uint64, when func(share float64) time.Duration) outcome {
	out := outcome{rare: true}
	generator := func(draw, n int) *rand.Rand {
		return rand.New(rand.NewPCG(o.Seed, number<<40|uint64(draw)<<8|uint64(n)))
	}
	near := 0.0 // the share of the time that is near a risky hold
	old := 0
	for n := range o.Draws {
		d := g.draw(generator(n, 0), when((float64(n)+0.5)/float64(o.Draws)), shareOf(n))
		for i := range d.members {
			m := &d.members[i]
			near += m.perSecond * d.risky(i) * (3*m.lease/1000 + m.hold.mean()/1000) / float64(o.Draws)
			if m.crashed > 0 {
				near = 1
			}
		}
	}
	tokens := true // nobody writes an expiry
	for i := range g.actors {
		if g.actors[i].member.Scheme == model.Legacy {
			old++
		}
		tokens = tokens && !g.actors[i].member.Scheme.Old()
	}
	if near < rareShare && old > 0 {
		out.gather(g, parallel(o.Draws, func(w *sim.World, n int) oneDraw {
			return conditioned(episodes, generator(n, 2), func(r *rand.Rand) []weighed { return o.riskyHold(w, g, r, when, shareOf(n)) })
		}), episodes)
		return out
	}
	out.rare = false
	parts := 1
	if g.drifts() {
		parts = partsOfSpan
	}
	draws, length := o.Draws, time.Duration(parts)*g.least()
	if tokens { // as far as we know nothing can happen: a few runs look whether that is so
		draws /= 5
	} else {
		length = o.length(g, generator(0, 1), parts)
	}
	all := parallel(draws, func(w *sim.World, n int) (one oneDraw) {
		r := generator(n, 2)
		one.counts = make([]float64, blocks)
		for part := range parts {
			// The parts lie evenly over the span, so that drifts are as they will be.
			after := when((float64(part) + r.Float64()) / float64(parts))
			for b := range blocks {
				d := g.draw(generator(n, 3), after, shareOf(n))
				found := play(w, d.fleet(-1, length/time.Duration(parts)), r.Uint64(), 1/(blocks*length.Seconds()))
				one.found = append(one.found, found)
				one.counts[b] += float64(found.Overlaps)
			}
		}
		return one
	})
	out.gather(g, all, blocks)
	for len(out.rates) < o.Draws { // those that were made stand for the others
		all, out.rates = append(all, all[len(all)-draws]), append(out.rates, out.rates[len(all)-draws])
	}
	mean, chance := 0.0, 0.0
	for n := range all {
		a, b := all[n].counts[0], all[n].counts[1]
		mean += (a + b) / 2
		chance += (a - b) * (a - b) / 2
		out.rates[n].perSecond = (a + b) / (blocks * length.Seconds())
	}
	out.spread, out.events, out.each = 1, 0, 0
	if mean > 0 {
		out.spread = max(chance/mean, 1)
	}
	if old > 0 {
		out.events, out.each = 2*mean/out.spread, 1/(blocks*length.Seconds()*float64(o.Draws))
		for n := range out.rates {
			out.rates[n].noise = chance / float64(o.Draws) / blocks / (length.Seconds() * length.Seconds())
		}
	}
	return out
}

// oneDraw is what the runs of one draw came to.
type oneDraw struct {
	rate
	found  []weighed
	counts []float64
}

// gather adds up what the runs of all draws came to: each made so many episodes. The weights of a draw's runs make a rate.
func (out *outcome) gather(g *group, all []oneDraw, times int) {
	out.rates, out.clients = make([]rate, len(all)), map[int]float64{}
	mean, chance, sum, squares := 0.0, 0.0, 0.0, 0.0
	for n := range all {
		for _, f := range all[n].found {
			weight := f.weight / float64(len(all))
			for c := range f.Causes {
				out.causes[c] += float64(f.Causes[c]) * weight
				out.told += float64(f.Told[c]) * weight
			}
			for i, x := range f.clients {
				out.clients[g.actors[i].client] += float64(x) * weight
			}
			x := f.weight * float64(f.Overlaps)
			sum, squares = sum+x, squares+x*x
			out.each += weight
			out.runs += f.Simulated
		}
		out.rates[n] = all[n].rate
		for _, c := range all[n].counts { // clusters: the mean of the squares over the mean
			mean, chance = mean+c, chance+c*c
		}
	}
	out.spread = 1
	if mean > 0 {
		out.spread = max(chance/mean, 1)
	}
	if out.each /= float64(times * len(all)); squares > 0 {
		out.events = sum * sum / squares
	}
}

// likely are the rates of the draws, as uncertain as the events that were seen leave them.
func (out *outcome) likely(r *rand.Rand) []float64 {
	rates := shrunk(out.rates)
	for n := range rates {
		switch {
		case out.events > 0: // the mean of so many events is this uncertain
			rates[n] *= gamma(out.events+0.5, r) / (out.events + 0.5)
		case out.each > 0: // none was seen in these runs, which does not say never
			rates[n] = out.each * gamma(0.5, r)
		}
	}
	return rates
}

// weighed is what a run found, and how much it counts in double holds a second.
type weighed struct {
	sim.Result
	clients []int // overlaps by number of the client to blame
	weight  float64
}

// episodes is how many runs with one risky hold are made for each member and draw.
const episodes = 6

// conditioned makes episodes of runs, each with one event that is rare. The weight of a run is how often its event happens.
func conditioned(times int, r *rand.Rand, episode func(*rand.Rand) []weighed) (one oneDraw) {
	for range times {
		for _, f := range episode(r) {
			f.weight /= float64(times)
			x := f.weight * float64(f.Overlaps)
			one.perSecond += x
			one.noise += x * x
			one.found = append(one.found, f)
			one.counts = append(one.counts, float64(f.Overlaps))
		}
	}
	return one
}

// riskyHold makes a run for each member, in which one hold of it outlasts its edge.
func (o *Options) riskyHold(w *sim.World, g *group, r *rand.Rand, when func(float64) time.Duration, lease float64) (all []weighed) {
	d := g.draw(r, when(r.Float64()), lease)
	for i := range d.members {
		m := &d.members[i]
		often := m.perSecond * d.risky(i)
		if often == 0 {
			continue
		}
		longest := time.Duration(0)
		for j := range d.members {
			longest = max(longest, millis(d.members[j].hold.at(1e-3)), millis(d.members[j].lease), millis(1000/d.members[j].perSecond/4))
		}
		until := 3*longest + 4*millis(m.lease) + 3*millis(m.hold.above(d.edge(i)).Max().Seconds()*1000)
		all = append(all, play(w, d.fleet(i, until), r.Uint64(), often))
	}
	return all
}

// play runs a fleet once.
func play(w *sim.World, f *sim.Fleet, seed uint64, weight float64) weighed {
	w.Trace = nil
	return weighed{w.Run(f, seed), slices.Clone(w.Blamed), weight}
}

// least is for how long a block of a group runs at least.
func (g *group) least() time.Duration {
	least := 10 * time.Minute
	for _, a := range g.actors {
		least = max(least, 20*a.member.Lease)
	}
	return least
}

// length is how long the parts of a block run together, so that all draws take about Commands commands. Each is long beside a chain
// of double holds: what one block has must not hang on the block before.
func (o *Options) length(g *group, r *rand.Rand, parts int) time.Duration {
	least := g.least()
	d := g.draw(r, 0, 0.5)
	perSecond := max(float64(play(new(sim.World), d.fleet(-1, least), 1, 1).Ops)/least.Seconds(), 1e-3)
	seconds := float64(o.Commands) / perSecond / float64(o.Draws) / blocks
	return min(max(time.Duration(seconds*float64(time.Second)), time.Duration(parts)*least), 1000*time.Hour)
}

// parallel runs f for each number below n, on all cores. Each result is a function of its number.
func parallel(n int, f func(w *sim.World, i int) oneDraw) []oneDraw {
	results := make([]oneDraw, n)
	sim.Each(context.Background(), n, func(w *sim.World, i int) { results[i] = f(w, i) })
	return results
}
