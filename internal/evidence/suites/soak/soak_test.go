// Package soak lets a mixed fleet work for as long as it is told to, while faults and stage changes come at
// random: `make soak TOPOLOGY=cluster LENGTH=1h`. Every round is drawn from its own seed, which is printed; a
// round that fails leaves a folder with its plan, its log, the referee's book, and a scenario for the
// simulator.
package soak

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

var (
	length   = flag.Duration("length", 8*time.Second, "how long to soak, in whole rounds")
	seed     = flag.Uint64("seed", 0, "seed of the first round; 0: from the clock")
	topology = flag.String("topology", onSingle, "where: on a single server, behind sentinels (sentinel), on a cluster")
	only     = flag.String("fleet", "", "the fleet of every round; default: drawn for each")
	keep     = flag.String("keep", "", "folder for what a failed round leaves; default: soak-failures beside this package")
)

const (
	ttl   = time.Second
	lease = 3 * time.Second
	delay = 500 * time.Millisecond // allowed between a legacy client's computing and its command
)

// lasting is how long the faults of one round last. Sentinels and clusters take their time to start.
var lasting = map[string]time.Duration{onSingle: 6 * time.Second, onSentinel: 25 * time.Second, onCluster: 25 * time.Second}

func TestMain(m *testing.M) {
	holders.ServeIfAsked(makers)
	redistest.Main(redistest.Leakless{M: m}, redistest.Redis)
}

func TestSoak(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano()) % 1_000_000
	}
	t.Logf("topology %s, seed %d", *topology, first)
	began := time.Now()
	var total totals
	for n := uint64(0); (n == 0 || time.Since(began) < *length) && !t.Failed(); n++ {
		t.Run(fmt.Sprintf("seed-%d", first+n), func(t *testing.T) {
			r := round(t, first+n)
			total.add(r)
			if len(r.violations) > 0 {
				t.Fatalf("%sseed %d: %d violations, %s ...\nsee %s", gravely(r.violations), r.seed, len(r.violations), r.violations[0], r.leave(folder(t)))
			}
		})
	}
	t.Logf("topology %s, seeds %d to %d: %v", *topology, first, first+uint64(total.rounds)-1, total)
}

// gravely is what a failure's message begins with where two were inside at once.
func gravely(violations []string) string {
	for _, v := range violations {
		if strings.Contains(v, " beside ") {
			return redistest.Violated + ": "
		}
	}
	return ""
}

// round lets one fleet soak for a while.
func round(t *testing.T, seed uint64) *soaking {
	t.Helper()
	site := newSite(t, *topology, 3)
	r := newSoaking(t, site, "lock", "", seed)
	all := fleets()
	if r.fleet = all[r.rand.IntN(len(all))]; *only != "" {
		require.Contains(t, all, *only)
		r.fleet = *only
	}
	r.muster(r.rand.IntN(3) == 0)
	for end := time.Now().Add(lasting[*topology]); time.Now().Before(end); {
		time.Sleep(time.Duration(150+r.rand.IntN(500)) * time.Millisecond) // the plan's own pace
		r.inject()
	}
	r.settled()
	t.Logf("seed %d: fleet %s, turns %v, %d faults, overlaps %d told (longest %v), %d not promised",
		r.seed, r.fleet, r.counts(), len(r.injected), r.result.told, r.result.longest, r.result.unpromised)
	return r
}

// settled ends a round.
func (r *soaking) settled() {
	r.t.Helper()
	r.site.settle()
	if r.site.unasked() {
		r.note("fault: a failover that nobody asked for")
	}
	if r.fleet == fleetBehind { // its queue is fair
		r.everyWaiterResumes("the last fault")
	}
	r.everybodyGoesOn()
	r.finish()
}

// totals of a soak.
type totals struct{ rounds, turns, faults, lossy, told, unpromised, late int }

func (sum *totals) add(r *soaking) {
	sum.rounds++
	sum.turns += r.result.turns
	sum.faults += len(r.injected)
	sum.lossy += len(r.site.lossy)
	sum.told += r.result.told
	sum.unpromised += r.result.unpromised
	sum.late += r.result.late
}

func (sum totals) String() string {
	return fmt.Sprintf("%d rounds, %d turns, %d faults and stage changes (%d of them lose data), overlaps after those: %d told, %d not promised; %d after an old client's second DEL; no violation unless one is named",
		sum.rounds, sum.turns, sum.faults, sum.lossy, sum.told, sum.unpromised, sum.late)
}

// The soak is worth nothing if it finds nothing: a member that does not renew, and deletes what may be
// another's, must be found in every fleet that is judged in a way of its own, and the failure must leave a
// scenario that the simulator can read.
func TestSoakFindsAPlantedBug(t *testing.T) {
	for n, fleet := range fleetsOnce() {
		if fleet == fleetBehind || fleet == fleetPython {
			continue // their members leave the same lines in the book as those of fleetTokens and of fleetJava
		}
		t.Run(fleet, func(t *testing.T) {
			t.Parallel()
			site := newSite(t, onSingle, 0)
			r := newSoaking(t, site, "bug", fleet, uint64(n))
			// It holds three times as long as what it has taken the key for, and is there first: those who stand in line leave it no turn.
			r.process(planted, planted, r.set, r.site.url(r.set, 0), holders.Arg("long", ttl/3), holders.Arg("rarely", 1))
			r.muster(false)
			redistest.Await(t, "an overlap", func() bool {
				// Who is still inside may yet say that it was told before.
				over := slices.DeleteFunc(r.stays(), func(s *holders.Stay) bool { return s.To.IsZero() })
				return len(r.judge(over).violations) > 0
			})
			r.let(r.faults()[0])
			for _, m := range r.processes {
				if m.ours() {
					r.let(fault{m.name + " killed", m.name + " crashes 300ms", m.kill})
				}
			}
			r.settled()
			require.NotEmpty(t, r.violations)
			dir := r.leave(t.TempDir())
			t.Logf("found: %v", r.violations[0])
			text, err := os.ReadFile(filepath.Join(dir, "scenario.txt"))
			require.NoError(t, err)
			_, err = sim.Parse(string(text))
			require.NoError(t, err, string(text))
			assert.Contains(t, string(text), "go-process crashes")
			for _, file := range []string{"plan.txt", "log.txt", "book.txt"} {
				info, err := os.Stat(filepath.Join(dir, file))
				require.NoError(t, err)
				assert.Positive(t, info.Size())
			}
		})
	}
}

func fleetsOnce() []string {
	var all []string
	for _, f := range fleets() {
		if !strings.Contains(strings.Join(all, " "), f) {
			all = append(all, f)
		}
	}
	return all
}

func folder(t *testing.T) string {
	if *keep != "" {
		return *keep
	}
	dir, err := filepath.Abs("soak-failures")
	require.NoError(t, err)
	return dir
}
