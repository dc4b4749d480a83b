package rawconn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestALookIsTriedAgainSoon: a few looks in vain cost a few reads, so that a server that was late once is looked for again.
// A look that cost a time slice puts the next one off for longer.
func TestALookIsTriedAgainSoon(t *testing.T) {
	const bound = 100 * time.Microsecond
	l := look{bound: bound}
	skips := func(n int) int {
		for range n {
			l.missed(bound)
		}
		return l.skip
	}
	require.Equal(t, 0, skips(1))
	require.Equal(t, 4, skips(1))
	require.Equal(t, 8, skips(1))
	require.Equal(t, 4096, skips(9))
	require.Equal(t, 4096, skips(5), "the most")
	l = look{bound: bound}
	l.missed(9 * bound)
	require.Equal(t, 256, l.skip)
}
