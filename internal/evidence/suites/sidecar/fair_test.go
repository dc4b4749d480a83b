package sidecar

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	work "github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

var during = flag.Duration("during", 1500*time.Millisecond, "of a stage in TestFair")

// enough is how many turns a fleet takes at least, however slow the machine is.
const enough = 100

// underWay is when members have found each other: a sidecar learns from the first refusals that others want a key.
const underWay = 500 * time.Millisecond

// share is what each member of a fleet got.
type share struct {
	turns  []int
	waits  [][]time.Duration // one that has not ended counts as it is
	inside int
	took   time.Duration
	late   time.Duration // all wake-ups after a sleep
	woken  int
}

func newShare() *share { return &share{turns: make([]int, 5), waits: make([][]time.Duration, 5)} }

// sleep notes how late its caller wakes up.
func (r *share) sleep() {
	at := time.Now()
	time.Sleep(time.Millisecond)
	r.late, r.woken = r.late+time.Since(at)-time.Millisecond, r.woken+1
}

// wake is how long a wake-up took on average.
func (r *share) wake() time.Duration {
	return (r.late / time.Duration(r.woken)).Round(time.Microsecond)
}

// rate is a member's turns in a second.
func (r *share) rate(i int) float64 { return float64(r.turns[i]) / r.took.Seconds() }

// equal is the mean of the members' turns in a second.
func (r *share) equal() (all float64) {
	for i := range r.turns {
		all += r.rate(i) / float64(len(r.turns))
	}
	return all
}

// wait is the p95 of a member's waits, by the time that they take.
func (r *share) wait(i int) time.Duration {
	all, sum := time.Duration(0), time.Duration(0)
	for _, w := range r.waits[i] {
		all += w
	}
	slices.Sort(r.waits[i])
	for _, w := range r.waits[i] {
		if sum += w; sum >= all*95/100 {
			return w.Round(time.Millisecond)
		}
	}
	return 0
}

// take lets members take turns of 5 ms, one after the other without a pause, and ends them.
func (r *share) take(all []*holders.Holder) {
	for _, h := range all {
		h.Send("turns lock:fleet lock:fleet:referee 1000000 5")
	}
	began := time.Now().Add(underWay)
	last := slices.Repeat([]time.Time{began}, len(all))
	for turns := 0; turns < enough || time.Now().Before(began.Add(*during)); r.sleep() {
		for i, h := range all {
			for more := true; more; {
				select {
				case e := <-h.Events():
					if now := time.Now(); e.Event == "turn" && now.After(began) {
						r.inside = max(r.inside, e.Inside)
						r.turns[i]++
						turns++
						r.waits[i] = append(r.waits[i], time.Duration(e.WaitedMS*float64(time.Millisecond)))
						last[i] = now
					}
				default:
					more = false
				}
			}
		}
	}
	ended := time.Now() // and not after the kills, which a busy machine takes seconds for
	r.took += ended.Sub(began)
	for i, h := range all {
		h.Kill()
		r.waits[i] = append(r.waits[i], ended.Sub(last[i]))
	}
}

// meet lets members take turns of 5 ms with other work between them, 30 ms on average.
func (r *share) meet(all []*holders.Holder) {
	var running sync.WaitGroup
	var inside, most, turns atomic.Int64
	began := time.Now().Add(underWay)
	under := func() bool { return turns.Load() < enough || time.Since(began) < *during }
	for i, h := range all {
		running.Go(func() {
			for draw := rand.New(rand.NewPCG(uint64(i), 1)); under(); {
				asked := time.Now()
				for h.Do("acquire lock:fleet").Event != "acquired" {
				}
				most.Store(max(most.Load(), inside.Add(1)))
				if asked.After(began) {
					turns.Add(1)
					r.turns[i]++
					r.waits[i] = append(r.waits[i], time.Since(asked))
				}
				time.Sleep(5 * time.Millisecond)
				inside.Add(-1)
				h.Do("release lock:fleet")
				time.Sleep(time.Duration(draw.ExpFloat64() * float64(30*time.Millisecond)))
			}
		})
	}
	for under() {
		r.sleep()
	}
	r.took += time.Since(began)
	running.Wait()
	r.inside = max(r.inside, int(most.Load()))
}

