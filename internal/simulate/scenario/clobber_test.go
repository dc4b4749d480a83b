package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// TestClobberNeedsNoSkew: nothing but a clobber that shortened a lease explains that run, and nothing in it can be left out.
func TestClobberNeedsNoSkew(t *testing.T) {
	w, s := new(sim.World), Clobber()
	for i := range s.Fleet.Clients {
		require.Zero(t, s.Fleet.Clients[i].Offset)
	}
	r := w.Run(&s.Fleet, s.Seed)
	for _, e := range s.Expect {
		_, met := e.Met(&r.Tally)
		require.True(t, met, e)
	}
	h := &r.Hazards
	require.Zero(t, h[sim.EarlyTakeover]+h[sim.DoubleWin]+h[sim.Overrun]+h[sim.StaleDelete]+h[sim.UnitMismatch]+h[sim.LostUpdate])
	small := sim.Shrink(w, &s.Fleet, 100*time.Millisecond)
	require.Equal(t, sim.WeightOf(&s.Fleet), sim.WeightOf(small))
}
