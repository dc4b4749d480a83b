package forecast

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
)

const ms = time.Millisecond

var pythonLock = holders.RedisPy

// same makes n members alike.
func same(n int, m member) []member {
	all := make([]member, n)
	for i := range all {
		all[i] = m
	}
	return all
}

// fleets are those of the calibration. Leases and holds are large beside the delays of a busy machine.
func fleets() []fleet {
	one := []string{"stock:1"}
	jedis := member{kind: holders.JedisLock, lease: 3000 * ms, keys: one, think: between(0, 400*ms)}
	python := member{kind: holders.RedisPy, lease: 2500 * ms, keys: one, think: between(0, 400*ms)}
	with := func(m member, change func(*member)) member { change(&m); return m }

	near := same(4, with(jedis, func(m *member) { m.hold = between(800*ms, 2400*ms) }))
	near[0].clock = 1000 * ms
	far := same(3, with(jedis, func(m *member) { m.hold = between(300*ms, 1200*ms) }))
	far[0].clock = 1000 * ms
	rare := same(3, with(jedis, func(m *member) {
		m.hold = mixed(between(500*ms, 2200*ms), between(2600*ms, 2900*ms), 0.04)
	}))
	rare[0].clock = 600 * ms
	alone := same(4, with(jedis, func(m *member) { m.hold = between(800*ms, 4000*ms) }))
	for i := range alone {
		alone[i].keys, alone[i].clock = []string{"order:" + string(rune('0'+i))}, time.Duration(i)*5*time.Second
	}
	several := same(4, with(jedis, func(m *member) {
		m.hold, m.keys = between(500*ms, 2700*ms), []string{"order:0", "order:1", "order:2"}
	}))
	several[0].clock = 800 * ms
	several[3].keys = append(several[3].keys[:3:3], "order:9") // nobody else's

	overrun := same(4, with(python, func(m *member) {
		m.hold, m.think = mixed(between(300*ms, 1000*ms), between(2800*ms, 4000*ms), 0.06), between(0, 2000*ms)
	}))
	behind := same(3, with(python, func(m *member) { m.hold = between(500*ms, 1800*ms) }))
	behind[1].clock = -1200 * ms
	crash := same(4, with(python, func(m *member) { m.hold, m.crash = between(300*ms, 1900*ms), 0.05 }))
	crash[2].clock = 900 * ms
	tail := same(4, with(python, func(m *member) { m.lease, m.hold, m.think = 2000*ms, exponential(100*ms, 700*ms), between(0, 1000*ms) }))

	// The clients at stage bridge: their holds are short, so that the old ones get many turns.
	bridge := member{keys: one, hold: between(200*ms, 600*ms), think: between(0, 400*ms)}
	stage := append(same(4, with(jedis, func(m *member) { m.lease, m.hold = 2000*ms, between(500*ms, 1600*ms) })), same(2, bridge)...)
	stage[0].clock = 700 * ms

	return []fleet{
		{"near", "4 jedis-lock, lease 3 s, holds 0.8 to 2.4 s, a clock 1 s ahead", near},
		{"far", "3 jedis-lock, lease 3 s, holds 0.3 to 1.2 s, a clock 1 s ahead", far},
		{"rare", "3 jedis-lock, lease 3 s, holds to 2.2 s and 4 % to 2.9 s, a clock 0.6 s ahead", rare},
		{"unshared", "4 jedis-lock, each with a key of its own, clocks up to 15 s ahead", alone},
		{"several", "4 jedis-lock on three shared keys and one of its own, a clock 0.8 s ahead", several},
		{"overrun", "4 redis-py, lease 2.5 s, 6 % of the holds 2.8 to 4 s", overrun},
		{"behind", "3 redis-py, lease 2.5 s, holds 0.5 to 1.8 s, a clock 1.2 s behind", behind},
		{"crash", "4 redis-py, lease 2.5 s, holds 0.3 to 1.9 s, a clock 0.9 s ahead; 5 % of the turns end by kill -9", crash},
		{"tail", "4 redis-py, lease 2 s, exponential holds of 0.8 s", tail},
		{"bridge", "4 jedis-lock, lease 2 s, holds 0.5 to 1.6 s, a clock 0.7 s ahead; beside 2 Go services at stage bridge", stage},
	}
}

// unseen are fleets that were written down after the forecast was made, and before they ran for the first time. What was measured of them is kept; what
// ran stands in words beside it.
func unseen() (all []fleet) {
	for _, name := range []string{"six", "drifting", "families", "worn", "crowd", "apart", "early", "slow", "guarded", "polls"} {
		all = append(all, fleet{name: name})
	}
	return all
}

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
