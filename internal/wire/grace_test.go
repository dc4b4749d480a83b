package wire

import (
	"testing"
	"time"
)

// TestGraceIsRoundedUp: a grace that is cut to whole milliseconds would be a shorter one.
func TestGraceIsRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{-1: -1, -time.Hour: -1, 0: 0, 1: 1, time.Millisecond: 1, 1500 * time.Microsecond: 2, time.Second: 1000} {
		if got := grace(d); got != want {
			t.Errorf("%v: %d, not %d", d, got, want)
		}
	}
}
