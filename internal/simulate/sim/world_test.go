package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOneSeedIsOneTrace(t *testing.T) {
	f := legacyFleet(6)
	f.Clients[5].Offset = 11 * time.Second
	var a, b World
	require.Equal(t, a.Run(f, 1), b.Run(f, 1))
	require.NotEqual(t, a.Run(f, 2).Hash, b.Run(f, 1).Hash)
	require.Equal(t, a.Run(f, 1), b.Run(f, 1), "a used world behaves like a new one")
}
