package verify

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestHidden looks at random at a server on which commands are under way nearly always. What the capture misses is never said to be less than
// it is, and with nothing missing most runs show that.
func TestHidden(t *testing.T) {
	exact := 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		var h hidden
		var ran, missed int64
		look := func() (counted tally, m mark) {
			ran += r.Int64N(50)
			counted[0] = ran + missed
			m.least[0], m.most[0] = ran-r.Int64N(4), ran+r.Int64N(4) // without their reply, and asked for too late
			return counted, m
		}
		for range 20 {
			h.starts(look())
		}
		lost := r.Int64N(2)
		missed += lost
		for range 20 {
			h.stops(look())
		}
		got := h.after[0] - h.before[0]
		assert.GreaterOrEqual(t, got, lost, "seed %d", seed)
		if got == lost {
			exact++
		}
	}
	assert.Greater(t, exact, 450)
}
