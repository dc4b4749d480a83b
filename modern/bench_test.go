package modern_test

import (
	"runtime/debug"
	"slices"
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// TestAcquireReleaseAllocations holds what docs/benchmarks.md says: an uncontended lock costs no more
// than twelve allocations, five of them for the commands alone.
func TestAcquireReleaseAllocations(t *testing.T) {
	locker := newLocker(t, redistest.Real(t).Pool(), modern.Options{})
	pair := func() {
		lock, err := locker.TryAcquire(t.Context(), key)
		if err == nil {
			err = lock.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pair()
	most := 12.0
	if build, ok := debug.ReadBuildInfo(); ok && slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		most = 16 // the race detector has pools forget at random
	}
	if n := testing.AllocsPerRun(2000, pair); n > most {
		t.Errorf("%v allocations, at most %v are agreed", n, most)
	}
}
