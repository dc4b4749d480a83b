package sim_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// A scenario of turns and delays is a plan already: recording it would lose what it says.
func TestShrinksAPlan(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/scenarios/*.txt")
	require.NoError(t, err)
	shrunk := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		s, err := sim.Parse(string(text))
		require.NoError(t, err, file)
		if s.Fleet.Plan == nil {
			continue
		}
		var w sim.World
		want := w.Run(&s.Fleet, s.Seed)
		planned, was := sim.Planned(&w, &s.Fleet, s.Seed)
		require.Equal(t, want.Hash, was.Hash, file)
		require.Equal(t, want.Hash, w.Run(planned, s.Seed).Hash, "%s: the plan is another run", file)
		if was.Overlaps == 0 {
			continue
		}
		r := w.Run(sim.Shrink(&w, planned, 100*time.Millisecond), 0)
		require.Positive(t, r.Overlaps, "%s: what was shrunk does not break", file)
		shrunk++
	}
	require.Greater(t, shrunk, 5)
}