// five is three Java services and two Go services on one key, the Java services behind sidecars but at stage legacy. They start together.
func five(t *testing.T, stage stages.Stage) []*holders.Holder {
	s := newSite(t, stage)
	members := []holders.Member{s.goMember(), s.goMember()}
	for _, name := range []string{"billing", "stock", "mail"} {
		if stage == stages.Legacy {
			members = append(members, s.of(holders.JedisLock, s.server.URL(), 0))
			continue
		}
		m, _ := s.behind(holders.JedisLock, name, "", 0)
		members = append(members, m)
	}
	all := make([]*holders.Holder, len(members))
	var starting sync.WaitGroup
	for i, m := range members {
		starting.Go(func() { all[i] = m() })
	}
	starting.Wait()
	require.NotContains(t, all, (*holders.Holder)(nil))
	return all
}

// slow is the mean of a wake-up from which on a machine has too much other work to compare turns in a second: see docs/sidecar.md.
const slow = 250 * time.Microsecond

// TestFair compares services behind sidecars with services when all are legacy. Each gets 0.8 of an equal share of the turns at least, of its
// own fleet's and, where a stage lasts for 3 s, of the legacy fleet's, which works at another time. And one that finds it waiting finds it in a shorter wait: the p95 of waits, by the time that they take.
// (Of a legacy client that takes a busy key a hundred times in a row and then starves for a second, nearly all waits are none.)
func TestFair(t *testing.T) {
	all := []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern}
	got := map[string]map[stages.Stage]*share{"with other work": {}, "busy": {}}
	for _, stage := range all {
		fleet := five(t, stage)
		got["with other work"][stage], got["busy"][stage] = newShare(), newShare()
		got["with other work"][stage].meet(fleet)
		got["busy"][stage].take(fleet)
	}
	for name, got := range got {
		t.Run(name, func(t *testing.T) {
			before := got[stages.Legacy]
			waits := (before.wait(2) + before.wait(3) + before.wait(4)) / 3
			for _, stage := range all {
				r := got[stage]
				t.Logf("%v: Go, Go, Java, Java, Java: turns %v, %.1f a second for each; waits %v %v %v %v %v; a wake-up %v", stage, r.turns, r.equal(),
					r.wait(0), r.wait(1), r.wait(2), r.wait(3), r.wait(4), r.wake())
				require.Equal(t, 1, r.inside, redistest.Violated)
				if stage == stages.Legacy {
					continue
				}
				quick := *during >= 3*time.Second && max(r.wake(), before.wake()) <= slow
				for i := 2; i < 5; i++ {
					assert.LessOrEqual(t, r.wait(i), waits, "%v: the wait of service %d", stage, i-1)
					if name == "busy" {
						assert.GreaterOrEqual(t, r.rate(i), 0.8*r.equal(), "%v: turns a second of service %d, of its fleet's", stage, i-1)
					}
					if quick {
						assert.GreaterOrEqual(t, r.rate(i), 0.8*before.equal(), "%v: turns a second of service %d, of those at stage legacy", stage, i-1)
					}
				}
			}
		})
	}
}

var mixes = flag.Duration("mixes", 0, "how long each fleet of TestMixes takes turns")

// mix is a fleet while sidecars are rolled out. Every client takes turns of 5 ms without a pause between two.
type mix struct {
	direct, behind, golang int // behind: services with a sidecar each, of two clients each
	poll                   time.Duration
}

func (m mix) String() string {
	return fmt.Sprintf("%d direct, %d behind sidecars, %d Go, poll %v", m.direct, 2*m.behind, m.golang, m.poll)
}

