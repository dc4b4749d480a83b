package forecast

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Failovers are how often a replica takes the place of a master, as sentinels or a cluster have it. Each master fails by itself.
type Failovers struct {
	Every  time.Duration `json:"every_ns"`  // between two failovers of one master, on the average; 0: none are forecast
	Outage time.Duration `json:"outage_ns"` // for half to one and a half of it nobody answers
	Behind time.Duration `json:"behind_ns"` // the replica is behind by 0 to this; what it lacks is lost

	// Remembered takes Every from the profile, where its masters remember failovers. A few make it uncertain, which the interval has.
	Remembered bool `json:"remembered"`
	// From says where Every is known from. Make writes it.
	From string `json:"from,omitempty"`
}

// Least is the shortest time between two failovers of one master: the one before is over by then.
func (f *Failovers) Least() time.Duration { return 2 * (2*f.Outage + f.Behind) }

// failoversOf takes what the profile says of failovers into the options, and says what is not in the numbers.
func (o *Options) failoversOf(f *fleet) {
	seen := f.profile.Failovers
	remember := ""
	if seen != nil {
		remember = fmt.Sprintf("the masters remember %d in %s", seen.Seen, Hours(seen.Seconds/3600))
	}
	given := &o.Failovers
	switch every := seen.Every(); {
	case given.Remembered && every > given.Least():
		given.Every, given.From = every, remember
		return
	case given.Every > 0:
		given.Remembered, given.From = false, "--failovers says so"
		if every > 0 {
			given.From += ", and " + remember
		}
		return
	case every > 0 && given.Remembered:
		remember += fmt.Sprintf(", which is too often for an outage of %v", given.Outage)
	}
	given.Remembered = false
	if remember != "" {
		remember += "; "
	}
	f.doubt("failovers of the servers are not in the numbers: %s--failovers says how often they come", remember)
}

// Lost is what failovers bring.
type Lost struct {
	Count Interval `json:"double_holds"` // in the span
	Each  float64  `json:"each_failover"`
	// Told are those of the mean whose first holder hears of its loss before it is through, and stops. Untold are the others: the old
	// code never hears of it, behind a sidecar neither.
	Told   float64 `json:"told"`
	Untold float64 `json:"untold"`
}

// clientTimeout is for how long a client waits for an answer that does not come, as a Jedis does without other options.
const clientTimeout = 2 * time.Second

// overthrown says what one failover of its master does to a group: the rates are double holds a failover.
//
// A double hold needs a lock that the replica does not have, so a failover that comes when nothing was written for as long as the
// replica is behind does no harm. Most are such. So each run is made twice with one seed. The first finds when the lock was written.
// In the second a failover comes just after one of these writes, chosen at random. The weight of a run is the chance that a failover
// comes so, parted among the writes that it loses.
func (o *Options) overthrown(g *group, number uint64) (out outcome) {
	least := o.failover(new(sim.World), g, rand.New(rand.NewPCG(o.Seed, number<<40)), 0.5)
	times := min(max(int(float64(o.Commands)/float64(o.Draws)/max(float64(least.Ops), 1)), episodes), 20*episodes)
	out.gather(g, parallel(o.Draws, func(w *sim.World, n int) oneDraw {
		return conditioned(times, rand.New(rand.NewPCG(o.Seed, number<<40|uint64(n+1)<<8)), func(r *rand.Rand) []weighed {
			return []weighed{o.failover(w, g, r, shareOf(n))}
		})
	}), times)
	return out
}

