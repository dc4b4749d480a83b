package explore

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// searchLimit keeps the tests short: larger searches are left out without the component proofs, and where every memory access is watched.
// scripts/test runs them all to their ends without the race detector: the detector wants them begun, beside each other.
var searchLimit = func() int {
	if redistest.Thorough() {
		return DefaultStates
	}
	return 15_000
}()

// parallel lets small searches run side by side. Large ones need gigabytes each.
func parallel(t *testing.T) {
	if searchLimit < DefaultStates {
		t.Parallel()
	}
}

func claimNamed(id string) Claim {
	all := Claims()
	return all[slices.IndexFunc(all, func(c Claim) bool { return c.ID == id })]
}

// TestClaims checks the whole table. A search that meets a lower limit than the usual one proves nothing, and is left out.
func TestClaims(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Claims() {
		require.False(t, seen[c.ID], "two claims are named %s", c.ID)
		seen[c.ID] = true
		t.Run(c.ID, func(t *testing.T) {
			parallel(t)
			f := Check(context.Background(), c, Limits{States: searchLimit})
			if f.Verdict == Incomplete && searchLimit < DefaultStates {
				t.Skipf("left out: more than %d states; `make test` proves it (LOCKMIGRATE_SUITES=proofs)", searchLimit)
			}
			t.Logf("%s: %s, %d states, depth %d, %d commands", f.Assumptions, f.Verdict, f.States, f.Depth, Commands(f.Trace))
			require.True(t, f.AsExpected(), "expected %s, found %s with %d commands:\n%s", f.Expected, f.Verdict, Commands(f.Trace), tell(c.Model, f.Trace))
		})
	}
}

// TestAClaimStandsAlone: a report has only some of the claims, so one that builds on another names it.
func TestAClaimStandsAlone(t *testing.T) {
	for _, c := range Claims() {
		assert.NotContains(t, c.Assumptions, "the same", c.ID)
		if base, named := strings.CutPrefix(c.Assumptions, "as "); named {
			base = strings.TrimRight(strings.Fields(base)[0], ",;")
			assert.True(t, slices.ContainsFunc(Claims(), func(other Claim) bool { return other.ID == base && base != c.ID }), "%s names %s", c.ID, base)
		}
	}
}

// TestCanonicalCounterexample: two clients, at most eight server commands, and none of its steps can be
// left out, since no shorter run breaks the claim.
func TestCanonicalCounterexample(t *testing.T) {
	c := claimNamed("LL-ahead")
	f := Check(context.Background(), c, Limits{})
	require.Len(t, c.Model.Clients, 2)
	require.Equal(t, 4, Commands(f.Trace))
	require.Equal(t, []int{0, 1}, f.Trace[len(f.Trace)-1].Inside)
}

func TestSearchStopsAtItsLimit(t *testing.T) {
	c := Claims()[0]
	f := Check(context.Background(), c, Limits{States: 1000})
	require.Equal(t, Incomplete, f.Verdict)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	require.Equal(t, Incomplete, Check(cancelled, c, Limits{}).Verdict)
}

// BenchmarkStates searches a claim of three clients to its end: distinct states a second.
func BenchmarkStates(b *testing.B) {
	states, m := 0, claimNamed("LBB-stale-del").Model
	for b.Loop() {
		states += Search(context.Background(), m, Limits{}).States
	}
	b.ReportMetric(float64(states)/b.Elapsed().Seconds(), "states/s")
}
