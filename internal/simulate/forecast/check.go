package forecast

import (
	"fmt"
	"math/rand/v2"
	"time"
)

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
