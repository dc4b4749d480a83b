package protocol

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestBridgeValuesAreLiveToEveryReader: a legacy client whose clock is centuries off still waits.
func TestBridgeValuesAreLiveToEveryReader(t *testing.T) {
	for _, d := range Dialects() {
		for _, n := range []int64{BridgeLow, 6123456789012345678, BridgeHigh - 1} {
			value := d.BridgeValue(n, map[Layout]string{
				UUIDColonNumber: "0f0e0d0c-0b0a-4908-8706-050403020100", NumberDashOwner: "0-0",
			}[d.Layout])
			for _, year := range []int{1990, 2026, 2100} {
				now := InstantOf(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
				assert.Equal(t, Live, d.JudgeAsOldCode(value, now, "another"), "%s in %d reads %q as", d.Name, year, value)
			}
			if back, ok := d.BridgeNumber(value); !ok || back != n {
				t.Errorf("%s: BridgeNumber(%q) = %d, %v", d.Name, value, back, ok)
			}
			if ends, ok := d.ServerExpiry(value, InstantOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))); ok && d.Unit != Nanoseconds {
				t.Errorf("%s: the server takes %q for an expiry at %v", d.Name, value, ends.Time())
			}
		}
		if _, ok := d.BridgeNumber(fmt.Sprint(BridgeLow - 1)); ok {
			t.Errorf("%s: a number below the range counts as a bridge value", d.Name)
		}
	}
}
