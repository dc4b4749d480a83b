package forecast

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
)

// drawn are fleets that nobody chose: every figure comes from a random number. Of ten, two are at stage bridge, one is behind sidecars
// in part, one shares no key.
func drawn() []fleet { return draw("drawn", 20261122, 10) }

// fresh are fleets of another seed. The round has six, and no more was drawn than these.
func fresh() []fleet { return draw("fresh", 20261123, 6) }

// waits are fleets of a third seed, which observe bounds the leases of by what waiters do. Before they ran it was written down that the
// round is left out as a whole if in more than half of the fleets that run with it one hold in a hundred is late by over 100 ms.
func waits() []fleet { return draw("waits", 20261124, 8) }

func draw(name string, seed uint64, n int) (all []fleet) {
	for i := range n {
		all = append(all, drawOne(fmt.Sprintf("%s-%d", name, i), i, rand.New(rand.NewPCG(seed, uint64(i)))))
	}
	return all
}

func drawOne(called string, number int, r *rand.Rand) fleet {
	steps := func(lo, hi time.Duration) time.Duration { return between(lo, hi)(r).Truncate(50 * ms) }
	of := func(d time.Duration, lo, hi float64) time.Duration {
		return steps(time.Duration(lo*float64(d)), time.Duration(hi*float64(d)))
	}
	m := member{kind: holders.JedisLock, lease: steps(1500*ms, 5000*ms), keys: []string{fmt.Sprintf("stock:%d", number)}}
	name := "jedis-lock"
	if number%2 == 1 {
		m.kind, name = holders.RedisPy, "redis-py"
	}
	what := []string{fmt.Sprintf("lease %v", m.lease)}
	if shape := r.IntN(4); shape == 0 {
		least, mean := of(m.lease, 0.05, 0.15), of(m.lease, 0.15, 0.3)
		m.hold = exponential(least, mean)
		what = append(what, fmt.Sprintf("exponential holds of %v", least+mean))
	} else {
		lo, hi := of(m.lease, 0.05, 0.25), of(m.lease, 0.4, 0.95)
		m.hold = between(lo, hi)
		what = append(what, fmt.Sprintf("holds %v to %v", lo, hi))
		if shape == 1 {
			chance, lo, hi := 0.04+0.06*r.Float64(), of(m.lease, 1.05, 1.2), of(m.lease, 1.3, 1.8)
			m.hold = mixed(m.hold, between(lo, hi), chance)
			what = append(what, fmt.Sprintf("%.0f %% of them %v to %v", 100*chance, lo, hi))
		}
	}
	m.think = between(0, of(m.lease, 0.1, 1.2))
	if m.kind == holders.RedisPy && r.IntN(2) == 0 {
		m.poll = steps(50*ms, 500*ms)
		what = append(what, fmt.Sprintf("polls of %v", m.poll))
	}
	if m.kind == holders.RedisPy && r.IntN(3) == 0 {
		m.crash = 0.02 + 0.04*r.Float64()
		what = append(what, fmt.Sprintf("%.0f %% of the turns end by kill -9", 100*m.crash))
	}
	for k := 1; k < 1+r.IntN(3); k++ {
		m.keys = append(m.keys, fmt.Sprintf("stock:%d", 100*k+number))
	}
	if len(m.keys) > 1 {
		what = append(what, fmt.Sprintf("%d keys", len(m.keys)))
	}
	f := fleet{name: called, members: same(3+r.IntN(5), m)}
	old := len(f.members)
	for range 1 + r.IntN(2) {
		clock := of(m.lease, 0.05, 0.45)
		if number == 3 || number == 5 || number == 7 { // the namespace of a bridge stands clocks that are a second apart
			clock = min(clock, 900*ms)
		}
		if r.IntN(2) == 0 {
			clock = -clock
		}
		f.members[r.IntN(old)].clock = clock
		what = append(what, fmt.Sprintf("a clock %+v", clock))
	}
	switch number {
	case 3, 7:
		service := member{lease: steps(4000*ms, 8000*ms), keys: m.keys, hold: between(of(m.lease, 0.05, 0.1), of(m.lease, 0.2, 0.5)), think: m.think}
		n := 1 + r.IntN(3)
		f.members = append(f.members, same(n, service)...)
		what = append(what, fmt.Sprintf("%d Go services at stage bridge", n))
	case 5:
		m.sidecar, m.crash = true, 0
		f.members = append(f.members, same(2, m)...)
		what = append(what, "2 more behind sidecars")
	case 9:
		for i := range f.members {
			f.members[i].keys = []string{fmt.Sprintf("mine:%d", i)}
		}
		what = append(what, "each has a key of its own")
	}
	f.what = fmt.Sprintf("%d %s, %s", old, name, strings.Join(what, ", "))
	return f
}
