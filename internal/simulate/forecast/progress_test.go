package forecast

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestProgress: each stage is told before it is run, with how many are behind it.
func TestProgress(t *testing.T) {
	type step struct {
		stage    string
		done, of int
	}
	for _, today := range []bool{false, true} {
		var told []step
		o := Options{Draws: 20, Commands: 1, Today: today, Progress: func(stage string, done, of int) { told = append(told, step{stage, done, of}) }}
		made, err := Make(observed(0, 0), o)
		require.NoError(t, err)
		require.Len(t, told, len(made.Stages))
		for n, s := range made.Stages {
			assert.Equal(t, step{s.Name, n, len(made.Stages)}, told[n])
		}
	}
}