// play lets a mix work at a stage and returns the turns of each client: direct ones, those behind sidecars, Go members. It ends early when each
// has had enough of them; 0: it does not.
func (m mix) play(t *testing.T, stage stages.Stage, during time.Duration, enough int64) []int64 {
	server := redistest.Real(t)
	s := &site{T: t, server: server, book: server, lease: lease}
	s.init(stages.Record{Stage: stage, Dialect: "jedis-ms", ClockLag: 100 * time.Millisecond, Yield: m.poll * 6 / 5}) // as observe measures it
	var addrs []string
	for range m.direct {
		addrs = append(addrs, s.server.Addr)
	}
	for i := range m.behind {
		p := s.sidecar(fmt.Sprint("service", i), "", 0)
		addrs = append(addrs, p.Addr, p.Addr)
	}
	var takes []work.Take
	for _, addr := range addrs {
		pool := &redis.Pool{MaxIdle: 1, DialContext: redistest.Dialer(addr)}
		t.Cleanup(func() { _ = pool.Close() })
		old := &work.Old{Pool: pool, Dialect: protocol.JedisMS, Lease: s.lease, Poll: m.poll}
		takes = append(takes, old.Acquire)
	}
	for range m.golang {
		locker, err := compat.New(s.server.Pool(), compat.Options{Namespace: "orders", Lease: s.lease, TTL: 2 * time.Second})
		require.NoError(t, err)
		defer locker.Close()
		takes = append(takes, work.Of(locker.Acquire))
	}
	referee, workers := work.NewReferee(), make([]*work.Worker, len(takes))
	for i, take := range takes {
		workers[i] = &work.Worker{
			Name: fmt.Sprint(i), Take: take, Key: func() string { return "lock:fleet" },
			Hold: func() time.Duration { return 5 * time.Millisecond }, Think: func() time.Duration { return 0 },
		}
		workers[i].Start(t.Context(), referee, 0)
	}
	time.Sleep(2 * underWay)
	counts, before := make([]int64, len(workers)), make([]int64, len(workers))
	for i, w := range workers {
		before[i] = int64(referee.Turns(w.Name))
	}
	for end := time.Now().Add(during); time.Now().Before(end) && (enough == 0 || slices.Min(counts) < enough); time.Sleep(5 * time.Millisecond) {
		for i, w := range workers {
			counts[i] = int64(referee.Turns(w.Name)) - before[i]
		}
	}
	for _, w := range workers {
		w.Stop()
	}
	for _, w := range workers {
		assert.NoError(t, w.Wait(t.Context()))
	}
	assert.Zero(t, referee.Since().Overlaps, redistest.Violated)
	assert.NoError(t, referee.Last())
	return counts
}

// TestMixes: while sidecars are rolled out, some old clients still talk to the server, others are behind sidecars, and Go members are at the
// bridge. No process starves: each gets 25 turns. With -mixes it runs all mixes, at stage legacy too, and prints the shares that
// docs/runbook.md sums up.
func TestMixes(t *testing.T) {
	const short, long = 20 * time.Millisecond, 100 * time.Millisecond
	if *mixes == 0 {
		for _, m := range []mix{{1, 2, 2, short}, {2, 1, 2, short}} {
			t.Run(m.String(), func(t *testing.T) {
				t.Parallel()
				got := m.play(t, stages.Bridge, time.Minute, 25)
				t.Log(got)
				assert.GreaterOrEqual(t, slices.Min(got), int64(25))
			})
		}
		return
	}
	var table strings.Builder
	for _, poll := range []time.Duration{short, long} {
		for _, m := range []mix{{1, 2, 2, poll}, {2, 1, 2, poll}, {1, 2, 0, poll}, {3, 1, 0, poll}, {2, 0, 2, poll}, {0, 2, 2, poll}} {
			legacy, bridge := m.play(t, stages.Legacy, *mixes, 0), m.play(t, stages.Bridge, *mixes, 0)
			fmt.Fprintf(&table, "%v: legacy %v, of an equal share %.2f; bridge %v, %.2f\n", m, legacy, m.of(legacy), bridge, m.of(bridge))
		}
	}
	t.Log("\n" + table.String())
}

// of is what each process got, of an equal share of the turns.
func (m mix) of(turns []int64) (got []float64) {
	all := int64(0)
	for _, n := range turns {
		all += n
	}
	share := float64(all) / float64(m.direct+m.behind+m.golang)
	for i := 0; i < len(turns); i++ {
		n := turns[i]
		if i >= m.direct && i < m.direct+2*m.behind {
			i++
			n += turns[i]
		}
		got = append(got, float64(n)/share)
	}
	return got
}
