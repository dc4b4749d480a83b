package main

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFlagsOfTheSimulator: a fleet is described in one language, so the commands that do something with it have few flags.
func TestFlagsOfTheSimulator(t *testing.T) {
	env, _ := screenEnvironment(0, nil)
	root, all := newRootCommand(env), 0
	for _, name := range []string{"simulate", "forecast", "explore"} {
		cmd, _, err := root.Find([]string{name})
		require.NoError(t, err)
		require.Equal(t, name, cmd.Name())
		own := 0
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { own++ })
		t.Logf("%s: %d", name, own)
		all += own
	}
	assert.LessOrEqual(t, all, 40)
}
