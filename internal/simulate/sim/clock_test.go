package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

func TestClock(t *testing.T) {
	at := func(d time.Duration) protocol.Instant { return protocol.Instant(d) }
	c := Clock{OffsetAtStart: 2 * time.Second, DriftPPM: 100}
	c.reset()
	require.Equal(t, 2*time.Second, c.Error(0))
	require.Equal(t, 2*time.Second+time.Millisecond, c.Error(at(10*time.Second)), "100 ppm of ten seconds")

	c.Step(at(10*time.Second), -5*time.Second)
	require.Equal(t, -3*time.Second+time.Millisecond, c.Error(at(10*time.Second)))
	require.Equal(t, at(10*time.Second+time.Millisecond), c.Read(at(10*time.Second)).Mono, "steps do not touch the monotonic clock")
	require.Equal(t, 9999*time.Millisecond, c.Lasting(10*time.Second), "a fast clock sleeps short")

	slewed := Clock{}
	slewed.reset()
	slewed.Slew(at(time.Second), time.Millisecond) // 500 ppm: two seconds
	require.Equal(t, 500*time.Microsecond, slewed.Error(at(2*time.Second)))
	require.Equal(t, time.Millisecond, slewed.Error(at(3*time.Second)))
	again := slewed
	again.Slew(at(time.Minute), time.Millisecond)
	require.Equal(t, time.Millisecond, again.Error(at(time.Minute)), "the first slew is over, though nobody has read the clock since")
	require.Equal(t, time.Millisecond, slewed.Error(at(time.Minute)), "it stops after two seconds")

	last := protocol.Instant(0)
	for i := range protocol.Instant(5000) { // a clock that is slewed back still never runs backwards
		now := slewed.Read(at(time.Minute) + i*1000)
		require.GreaterOrEqual(t, now.Mono, last)
		last = now.Mono
	}
}

func TestDistribution(t *testing.T) {
	g := NewGenerator(1, 2)
	spread := Spread(time.Millisecond, 2*time.Millisecond, 10*time.Millisecond, 100*time.Millisecond)
	below, n := [3]int{}, 100_000
	for range n {
		d := spread.Draw(&g)
		require.True(t, d >= time.Millisecond && d <= 100*time.Millisecond)
		for i, limit := range []time.Duration{2 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond} {
			if d <= limit {
				below[i]++
			}
		}
	}
	require.InDelta(t, 0.5, float64(below[0])/float64(n), 0.01)
	require.InDelta(t, 0.99, float64(below[1])/float64(n), 0.002)
	measured := Distribution{{Permyriad: 5000, Value: time.Second}, {Permyriad: 10000, Value: 2 * time.Second}}
	for range 1000 {
		d := measured.Draw(&g)
		require.True(t, d >= time.Second && d <= 2*time.Second, "%v", d)
	}
	require.Zero(t, Distribution(nil).Draw(&g))
}

// TestTheServersClockDrifts: a server whose clock runs fast ends a token's TTL while its holder still counts on it.
func TestTheServersClockDrifts(t *testing.T) {
	const fleet = "client a modern ttl=10s\nclient b modern ttl=10s\nturn a at 0s holds 9.8s\nturn b at 1s holds 1s\n"
	for faults, overlaps := range map[string]int64{"": 0, "at 0s server drifts 100000ppm": 1} {
		s, err := Parse(fleet + faults)
		require.NoError(t, err)
		require.Equal(t, overlaps, new(World).Run(&s.Fleet, 1).Overlaps, faults)
	}
}

// TestDrawsKeysByTheirWeight: a set's weight is that of each of its keys.
func TestDrawsKeysByTheirWeight(t *testing.T) {
	g, drawn := NewGenerator(1, 2), map[string]int{}
	c := Client{Keys: []KeySet{{Prefix: "many:", Count: 100}, {Prefix: "one:", Count: 1, Weight: 300}}}
	for range 40_000 {
		drawn[c.DrawKey(&g)]++
	}
	require.Len(t, drawn, 101)
	require.InDelta(t, 30_000, drawn["one:0"], 500)
	require.InDelta(t, 100, drawn["many:99"], 60)
	c = Client{Member: model.Member{Key: "orders"}}
	require.Equal(t, "orders", c.DrawKey(&g))
}

