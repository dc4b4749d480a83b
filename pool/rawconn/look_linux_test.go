package rawconn

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALookIsTriedAgainSoon: a few looks in vain cost a few reads, so that a server that was late once is looked for again.
// A look that cost a time slice puts the next one off for longer.
func TestALookIsTriedAgainSoon(t *testing.T) {
	var l look
	skips := func(n int) int {
		for range n {
			l.missed(lookFor)
		}
		return l.skip
	}
	require.Equal(t, 0, skips(1))
	require.Equal(t, 4, skips(1))
	require.Equal(t, 8, skips(1))
	require.Equal(t, 4096, skips(9))
	require.Equal(t, 4096, skips(5), "the most")
	l = look{}
	l.missed(9 * lookFor)
	require.Equal(t, 256, l.skip)
}
