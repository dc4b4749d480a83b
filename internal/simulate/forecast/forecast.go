// Package forecast says how often two clients of an observed fleet will hold a lock at once: how many double holds a month
// will have, by whose clock or hold time, and what each stage of a migration changes about it.
//
// # How
//
// Clients meet on keys. The forecast takes the groups of clients that share keys from the profile, and runs the real protocol
// machines for one key of each group in the simulator (package sim). A key that one client uses alone has no double holds.
//
// # What is not certain
//
// A window of two minutes shows a handful of long holds and no more. So the forecast makes many draws of every figure, each
// as far from the measured one as the counts and errors of the profile allow, and runs the fleet for each. The interval holds
// both: how far the draws lie apart, and how far chance moves the count in the span itself. Double holds come in chains, since
// a holder that lost its lock deletes its successor's; chains widen the interval.
//
// # Rare events
//
// A double hold needs a hold that outlasts the edge: the lease less what the clocks are apart. Where such holds are rare, waiting
// for one would take years of simulated time. The forecast then makes runs in which exactly one hold lies beyond the edge, drawn from
// the law of holds there, and multiplies what follows with the frequency of such holds. Where they are frequent it runs the
// fleet as it is. Failovers are rarer still: see overthrown.
package forecast

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// Options of a forecast. The zero value means the defaults.
type Options struct {
	Span     time.Duration // the time from now on that is forecast; 0: a month of 30 days
	Seed     uint64
	Draws    int   // of the figures; 0: 100
	Commands int64 // that the simulator runs for each group and stage; 0: 2 million
	Today    bool  // only the fleet as it is, without the stages
	// Failovers are not in the forecast where their Every is 0.
	Failovers Failovers
	// Progress is called before each of so many stages is run, with those that have their numbers; nil: nobody is told.
	Progress func(made []Stage, next string, of int)
}

// drawsLater is how many draws are made at most for a stage to come.
const drawsLater = 40

// Month is the default span.
const Month = 30 * 24 * time.Hour

func (o *Options) defaults() error {
	switch {
	case o.Span != 0 && o.Span < time.Second || o.Span > 10*365*24*time.Hour:
		return fmt.Errorf("forecast: span %v: write one second to ten years", o.Span)
	case o.Draws != 0 && o.Draws < 20:
		return fmt.Errorf("forecast: %d draws give no interval: 20 at least", o.Draws)
	}
	o.Span, o.Draws, o.Commands = cmp.Or(o.Span, Month), cmp.Or(o.Draws, 100), cmp.Or(o.Commands, 2_000_000)
	return nil
}

// Interval is a number of double holds in the span: its mean, and the interval in which it lies with a chance of 90 %.
type Interval struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Share is what one cause, client or family has of the mean.
type Share struct {
	Name string  `json:"name"`
	Mean float64 `json:"mean"`
}

// Stage is the fleet at one stage of its migration.
type Stage struct {
	Name  string   `json:"name"`
	What  string   `json:"what"`
	Count Interval `json:"double_holds"` // in the span
	// Moves is by how much an end of the interval would move with other draws, about: more draws make it less.
	Moves float64 `json:"moves"`
	// PerHour is the same, an hour.
	PerHour  Interval `json:"per_hour"`
	Causes   []Share  `json:"causes"` // in the span, the largest first
	Clients  []Share  `json:"clients"`
	Families []Share  `json:"families"`
	// Acquisitions are those of shared keys in the span.
	Acquisitions float64 `json:"acquisitions"`
	Hours        float64 `json:"simulated_hours"` // of one key's time
	// Failovers is the part of Count that failovers bring, where these were asked for.
	Failovers *Lost `json:"failovers,omitempty"`

	tried []outcome // of each group
}

// Forecast is what will come.
type Forecast struct {
	SpanHours float64  `json:"span_hours"`
	Seed      uint64   `json:"seed"`
	Draws     int      `json:"draws"`
	Seconds   float64  `json:"observed_seconds"`
	Shared    float64  `json:"shared_keys"`
	Stages    []Stage  `json:"stages"` // the first is the fleet as it is
	Budgets   []Budget `json:"budgets"`
	NotKnown  []string `json:"not_known"`
	// Failovers are those that were asked for.
	Failovers *Failovers `json:"failovers,omitempty"`
	// Check is nil where clients are left out: their double holds are in the recording too.
	Check *Check `json:"check,omitempty"`
	// Incomplete tells that clients are left out, or that a lease is not known, as NotKnown says.
	Incomplete bool `json:"incomplete"`
	// Begun and Ended are when somebody began to watch, and when the last watch was over.
	Begun time.Time `json:"observed_from"`
	Ended time.Time `json:"observed_until"`
}

