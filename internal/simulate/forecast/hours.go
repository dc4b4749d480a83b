package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// level is hours of the day in which the clients of a family are about equally busy.
type level struct {
	hours    []int
	seconds  float64         // that these hours were watched
	acquired map[int]float64 // by client
}

func (l *level) rate(client int) float64 { return l.acquired[client] / l.seconds }

// mostLevels bounds the times of day that are simulated apart.
const mostLevels = 6

// levels sorts the hours that were watched: those come together in which no client's rate differs by more than a quarter, or
// than chance makes it differ. A profile that does not have the counts of the hours has one level.
func levels(p *profile.Profile, family string) (all []*level) {
	for hour, seconds := range p.HourSeconds() {
		if seconds <= 0 {
			continue
		}
		l := &level{hours: []int{hour}, seconds: seconds, acquired: map[int]float64{}}
		for i := range p.Clients {
			if n := p.Clients[i].Use(family).ByHour[hour]; n > 0 {
				l.acquired[i] = float64(n)
			}
		}
		if i := slices.IndexFunc(all, func(o *level) bool { return o.alike(l, len(p.Clients)) }); i >= 0 {
			all[i].take(l)
		} else {
			all = append(all, l)
		}
	}
	for len(all) > mostLevels { // those come together that are the nearest
		slices.SortFunc(all, func(a, b *level) int { return int(math.Copysign(1, a.total()-b.total())) })
		nearest := 0
		for i := range len(all) - 1 {
			if all[i+1].total()-all[i].total() < all[nearest+1].total()-all[nearest].total() {
				nearest = i
			}
		}
		all[nearest].take(all[nearest+1])
		all = slices.Delete(all, nearest+1, nearest+2)
	}
	return all
}

func (l *level) total() float64 {
	n := 0.0
	for _, x := range l.acquired {
		n += x
	}
	return n / l.seconds
}

func (l *level) alike(o *level, clients int) bool {
	for c := range clients {
		a, b := l.rate(c), o.rate(c)
		chance := math.Sqrt((l.acquired[c]+0.5)/(l.seconds*l.seconds) + (o.acquired[c]+0.5)/(o.seconds*o.seconds))
		if math.Abs(a-b) > max(0.25*max(a, b), 3*chance) {
			return false
		}
	}
	return true
}

func (l *level) take(o *level) {
	l.hours, l.seconds = append(l.hours, o.hours...), l.seconds+o.seconds
	for c, n := range o.acquired {
		l.acquired[c] += n
	}
}

// byHour makes a group for each level of the day. Its clients acquire as often as they did in those hours.
func (g *group) byHour(p *profile.Profile) []group {
	all := levels(p, g.family)
	if len(all) < 2 {
		return []group{*g}
	}
	watched := 0
	for _, l := range all {
		watched += len(l.hours)
	}
	var made []group
	for _, l := range all {
		one := *g
		one.hours, one.share, one.actors = l.hours, float64(len(l.hours))/float64(watched), nil
		for _, a := range g.actors {
			if len(p.Clients[a.client].Use(g.family).ByHour) > 0 { // else it is as busy at all times
				times := l.rate(a.client) / (float64(a.acquired) / p.Seconds())
				a.perSecond, a.shared = a.perSecond*times, a.shared*times
			}
			if a.perSecond > 0 {
				one.actors = append(one.actors, a)
			}
		}
		if len(one.actors) > 1 {
			one.settle()
			made = append(made, one)
		}
	}
	return made
}

// settle finds the pauses between turns with which the clients acquire as often as they did: how long they wait for each other
// in these hours is not in the profile.
func (g *group) settle() {
	total := 0.0
	for i := range g.actors {
		a := &g.actors[i]
		a.pause = max(1000/a.perSecond-a.turn, 1)
		// Most pauses that were measured are those of busy hours. What they look like in idle hours is not in the profile.
		if usual := a.think.Mean(); a.pause > 2*usual || a.pause < usual/2 {
			a.think = profile.Spread{}
		}
		total += a.perSecond
	}
	turnsInAll := min(eachSettles*float64(len(g.actors)), allSettle)
	length := time.Duration(min(turnsInAll/total, 1e7) * float64(time.Second))
	w := &sim.World{NoCommands: true}
	for round := range settleRounds {
		d := g.draw(rand.New(rand.NewPCG(1, uint64(round))), 0, 0.5)
		turns := make([]float64, len(g.actors))
		w.Trace = func(r *sim.Record) {
			if r.Kind == sim.Enters {
				turns[r.Client]++
			}
		}
		w.Run(d.fleet(-1, length), uint64(round))
		for i := range g.actors {
			a := &g.actors[i]
			took := length.Seconds() * 1000 / max(turns[i], 0.5)
			a.pause = max(a.pause+0.7*(1000/a.perSecond-took), 1)
		}
	}
}

// Each of the rounds runs so many turns of a client, and not more of all.
const (
	settleRounds = 6
	eachSettles  = 1000
	allSettle    = 50_000
)

// times puts the double holds of the hours together, those of neighbours that are alike as one.
func times(byHour map[int]float64) (all []Share) {
	first := 0
	for hour := range 24 {
		x, watched := byHour[hour]
		if before, was := byHour[hour-1]; !was || x != before {
			first = hour
		}
		if next, goesOn := byHour[hour+1]; watched && (!goesOn || x != next) {
			all = append(all, Share{fmt.Sprintf("%02d:00 to %02d:00 UTC", first, hour+1), x * float64(hour+1-first)})
		}
	}
	return all
}
