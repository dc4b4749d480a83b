package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// OldClients is what a namespace's record needs to know of the clients of the old scheme.
type OldClients struct {
	Dialect      string
	Shortest     time.Duration // lease
	ClockLag     time.Duration // how far a clock is behind the server's
	CommandDelay time.Duration // from a client's reading of an expiry to its next command
	Yield        time.Duration // longer than the pause between two looks of a client; 0: none was seen to wait
	Longest      time.Duration // silence: a lease, a hold, or a pause between two turns
	Why          []string      // a line for each figure: who it comes from, and which margin it has
}

// The margins. A window shows what happened in it, so what was measured is not the worst that can happen.
const (
	leaseMargin = 0.1                    // off the shortest lease
	lagMargin   = 500 * time.Millisecond // added to the largest lag
	leastLag    = time.Second
	delayMargin = 2 // times the longest pause
	leastDelay  = 250 * time.Millisecond

	yieldMargin  = 6.0 / 5          // times the longest pause between two looks
	longestYield = 20 * time.Second // that the bridge takes
)

// Between are the shortest and the longest lease that the window allows, in ms; both are 0 where it is not known.
func (u Lease) Between() (low, high float64) {
	return cmp.Or(u.LeaseLeastMS, u.LeaseMS), max(u.LeaseMostMS, u.LeaseMS)
}

// Old are the clients of the old scheme; none where p is nil.
func (p *Profile) Old() []Client {
	if p == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.Clients), func(c Client) bool { return c.Kind != "legacy" })
}

// OldClients reads these figures off a profile. The error names every figure that the profile does not show; what it does
// show is returned beside it.
func (p Profile) OldClients() (OldClients, error) {
	old := p.Old()
	missing := slices.Clone(p.NotSeen)
	if len(old) == 0 {
		return OldClients{}, fmt.Errorf("the profile has no client of the old scheme: in %.0f s nobody sent SETNX with an expiry", p.Window.Seconds)
	}
	var o OldClients
	speakers := map[string]string{}
	for _, c := range old {
		speakers[c.Dialect] = c.Name
	}
	unsure := slices.IndexFunc(old, func(c Client) bool { return c.Or != "" })
	switch {
	case unsure >= 0:
		c := old[unsure]
		missing = append(missing, fmt.Sprintf("the dialect of %s: %s or %s (%s); give --dialect", c.Name, c.Dialect, c.Or, c.Doubt))
	case len(speakers) == 1 && old[0].Dialect != "":
		o.Dialect = old[0].Dialect
		who := fmt.Sprintf("all %d old clients speak it", len(old))
		if len(old) == 1 {
			who = "the one old client speaks it"
		}
		o.Why = append(o.Why, fmt.Sprintf("dialect %s: %s", o.Dialect, who))
	default:
		var each []string
		for dialect, name := range speakers {
			each = append(each, fmt.Sprintf("%s (%s)", cmp.Or(dialect, "one that is not known"), name))
		}
		slices.Sort(each)
		missing = append(missing, "one dialect: they speak "+strings.Join(each, ", "))
	}

	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	lag := func(c Client) float64 { // with the longest lease the clock is the farthest behind
		longer := 0.0
		for _, u := range c.Uses {
			if _, high := u.Between(); !u.LeaseVaries {
				longer = max(longer, high-u.LeaseMS)
			}
		}
		return -c.SkewMS + c.SkewErrorMS + longer
	}
	most := func(figure func(Client) float64) Client {
		return slices.MaxFunc(old, func(a, b Client) int { return cmp.Compare(figure(a), figure(b)) })
	}
	slow, late := most(lag), most(func(c Client) float64 { return c.Pause.Most() })
	idle := most(func(c Client) float64 { return c.PollMS })
	var long, short struct {
		ms        float64
		what, who string
	}
	for _, c := range old {
		known := false
		for _, u := range c.Uses {
			_, lease := u.Between()
			for i, ms := range []float64{lease, u.Hold.Most(), u.Think.Most()} {
				if ms > long.ms {
					long.ms, long.what, long.who = ms, []string{"lease", "hold", "pause between two turns"}[i], c.Name
				}
			}
			switch {
			case u.LeaseMS <= 0:
				continue
			case u.LeaseDoubt != "":
				missing = append(missing, fmt.Sprintf("the lease of %s: %v (%s); observe --lease gives it where all have one lease", c.Name, ms(u.LeaseMS), u.LeaseDoubt))
			}
			known = true
			if low, high := u.Between(); short.ms == 0 || low < short.ms {
				short.ms, short.who, short.what = low, c.Name, ""
				switch {
				case u.LeaseVaries:
					short.what = fmt.Sprintf(", whose leases vary from %v to %v", ms(low), ms(high))
				case low < high:
					short.what = fmt.Sprintf(", whose lease lies between %v and %v", ms(low), ms(high))
				}
			}
		}
		switch {
		case !known:
			missing = append(missing, "the lease of "+c.Name)
		case !c.SkewKnown:
			missing = append(missing, "the clock of "+c.Name)
		}
	}
	o.Shortest = ms(short.ms * (1 - leaseMargin)).Truncate(100 * time.Millisecond)
	o.Why = append(o.Why, fmt.Sprintf("shortest lease %v: %v of %s%s, less %.0f %%", o.Shortest, ms(short.ms).Round(time.Millisecond), short.who, short.what, 100*leaseMargin))
	o.ClockLag = max(leastLag, up(ms(lag(slow))+lagMargin, 100*time.Millisecond))
	o.Why = append(o.Why, fmt.Sprintf("clock lag %v: %s is at most %v behind, and %v more; at least %v", o.ClockLag, slow.Name, max(0, ms(lag(slow))).Round(time.Millisecond), lagMargin, leastLag))
	o.CommandDelay = max(leastDelay, up(delayMargin*ms(late.Pause.Most()), 50*time.Millisecond))
	if late.Pause.N > 0 {
		o.Why = append(o.Why, fmt.Sprintf("command delay %v: %d times the longest pause, %v of %s; at least %v", o.CommandDelay, delayMargin, ms(late.Pause.Most()).Round(time.Millisecond), late.Name, leastDelay))
	} else {
		o.Why = append(o.Why, fmt.Sprintf("command delay %v: no takeover was seen, so this is the default", o.CommandDelay))
	}
	if idle.PollMS > 0 {
		o.Yield = min(up(ms(yieldMargin*idle.PollMS), 10*time.Millisecond), longestYield)
		o.Why = append(o.Why, fmt.Sprintf("yield %v: %s looks at a held key each %v", o.Yield, idle.Name, ms(idle.PollMS).Round(time.Millisecond)))
	}
	o.Longest = up(ms(long.ms), time.Second)
	o.Why = append(o.Why, fmt.Sprintf("longest silence at least %v: the longest %s, %v of %s; a job that runs more rarely was not seen, so the record takes only --longest-silence", o.Longest, long.what, ms(long.ms).Round(time.Millisecond), long.who))
	if len(missing) > 0 {
		return o, fmt.Errorf("the profile of %.0f s does not show %s", p.Window.Seconds, strings.Join(missing, "; "))
	}
	return o, nil
}

// up rounds up to whole steps.
func up(d, step time.Duration) time.Duration { return (d + step - 1).Truncate(step) }