// Make makes a forecast of the fleet of a profile: as it is, and at each stage. Its errors say what is wrong with the options or the
// profile.
func Make(p profile.Profile, o Options) (*Forecast, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	f, err := fleetOf(p, false)
	if err != nil {
		return nil, fmt.Errorf("forecast: %w", err)
	}
	if watched := time.Duration(p.Window.Seconds * float64(time.Second)); watched < 24*time.Hour && o.Span > time.Hour {
		f.doubt("%v was watched, and is taken for like the rest of the day", watched.Round(time.Second))
	}
	o.failoversOf(f)
	out := &Forecast{SpanHours: o.Span.Hours(), Seed: o.Seed, Draws: o.Draws, Seconds: p.Window.Seconds, NotKnown: append([]string{}, f.notKnown...), Budgets: f.budgets(), Shared: f.shared, Incomplete: f.incomplete}
	out.Begun = p.Window.Start.UTC()
	out.Ended = out.Begun.Add(time.Duration(p.Window.Seconds * float64(time.Second)))
	if o.Failovers.Every > 0 {
		out.Failovers = &o.Failovers
	}
	var worst []Share
	later := o // what the stages change is told by orders of magnitude
	later.Draws = min(o.Draws, drawsLater)
	later.Commands = max(o.Commands*int64(later.Draws)/int64(o.Draws), 1)
	run := stages
	if o.Today {
		run = stages[:1]
	}
	for n, s := range run {
		if o.Progress != nil {
			o.Progress(out.Stages, s.name, len(run))
		}
		groups := s.of(f, worst)
		of := &o
		if n > 0 {
			of = &later
		}
		made := of.stage(f, groups, uint64(n))
		made.Name, made.What = s.name, s.what
		out.Stages = append(out.Stages, made)
		if n == 0 {
			worst = made.Clients
			if !f.leftOut {
				out.Check = o.check(f, groups, made.tried)
			}
		}
	}
	return out, nil
}

// sums add up what the groups of a stage come to.
type sums struct {
	fleet *fleet
	counts
	byCause            [sim.Causes]float64
	byClient, byFamily map[string]float64
}

// add takes in so many times what the runs of a group came to.
func (s *sums) add(g *group, made *outcome, times float64) {
	for c, x := range made.causes {
		s.byCause[c] += times * x
		s.byFamily[g.family] += times * x
	}
	for c, x := range made.clients {
		s.byClient[s.fleet.profile.Clients[c].Name] += times * x
	}
	s.byClient[theServer] += times * made.causes[sim.FailedOver]
}

// theServer is who is to blame for a failover.
const theServer = "(the server)"

// stage runs all groups and adds up what they came to.
func (o *Options) stage(f *fleet, groups []group, number uint64) Stage {
	out := Stage{}
	span := o.Span.Seconds()
	all := &sums{fleet: f, counts: o.counts(), byClient: map[string]float64{}, byFamily: map[string]float64{}}
	r := rand.New(rand.NewPCG(o.Seed, number))
	for i := range groups {
		g := &groups[i]
		made := o.try(g, number<<12|uint64(i), o.ahead)
		out.tried = append(out.tried, made)
		keys := g.times * span
		all.expect(&made, keys, r)
		all.add(g, &made, keys)
		for _, a := range g.actors {
			out.Acquisitions += a.shared * keys
		}
		out.Hours += made.runs.Hours()
	}
	if o.Failovers.Every > 0 {
		out.Failovers = o.losses(groups, number, all)
	}
	out.Count = all.predict(0.9, r)
	out.Count.Mean = sum(all.byCause[:])
	half := o.Draws / 2
	one, other := all.counts[:half].predict(0.9, r), all.counts[half:].predict(0.9, r)
	out.Moves = max(math.Abs(one.Low-other.Low), math.Abs(one.High-other.High)) / 2 // of half as many draws each
	hours := o.Span.Hours()
	out.PerHour = Interval{out.Count.Mean / hours, out.Count.Low / hours, out.Count.High / hours}
	byCause := map[string]float64{}
	for c, x := range all.byCause {
		byCause[sim.Cause(c).String()] = x
	}
	out.Causes, out.Clients, out.Families = ranked(byCause), ranked(all.byClient), ranked(all.byFamily)
	return out
}

// ranked are the shares above 0, the largest first.
func ranked(of map[string]float64) []Share {
	all := []Share{}
	for name, x := range of {
		if x > 0 {
			all = append(all, Share{name, x})
		}
	}
	slices.SortFunc(all, func(a, b Share) int { return cmp.Or(cmp.Compare(b.Mean, a.Mean), cmp.Compare(a.Name, b.Name)) })
	return all
}

func sum(all []float64) (total float64) {
	for _, x := range all {
		total += x
	}
	return total
}

// shrunk takes out of the draws' rates what only comes from running each for so long: they lie farther apart than the
// figures make them.
func shrunk(rates []rate) []float64 {
	mean, noise, squares := 0.0, 0.0, 0.0
	for _, r := range rates {
		mean += r.perSecond / float64(len(rates))
		noise += r.noise / float64(len(rates))
	}
	for _, r := range rates {
		squares += (r.perSecond - mean) * (r.perSecond - mean) / float64(len(rates)-1)
	}
	keep := 0.0
	if squares > 0 {
		keep = math.Sqrt(max(0, 1-noise/squares))
	}
	out := make([]float64, len(rates))
	for n, r := range rates {
		out[n] = mean + keep*(r.perSecond-mean)
	}
	return out
}