func TestRecordedRunIsTheSameRun(t *testing.T) {
	f := cell("mixed-25", 9*time.Second, 10*time.Second, 2*time.Second).Fleet()
	f.Network.LoseReply, f.Network.Repeat = 5000, 5000
	for i := range f.Clients {
		f.Clients[i].Chaos = Chaos{CrashEvery: Uniform(time.Second, 20*time.Second), Restart: Fixed(time.Second)}
	}
	var w World
	for seed := range uint64(50) {
		planned, was := Planned(&w, f, seed)
		is := w.Run(planned, was.Seed)
		require.Equal(t, was.Hash, is.Hash, "seed %d", seed)
		require.Equal(t, was.Tally, is.Tally)
	}
}

func TestShrinksToAMinimalRun(t *testing.T) {
	const step = 100 * time.Millisecond
	var w World
	for _, c := range []*Cell{
		cell("legacy", 11*time.Second, 10*time.Second, 2*time.Second),
		cell("legacy", -9*time.Second, 10*time.Second, 4*time.Second),
		cell("legacy", 0, 5*time.Second, 9*time.Second),
		cell("mixed-50", 9*time.Second, 10*time.Second, 4*time.Second),
	} {
		planned, was := firstBreak(t, &w, c)
		require.Positive(t, was.Overlaps)
		small := Shrink(&w, planned, step)
		r := w.Run(small, 0)
		require.Positive(t, r.Overlaps)
		t.Logf("%s %v: %d clients, %d events, skew %v, %d server commands", c.Scheme, c.Skew,
			len(small.Clients), WeightOf(small).Events, WeightOf(small).Skew, r.Ops)
		require.Len(t, small.Clients, 2)
		require.LessOrEqual(t, r.Ops, int64(8), "server commands")
		requireMinimal(t, &w, small, step)
	}
}

// requireMinimal drops every event, and moves every clock by a step, one at a time: all must pass.
func requireMinimal(t *testing.T, w *World, f *Fleet, step time.Duration) {
	t.Helper()
	passes := func(what string, change func(*Fleet)) {
		c := clone(f)
		change(c)
		require.Zero(t, w.Run(c, 0).Overlaps, what)
	}
	for i := range f.Clients {
		passes("without a client", func(c *Fleet) { dropClient(c, i) })
		if o := f.Clients[i].Offset; o != 0 {
			passes("with a step less skew", func(c *Fleet) { c.Clients[i].Offset -= o / o.Abs() * step })
		}
	}
	for i := range f.Plan.Turns {
		passes("without a turn", func(c *Fleet) { c.Plan.Turns = append(c.Plan.Turns[:i:i], c.Plan.Turns[i+1:]...) })
	}
	for i := range f.Plan.Delays {
		passes("without a delay", func(c *Fleet) { c.Plan.Delays = append(c.Plan.Delays[:i:i], c.Plan.Delays[i+1:]...) })
	}
	for i := range f.Faults {
		passes("without a fault", func(c *Fleet) { c.Faults = append(c.Faults[:i:i], c.Faults[i+1:]...) })
	}
	for i := range f.Opening {
		passes("without an opening", func(c *Fleet) { c.Opening = append(c.Opening[:i:i], c.Opening[i+1:]...) })
	}
}

func firstBreak(t *testing.T, w *World, cell *Cell) (*Fleet, Result) {
	t.Helper()
	for seed := range uint64(100) {
		if r := w.Run(cell.Fleet(), seed); r.Overlaps > 0 {
			return Planned(w, cell.Fleet(), seed)
		}
	}
	t.Fatal("no seed breaks")
	return nil, Result{}
}
