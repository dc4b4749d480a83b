package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// hourly is a fleet of old clients whose clocks agree, and whose work never outlasts the lease.
func hourly(clients int) *Fleet {
	f := legacyFleet(clients)
	f.Until = time.Hour
	for i := range f.Clients {
		c := &f.Clients[i]
		c.Hold, c.Think, c.Member.Release = Uniform(time.Second, 5*time.Second), Uniform(0, 5*time.Second), c.Dialect.Release
	}
	return f
}

// fails gives the fleet's server failovers, and the key pauses: where the replica has the lock of the holder before, that keeps others away.
func fails(f *Fleet) {
	f.Server = Server{FailoverEvery: Uniform(30*time.Second, time.Minute), Outage: Fixed(time.Second), Behind: Fixed(2 * time.Second)}
	for i := range f.Clients {
		f.Clients[i].Think = Uniform(0, 20*time.Second)
	}
}

// tried runs a fleet, and returns what clients are to blame for beside the causes.
func tried(t *testing.T, f *Fleet) (Tally, []int) {
	t.Helper()
	w := new(World)
	r := w.Run(f, 1)
	sum, blamed := int64(0), r.Causes[FailedOver]
	for _, x := range r.Causes {
		sum += x
	}
	for _, x := range w.Blamed {
		blamed += int64(x)
	}
	require.Equal(t, []int64{r.Overlaps, r.Overlaps}, []int64{sum, blamed}, "each overlap has one cause, and one who is to blame")
	return r.Tally, w.Blamed
}

// TestEachCause: a fleet with one thing wrong has the overlaps of that cause, and the stale deletes that follow from it.
func TestEachCause(t *testing.T) {
	right, _ := tried(t, hourly(4))
	require.Zero(t, right.Overlaps, "nothing is wrong")
	for _, c := range []struct {
		cause Cause
		wrong func(f *Fleet)
		by    int
	}{
		{Skew, func(f *Fleet) { f.Clients[2].Offset = 8 * time.Second }, 2},
		{Skew, func(f *Fleet) { f.Clients[1].DriftPPM = 2500 }, 1}, // 9 s at the end
		{Overran, func(f *Fleet) { f.Clients[3].Hold = Uniform(8*time.Second, 13*time.Second) }, 3},
		{FailedOver, fails, server},
	} {
		t.Run(c.cause.String(), func(t *testing.T) {
			f := hourly(4)
			c.wrong(f)
			r, blamed := tried(t, f)
			require.Positive(t, r.Causes[c.cause])
			for cause, n := range r.Causes {
				// A stale delete that comes before the winner has heard of its lock is not seen, and is taken for a skew. It is rare.
				if Cause(cause) != c.cause && Cause(cause) != Deleted {
					require.LessOrEqual(t, n, r.Overlaps/50, Cause(cause))
				}
			}
			require.Zero(t, r.Told, "the old code hears of nothing")
			if c.by == server {
				require.Zero(t, r.Causes[Deleted], "what follows from a failover is the failover's")
				return
			}
			for i, n := range blamed {
				if i != c.by {
					require.LessOrEqual(t, int64(n), r.Causes[Deleted], "%d", i)
				}
			}
			require.GreaterOrEqual(t, int64(blamed[c.by]), r.Causes[c.cause])
		})
	}
}

// TestTold: a holder of a token hears at its next renewal that a failover has lost its lock; one without renewals does not.
func TestTold(t *testing.T) {
	for _, renew := range []time.Duration{500 * time.Millisecond, 0} {
		f := hourly(3)
		fails(f)
		for i := range f.Clients {
			c := &f.Clients[i]
			c.Scheme, c.Renew = model.Modern, renew
		}
		r, _ := tried(t, f)
		require.Positive(t, r.Causes[FailedOver])
		require.Equal(t, r.Overlaps, r.Causes[FailedOver])
		require.Equal(t, renew > 0, r.Told[FailedOver] > 0, "%+v", r)
	}
}