// counts are what each draw of the figures expects in the span.
type counts []struct{ mean, variance float64 }

func (o *Options) counts() counts { return make(counts, o.Draws) }

// expect adds so many times what the runs of a group came to.
func (c counts) expect(made *outcome, times float64, r *rand.Rand) {
	for n, rate := range made.likely(r) {
		c[n].mean += times * rate
		c[n].variance += times * rate * made.spread
	}
}

// predict draws counts: for each draw of the figures, some of that mean and variance. The interval is the one in which a count lies with
// that chance.
func (c counts) predict(chance float64, r *rand.Rand) Interval {
	const each = 100
	var drawn []float64
	sum := 0.0
	for _, d := range c {
		sum += d.mean
		for range each {
			drawn = append(drawn, count(d.mean, d.variance, r))
		}
	}
	slices.Sort(drawn)
	at := func(share float64) float64 { return drawn[int(share*float64(len(drawn))+0.5)] }
	return Interval{Mean: sum / float64(len(c)), Low: at((1 - chance) / 2), High: at((1 + chance) / 2)}
}

// count draws from the negative binomial distribution of that mean and variance.
func count(mean, variance float64, r *rand.Rand) float64 {
	if mean <= 0 {
		return 0
	}
	if over := variance - mean; over > 1e-9*mean {
		shape := mean * mean / over
		mean = gamma(shape, r) * mean / shape
	}
	if mean > 1000 {
		return math.Max(0, math.Round(mean+math.Sqrt(mean)*r.NormFloat64()))
	}
	n, left := 0.0, math.Exp(-mean)
	for p := r.Float64(); p > left; p *= r.Float64() {
		n++
	}
	return n
}

// Number writes a number of double holds with two figures where it is small, and whole where it is large.
func Number(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 0.001:
		return "< 0.001"
	case x < 0.1:
		return strconv.FormatFloat(x, 'g', 1, 64)
	case x < 1:
		return strconv.FormatFloat(x, 'g', 2, 64)
	case x < 10 && x != math.Trunc(x):
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	digits := strconv.FormatFloat(math.Round(x), 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Hours writes a span: 90 minutes, 36 hours, 30 days.
func Hours(h float64) string {
	switch {
	case h < 2:
		return fmt.Sprintf("%.0f minutes", 60*h)
	case h <= 72:
		return fmt.Sprintf("%.0f hours", h)
	case h < 3*365*24:
		return fmt.Sprintf("%.0f days", h/24)
	}
	return fmt.Sprintf("%.0f years", h/24/365)
}

// Check compares the model with the windows that it was made from: a forecast of a time that is over.
type Check struct {
	Seconds float64 `json:"seconds"` // that were watched
	// Expected are the double holds that the model has in this time. The interval holds the recorded number with a chance of 99 %:
	// of a hundred fleets that are as the model has them, one is called different.
	Expected Interval `json:"expected"`
	Recorded int64    `json:"recorded"` // by observe
	Agrees   bool     `json:"agrees"`
}

// Words say what was compared.
func (c *Check) Words() string {
	said := fmt.Sprintf("in the %.0f s that were recorded the model expects %s to %s double holds, the recording shows %s",
		c.Seconds, Number(c.Expected.Low), Number(c.Expected.High), Number(float64(c.Recorded)))
	if !c.Agrees {
		said += ": the forecast may be just as wrong"
	}
	return said
}

// check compares what the groups of today's fleet came to with what was recorded. Groups with a clock that drifts run again, with their
// clocks as they were.
func (o *Options) check(f *fleet, groups []group, tried []outcome) *Check {
	const checks = 2 << 20 // beside the numbers of the stages, and of their failovers
	c := &Check{Seconds: f.profile.Window.Seconds}
	r := rand.New(rand.NewPCG(o.Seed, checks))
	all := o.counts()
	for i := range groups {
		g, made := &groups[i], tried[i]
		if g.drifts() {
			made = o.try(g, checks|uint64(i), f.back)
		}
		all.expect(&made, g.times*f.profile.Window.Seconds, r)
	}
	c.Expected = all.predict(0.99, r)
	for _, family := range f.profile.Families {
		for _, n := range family.Overlaps {
			c.Recorded += n
		}
	}
	c.Agrees = float64(c.Recorded) >= c.Expected.Low && float64(c.Recorded) <= c.Expected.High
	return c
}

// back is how long before the end of the window a share of it was over. It is negative.
func (f *fleet) back(share float64) time.Duration {
	return time.Duration((share - 1) * f.profile.Window.Seconds * float64(time.Second))
}
