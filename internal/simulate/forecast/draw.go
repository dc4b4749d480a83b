package forecast

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// drawn is a group whose figures have been drawn from the values that the observation allows.
type drawn struct {
	members []drawnActor
	network sim.Network
}

type drawnActor struct {
	*actor
	hold, think law
	lease       float64 // ms
	offset      float64 // ms
	dies        float64 // chance, each turn
}

// draw draws the figures of a group as they are after some time with their drifts. Lease says where in its bounds the lease lies, from 0
// to 1: all keys of a family have one. Clock and lease are drawn together, since their sum is seen.
func (g *group) draw(r *rand.Rand, after time.Duration, lease float64) *drawn {
	d := &drawn{network: g.network}
	var holds []law
	for _, s := range g.holds {
		holds = append(holds, drawLaw(s, r))
	}
	for i := range g.actors {
		a := &g.actors[i]
		one := drawnActor{actor: a, hold: holds[a.pool], lease: a.leaseIn.at(lease, a.lease)}
		ppm := a.drift + a.driftError*(2*r.Float64()-1)
		one.offset = a.skew + a.lease - one.lease + a.skewError*(2*r.Float64()-1) + ppm*after.Seconds()/1000
		if a.crashed > 0 {
			one.dies = gamma(float64(a.crashed), r) / float64(a.acquired)
		}
		if one.think = drawLaw(a.think, r); len(a.think.Quantiles) == 0 {
			one.think = exponentially(max(1000/a.perSecond-a.turn, 1))
		}
		d.members = append(d.members, one)
	}
	return d
}

// slack is what delays take of an edge, in milliseconds.
const slack = 20

// edge is how long a member may work before another client's clock calls its lease over. A shorter hold can come to no harm as
// long as all others are shorter than theirs: the value on the key is its own, or a loser's with the lowest clock.
func (d *drawn) edge(i int) float64 {
	lowest, highest := math.Inf(1), math.Inf(-1)
	for j := range d.members {
		m := &d.members[j]
		unit := float64(m.member.Dialect.Unit.Resolution()) / float64(time.Millisecond)
		if m.member.Scheme.Old() {
			lowest = min(lowest, m.offset+m.lease-2*unit)
		}
		switch {
		case j == i:
		case m.member.Scheme.Old():
			highest = max(highest, m.offset)
		case m.member.Scheme == model.Bridge && !m.member.Alone: // it reads the server's clock; a token lock takes nothing over
			highest = max(highest, -m.member.Grace.Seconds()*1000)
		}
	}
	return max(lowest-highest-slack, 0)
}

// risky is the chance that a hold of a member outlasts its edge. A member that is told of its loss, and stops, is no risk.
func (d *drawn) risky(i int) float64 {
	m := &d.members[i]
	if m.member.Scheme != model.Legacy {
		return 0
	}
	return m.hold.beyond(d.edge(i))
}

// fleet is the group in the simulator. Where one is a member's number, its first hold outlasts its edge and no other hold
// does.
func (d *drawn) fleet(one int, until time.Duration) *sim.Fleet {
	f := &sim.Fleet{Network: d.network, Until: until}
	for i := range d.members {
		m := &d.members[i]
		c := sim.Client{
			Member: m.withLease(), Keys: m.keys, Offset: millis(m.offset), Hold: m.hold.all(), Think: m.think.all(),
			First: sim.Uniform(0, min(millis(1000/m.perSecond), until/4)), Dies: sim.PPM(m.dies * 1e6),
		}
		c.Chaos.Restart = sim.Uniform(time.Second, 3*time.Second)
		if one >= 0 && m.member.Scheme == model.Legacy {
			edge := d.edge(i)
			c.Hold, c.Dies = m.hold.upTo(edge), 0
			if one == i {
				c.First, c.FirstHold = sim.Uniform(until/4, until/3), m.hold.above(edge)
			}
		}
		f.Clients = append(f.Clients, c)
	}
	return f
}

// withLease is the member with the lease that was drawn.
func (m *drawnActor) withLease() model.Member {
	member := m.member
	if m.leaseIn.high > 0 && m.member.Scheme.Old() {
		member.Lease = millis(m.lease)
	}
	return member
}

// shareOf is where in its bounds the lease of a draw lies. The draws lie evenly, in no order.
func shareOf(n int) float64 {
	_, share := math.Modf(float64(n+1) * (math.Sqrt(5) - 1) / 2)
	return share
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
