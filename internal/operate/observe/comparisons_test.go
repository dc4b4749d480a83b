package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// TestComparisons: of each stretch of time the narrowest comparison counts, all stretches count together, and a long time without one ends
// what is known.
func TestComparisons(t *testing.T) {
	const ms = time.Millisecond
	var c comparisons
	at := func(seconds int) protocol.Instant { return protocol.Instant(seconds) * protocol.Instant(time.Second) }
	known := func() []any {
		from, to, ahead, off := c.known()
		return []any{from, to, ahead, off}
	}
	c.take(at(100), 10*ms, 90*ms)
	c.take(at(105), 20*ms, 24*ms)
	c.take(at(108), 0, 200*ms)
	c.take(at(109), 30*ms, 20*ms) // no bounds
	assert.Equal(t, []any{at(100), at(108), 22 * ms, 2*ms + 1}, known())
	c.take(at(110), 26*ms, 28*ms)
	assert.Equal(t, []any{at(100), at(110), 24 * ms, 4*ms + 1}, known())
	c.take(at(125), -4*ms, 0)
	assert.Equal(t, []any{at(100), at(125), 12 * ms, 16*ms + 1}, known())
	c.corrected(at(126), -ms, ms) // the stamps are others from here on: what was known before still counts
	c.take(at(127), 0, 0)
	assert.Equal(t, []any{at(100), at(127), 12 * ms, 16*ms + 1}, known())
	c.take(at(188), 0, 0)
	c.take(at(189), 500*ms, 500*ms)
	assert.True(t, c.stopped)
	assert.Equal(t, []any{at(100), at(127), 12 * ms, 16*ms + 1}, known())
}
