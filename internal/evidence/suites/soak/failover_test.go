package soak

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// mixed musters fleets, those of them that this run can have, each on keys of its own, on one site.
func mixed(t *testing.T, site *site, withRedisson bool, wanted ...string) []*soaking {
	t.Helper()
	var all []*soaking
	for i, fleet := range fleetsOnce() {
		if slices.Contains(wanted, fleet) {
			r := newSoaking(t, site, fleet, fleet, uint64(i))
			r.muster(withRedisson && fleet == fleetTokens)
			all = append(all, r)
		}
	}
	resume(all, "the beginning")
	return all
}

// resume waits until every member of each fleet has had a turn from now on.
func resume(all []*soaking, after string) {
	all[0].t.Helper()
	var waiting sync.WaitGroup
	for _, r := range all {
		waiting.Go(func() { r.everyWaiterResumes(after) })
	}
	waiting.Wait()
}

// through lets a fault happen to all fleets and waits until every member of each has had a turn after it.
func through(all []*soaking, f fault) {
	if all[0].site.unasked() {
		all[0].t.Log("there was a failover that nobody asked for")
	}
	began := time.Now()
	all[0].let(f)
	all[0].t.Logf("%s took %v", f.name, time.Since(began).Round(time.Millisecond))
	resume(all, f.name)
}

func verdicts(t *testing.T, all []*soaking) {
	t.Helper()
	all[0].site.settle()
	if all[0].site.unasked() {
		t.Log("there was a failover that nobody asked for")
	}
	for _, r := range all {
		r.hush()
	}
	for _, r := range all {
		r.finish()
		t.Logf("fleet %s: turns %v, overlaps %d told (longest %v), %d not promised", r.fleet, r.counts(), r.result.told, r.result.longest, r.result.unpromised)
		assert.Empty(t, r.violations, gravely(r.violations))
		_, err := sim.Parse(r.scenario())
		assert.NoError(t, err, "what a failing run would leave: %s", r.scenario())
		if len(r.violations) > 0 {
			t.Logf("see %s", r.leave(folder(t)))
		}
	}
}

// Every one of six masters hands over to its replica while old Java and Python clients, followers of a
// namespace, token holders of three languages, services behind sidecars and Redisson work: nobody overlaps, every waiter resumes. The
// old clients reach their key's master by an address that moves with it; article-ha and Redisson follow the
// cluster themselves.
func TestRollingFailoverOfAMixedFleet(t *testing.T) {
	t.Parallel()
	site := newSite(t, onCluster, 6)
	all := mixed(t, site, true, fleetJava, fleetPython, fleetTokens, fleetBehind)
	for i := range site.cluster.Masters {
		f := all[0].orderly(i)
		f.name = fmt.Sprintf("the failover of master %d", i+1)
		through(all, f)
	}
	verdicts(t, all)
}

// Sentinels promote a replica that has not heard of its master for a while: what was acquired meanwhile is
// lost, and its holders are told, but for services behind sidecars, whose old code nobody can tell anything.
func TestSentinelFailoverOfAMixedFleet(t *testing.T) {
	t.Parallel()
	site := newSite(t, onSentinel, 0)
	all := mixed(t, site, false, fleetJava, fleetTokens, fleetBehind)
	through(all, all[0].failover("the death of the master", 0, true, 200*time.Millisecond))
	verdicts(t, all)
}

// What a failover may lose is judged so: an overlap that begins with it is no violation while the holder is
// told, one that goes on is, and so is one that no fault explains. The holders x and y are old clients; s and t are of a kind that nobody tells.
func TestJudge(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }
	stay := func(id string, from, to int) *holders.Stay {
		s := &holders.Stay{ID: id, From: at(from), To: at(to)}
		if id == "a" || id == "b" {
			s.Turn.Stage = "bridge"
		}
		return s
	}
	kinds := map[string]string{"x": "old", "y": "old", "s": sidecarred, "t": "setnxpx", "j": redissons}
	failover := []span{{at(90), at(95)}}
	for _, c := range []struct {
		name          string
		first, second *holders.Stay
		lossy, broken []span
		want          verdict // with a violation for each that is wanted
	}{
		{"beside", stay("a", 0, 5), stay("b", 4, 9), nil, nil, verdict{violations: []string{""}}},
		{"beside an old one", stay("x", 0, 5), stay("b", 4, 9), nil, nil, verdict{violations: []string{""}}},
		{"an old one comes in beside", stay("b", 0, 9), stay("x", 4, 5), nil, nil, verdict{violations: []string{""}}},
		{"an old one beside one behind a sidecar", stay("s", 0, 5), stay("x", 4, 9), nil, nil, verdict{violations: []string{""}}},
		{"two behind sidecars", stay("s", 0, 5), stay("t", 4, 9), nil, nil, verdict{violations: []string{""}}},
		{"two behind sidecars after a failover", stay("s", 88, 95), stay("t", 94, 99), failover, nil, verdict{unpromised: 1}},
		{"two old ones", stay("x", 0, 5), stay("y", 4, 9), nil, nil, verdict{unpromised: 1}},
		{"a failover between", stay("a", 80, 400), stay("b", 100, 900), failover, nil, verdict{told: 1, longest: 300 * time.Millisecond}},
		{"and not told", stay("a", 80, 5000), stay("b", 100, 9000), failover, nil, verdict{violations: []string{""}}},
		{"before the failover", stay("a", 80, 89), stay("b", 85, 90), failover, nil, verdict{violations: []string{""}}},
		{"Redisson in Java, long after the failover", stay("a", 2000, 2020), stay("j", 2010, 2030), failover, nil, verdict{violations: []string{""}}},
		{"long after the failover", stay("a", 2000, 2020), stay("b", 2010, 2030), failover, nil, verdict{violations: []string{""}}},
		{"a late DEL after the failover", stay("a", 2000, 2020), stay("x", 2010, 2030), failover, nil, verdict{told: 1, longest: 10 * time.Millisecond}},
		{"others' tokens after the failover", stay("s", 80, 5000), stay("t", 100, 9000), failover, nil, verdict{unpromised: 1}},
		{"a second DEL", stay("a", 94, 150), stay("x", 100, 105), nil, failover, verdict{late: 1}},
		{"and no end", stay("a", 94, 9000), stay("x", 100, 5000), nil, failover, verdict{violations: []string{""}}},
		{"a second DEL between tokens", stay("a", 94, 150), stay("b", 100, 105), nil, failover, verdict{violations: []string{""}}},
		{"a second DEL long after", stay("a", 2000, 2030), stay("x", 2010, 2020), nil, failover, verdict{violations: []string{""}}},
	} {
		var got verdict
		got.overlap(holders.Overlap{First: c.first, Second: c.second}, rules{kinds, c.lossy, c.broken})
		assert.Len(t, got.violations, len(c.want.violations), "%s: %v", c.name, got.violations)
		got.violations, c.want.violations = nil, nil
		assert.Equal(t, c.want, got, c.name)
	}
}