// failover makes the two runs of one failover.
func (o *Options) failover(w *sim.World, g *group, r *rand.Rand, lease float64) weighed {
	d := g.draw(r, time.Duration(r.Float64()*float64(o.Span)), lease)
	behind := time.Duration(r.Float64() * float64(o.Failovers.Behind))
	outage := time.Duration((0.5 + r.Float64()) * float64(o.Failovers.Outage))
	longest, perSecond := time.Duration(0), 0.0
	for i := range d.members {
		m := &d.members[i]
		longest = max(longest, millis(m.hold.at(1e-3)), m.member.Lease)
		perSecond += m.perSecond
	}
	begin := 2 * longest
	window := longest + time.Duration(turnsWatched/perSecond*float64(time.Second))
	f := d.fleet(-1, begin+window+behind)
	f.Network.Timeout = clientTimeout
	for i := range f.Clients { // some are in the middle of a pause, as at any moment
		f.Clients[i].First = sim.Uniform(0, millis(1000/d.members[i].perSecond))
	}
	seed := r.Uint64()
	writes, watched := writesOf(w, f, seed)
	from, _ := slices.BinarySearch(writes, protocol.Instant(begin))
	to, _ := slices.BinarySearch(writes, protocol.Instant(begin+window))
	if from == to {
		return weighed{Result: sim.Result{Simulated: watched.Simulated, Ops: watched.Ops}}
	}
	at := writes[from+r.IntN(to-from)].Add(time.Duration(r.Float64() * float64(behind)))
	first, _ := slices.BinarySearch(writes, at.Add(-behind))
	last, _ := slices.BinarySearch(writes, at+1)
	f.Faults = []sim.Fault{{At: at, Kind: sim.Outage, Client: -1, By: outage}, {At: at.Add(outage), Kind: sim.Failover, Client: -1, By: outage + behind}}
	f.Until = time.Duration(at) + outage + 12*longest
	chance := float64(to-from) / window.Seconds() * behind.Seconds() / float64(max(last-first, 1))
	found := play(w, f, seed, chance)
	found.Ops += watched.Ops
	return onlyFailovers(found)
}

// turnsWatched is among how many turns of a group the write is chosen, about.
const turnsWatched = 10

// writesOf are the times at which a lock's value, or its TTL, was written in a run.
func writesOf(w *sim.World, f *sim.Fleet, seed uint64) (writes []protocol.Instant, result sim.Result) {
	before := map[string]model.Entry{}
	w.Trace = func(r *sim.Record) {
		if r.Kind != sim.Executes {
			return
		}
		is, was := r.Key, before[r.Command.Key]
		if r.Key.Key != "" && (is.Value != was.Value || is.ExpireMS != was.ExpireMS || is.Writer != was.Writer) {
			writes = append(writes, r.At)
		}
		before[r.Command.Key] = is
	}
	result = w.Run(f, seed)
	return writes, result
}

// onlyFailovers leaves out the overlaps of other causes.
func onlyFailovers(w weighed) weighed {
	n, told := w.Causes[sim.FailedOver], w.Told[sim.FailedOver]
	w.Tally, w.clients = sim.Tally{Overlaps: n}, nil
	w.Causes[sim.FailedOver], w.Told[sim.FailedOver] = n, told
	return w
}

// losses says what failovers do to all groups, and adds it to the stage.
func (o *Options) losses(groups []group, number uint64, all *sums) *Lost {
	r := rand.New(rand.NewPCG(o.Seed, ^number))
	times := o.Span.Seconds() / o.Failovers.Every.Seconds() // of one master
	lost := &Lost{}
	each := o.counts() // double holds where every master fails once
	for i := range groups {
		g := &groups[i]
		made := o.overthrown(g, 1<<20|number<<12|uint64(i))
		keys := g.times
		each.expect(&made, keys, r)
		all.add(g, &made, keys*times)
		lost.Told += made.told * keys * times
		lost.Count.Mean += sum(made.causes[:]) * keys * times
	}
	masters := float64(all.fleet.masters)
	lost.Each, lost.Untold = lost.Count.Mean/times/masters, max(lost.Count.Mean-lost.Told, 0)
	found := o.counts()
	for n := range each { // all keys of a master lose at once
		often := times
		if o.Failovers.Remembered {
			seen := float64(all.fleet.profile.Failovers.Seen)
			often *= gamma(seen, r) / seen
		}
		found[n].mean, found[n].variance = often*each[n].mean, often*(each[n].variance+each[n].mean*each[n].mean/masters)
		all.counts[n].mean += found[n].mean
		all.counts[n].variance += found[n].variance
	}
	made := found.predict(0.9, r)
	lost.Count.Low, lost.Count.High = made.Low, made.High
	return lost
}
