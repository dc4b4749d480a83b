package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
