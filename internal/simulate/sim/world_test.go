package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

func TestLegacyWithAgreeingClocksIsExclusive(t *testing.T) {
	var w World
	for seed := range uint64(20) {
		r := w.Run(legacyFleet(6), seed)
		require.Zero(t, r.Overlaps)
		require.Greater(t, r.Acquisitions, int64(50))
	}
}

func TestLegacyWithAClockAheadBreaks(t *testing.T) {
	f := legacyFleet(6)
	f.Clients[5].Offset = 11 * time.Second
	var w World
	r := w.Run(f, 1)
	require.Positive(t, r.Overlaps)
	require.Positive(t, r.Hazards[EarlyTakeover])
	require.Positive(t, r.Hazards[StaleDelete])
}

func TestOneSeedIsOneTrace(t *testing.T) {
	f := legacyFleet(6)
	f.Clients[5].Offset = 11 * time.Second
	var a, b World
	require.Equal(t, a.Run(f, 1), b.Run(f, 1))
	require.NotEqual(t, a.Run(f, 2).Hash, b.Run(f, 1).Hash)
	require.Equal(t, a.Run(f, 1), b.Run(f, 1), "a used world behaves like a new one")
}

func modernFleet(n int, queue bool) *Fleet {
	f := legacyFleet(n)
	for i := range f.Clients {
		c := &f.Clients[i]
		c.Scheme, c.Queue, c.Fence, c.Renew = model.Modern, queue, "{orders}:fence", 3*time.Second
	}
	return f
}

func TestModernIsExclusiveWhateverTheClocks(t *testing.T) {
	for _, queue := range []bool{false, true} {
		f := modernFleet(6, queue)
		for i := range f.Clients {
			f.Clients[i].Offset = time.Duration(i) * time.Hour
			f.Clients[i].DriftPPM = int64(i) * 10
		}
		f.Network.LoseReply, f.Network.LoseRequest, f.Network.Repeat = 2000, 2000, 2000
		var w World
		var sum Tally
		for seed := range uint64(20) {
			r := w.Run(f, seed)
			sum.Add(&r.Tally)
		}
		require.Zero(t, sum.Overlaps)
		require.Zero(t, sum.Hazards[FenceDisorder])
		require.Greater(t, sum.Acquisitions, int64(1000))
		require.Positive(t, sum.Hazards[UnknownOutcome])
		t.Logf("queue %v: %d turns, %d acquisitions, mean wait %v, longest %v", queue, sum.Turns, sum.Acquisitions, sum.Waited/time.Duration(sum.Acquisitions), sum.LongestWait)
	}
}
