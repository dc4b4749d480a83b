package soak

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
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
// told, one that goes on is, and so is one that no fault explains.
func TestJudge(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }
	in := func(ms int, id, kind string) redistest.Command {
		return redistest.Command{At: at(ms), Words: []string{"HSET", "book:k", id, kind}}
	}
	out := func(ms int, id string, told ...int) redistest.Command {
		words := []string{"HDEL", "book:k", id}
		for _, ms := range told {
			words = append(words, fmt.Sprintf("told@%d", at(ms).UnixMicro()))
		}
		return redistest.Command{At: at(ms), Words: words}
	}
	failover := []span{{at(90), at(95)}}
	for _, c := range []struct {
		name       string
		book       []redistest.Command
		dead       map[string]time.Time
		lossy      []span
		broken     []span
		violations int
		told       int
		unpromised int
	}{
		{"in turn", []redistest.Command{in(0, "a", "bridge:1"), out(5, "a"), in(5, "b", "bridge:2"), out(9, "b")}, nil, nil, nil, 0, 0, 0},
		{"beside", []redistest.Command{in(0, "a", "bridge:1"), in(4, "b", "bridge:2"), out(5, "a"), out(9, "b")}, nil, nil, nil, 1, 0, 0},
		{"beside an old one", []redistest.Command{in(0, "x", "1"), in(4, "b", "bridge:2"), out(5, "x"), out(9, "b")}, nil, nil, nil, 1, 0, 0},
		{"an old one comes in beside", []redistest.Command{in(0, "b", "modern:1"), in(4, "x", "1"), out(5, "x"), out(9, "b")}, nil, nil, nil, 1, 0, 0},
		{"two behind sidecars", []redistest.Command{in(0, "s", "1"), in(4, "s2", "1"), out(5, "s"), out(9, "s2")}, nil, nil, nil, 1, 0, 0},
		{"two behind sidecars after a failover", []redistest.Command{in(88, "s", "1"), in(94, "s2", "1"), out(95, "s"), out(99, "s2")}, nil, failover, nil, 0, 0, 1},
		{"an old one beside one behind a sidecar", []redistest.Command{in(0, "s", "1"), in(4, "x", "1"), out(5, "s"), out(9, "x")}, nil, nil, nil, 1, 0, 0},
		{"two old ones", []redistest.Command{in(0, "x", "1"), in(4, "y", "1"), out(5, "x"), out(9, "y")}, nil, nil, nil, 0, 0, 1},
		{"one that never leaves", []redistest.Command{in(0, "a", "bridge:1"), in(4, "b", "bridge:2"), out(9, "b")}, nil, nil, nil, 1, 0, 0},
		{"told before", []redistest.Command{in(0, "a", "bridge:1"), in(4, "b", "bridge:2"), out(5, "a", 3), out(9, "b")}, nil, nil, nil, 0, 0, 0},
		{"told too late", []redistest.Command{in(0, "a", "bridge:1"), in(4, "b", "bridge:2"), out(6, "a", 5), out(9, "b")}, nil, nil, nil, 1, 0, 0},
		{"came in when it was told already", []redistest.Command{in(0, "a", "bridge:1"), in(4, "b", "bridge:2"), out(5, "b", 3), out(9, "a")}, nil, nil, nil, 0, 0, 0},
		{"killed before", []redistest.Command{in(0, "a", "bridge:1"), in(4, "b", "bridge:2"), out(9, "b"), out(10, "a")}, map[string]time.Time{"a": at(2)}, nil, nil, 0, 0, 0},
		{"the last word of a dead process", []redistest.Command{in(3, "a", "bridge:1"), in(4, "b", "bridge:2"), out(9, "b")}, map[string]time.Time{"a": at(2)}, nil, nil, 0, 0, 0},
		{"a failover between", []redistest.Command{in(80, "a", "bridge:1"), in(100, "b", "bridge:2"), out(500, "a", 400), out(900, "b")}, nil, failover, nil, 0, 1, 0},
		{"and not told", []redistest.Command{in(80, "a", "bridge:1"), in(100, "b", "bridge:2"), out(5000, "a"), out(9000, "b")}, nil, failover, nil, 1, 0, 0},
		{"before the failover", []redistest.Command{in(80, "a", "bridge:1"), in(85, "b", "bridge:2"), out(89, "a"), out(90, "b")}, nil, failover, nil, 1, 0, 0},
		{"long after the failover", []redistest.Command{in(2000, "a", "bridge:1"), in(2010, "b", "bridge:2"), out(2020, "a"), out(2030, "b")}, nil, failover, nil, 1, 0, 0},
		{"a late DEL after the failover", []redistest.Command{in(2000, "a", "bridge:1"), in(2010, "x", "1"), out(2020, "a"), out(2030, "x")}, nil, failover, nil, 0, 1, 0},
		{"old tokens after the failover", []redistest.Command{in(80, "s", "setnxpx:0"), in(100, "t", "setnxpx:0"), out(5000, "s"), out(9000, "t")}, nil, failover, nil, 0, 0, 1},
		{"a second DEL", []redistest.Command{in(94, "a", "bridge:1"), in(100, "x", "1"), out(105, "x"), out(200, "a", 150)}, nil, nil, failover, 0, 0, 0},
		{"and no end", []redistest.Command{in(94, "a", "bridge:1"), in(100, "x", "1"), out(5000, "x"), out(9000, "a")}, nil, nil, failover, 1, 0, 0},
		{"a second DEL between tokens", []redistest.Command{in(94, "a", "bridge:1"), in(100, "b", "bridge:2"), out(105, "b"), out(200, "a", 150)}, nil, nil, failover, 1, 0, 0},
		{"a second DEL long after", []redistest.Command{in(2000, "a", "bridge:1"), in(2010, "x", "1"), out(2020, "x"), out(2030, "a")}, nil, nil, failover, 1, 0, 0},
	} {
		got := judge(visits(c.book, map[string]string{"x": "old", "y": "old", "s": sidecarred, "s2": sidecarred}, c.dead), c.lossy, c.broken)
		assert.Len(t, got.violations, c.violations, "%s: %v", c.name, got.violations)
		assert.Equal(t, [2]int{c.told, c.unpromised}, [2]int{got.told, got.unpromised}, c.name)
	}
}
