package observe_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
)

// watch observes a server while work runs.
func watch(t *testing.T, s *redistest.Server, opts observe.Options, work func()) observe.Report {
	t.Helper()
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	w, err := observe.StartMasters(ctx, end, opts, observe.Limits{Load: 10})
	require.NoError(t, err)
	work()
	for last := int64(-1); last != w.Cost().Commands; time.Sleep(50 * time.Millisecond) { // until the stream has caught up with the server
		last = w.Cost().Commands
	}
	stop()
	require.ErrorIs(t, w.Wait(), context.Canceled)
	return w.Report()
}

// turns lets holders take turns until each has had n.
func turns(t *testing.T, key string, n, hold int, all ...*holders.Holder) {
	t.Helper()
	for _, h := range all {
		h.Send("turns %s %s:referee %d %d", key, key, n, hold)
	}
	deadline := time.After(90 * time.Second)
	for _, h := range all {
		for done := false; !done; {
			select {
			case e := <-h.Events():
				done = e.Event == "done"
			case <-deadline:
				t.Fatalf("%v has not finished", h)
			}
		}
	}
}

// TestClocksOfRealHolders starts the real holders with clocks set off by up to 90 s and wants each offset
// within its error bar, and dialect and lease as they were started.
func TestClocksOfRealHolders(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Java, redistest.Python)
	offsets := []time.Duration{-90 * time.Second, -5 * time.Second, 0, 5 * time.Second, 90 * time.Second}
	by := func(off time.Duration) holders.Option { return holders.Arg("clock", off) }
	for _, c := range []struct {
		dialect      string
		kind         holders.Kind
		lease, given time.Duration
		clock        func(off time.Duration) holders.Option
	}{
		{"jedis-ms", holders.JedisLock, 30 * time.Second, 0, func(off time.Duration) holders.Option { return holders.Clock(t, off) }},
		{"redispy-float", holders.RedisPy, 20 * time.Second, 20 * time.Second, by},
		{"jedis-uuid", holders.JedisUUID, time.Minute, 0, by},
	} {
		t.Run(c.dialect, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			var fleet []*holders.Holder
			for _, off := range offsets {
				fleet = append(fleet, holders.Start(t, c.kind, s.URL(), holders.Arg("lease", c.lease), holders.Arg("wait", time.Minute), c.clock(off)))
			}
			report := watch(t, s, observe.Options{Lease: c.given}, func() {
				turns(t, "lock:orders:0", 8, 2, fleet...)
				for i, h := range fleet { // and some without a crowd: a delayed value says little
					turns(t, fmt.Sprint("lock:orders:", i+1), 20, 0, h)
				}
			})
			var found []float64
			for _, row := range report.Clients {
				t.Logf("%s %s lease %v (%s) poll %v skew %v ±%v, %d acquired", row.Addr, row.Dialect, row.LeaseMS, row.LeaseFrom, row.PollMS, value(row.SkewMS), value(row.SkewErrorMS), row.Acquired)
				assert.Equal(t, observe.Legacy, row.Kind)
				assert.Equal(t, c.dialect, row.Dialect)
				assert.Equal(t, c.lease.Seconds()*1000, row.LeaseMS)
				found = append(found, value(row.SkewMS))
				assert.GreaterOrEqual(t, 2*value(row.SkewErrorMS)+2, distance(value(row.SkewMS), offsets), "the error bar is honest")
			}
			require.Len(t, found, len(offsets))
			for _, off := range offsets {
				assert.Less(t, distance(ms(off), nil, found...), 1000.0, "offset %v is found in %v; how exactly, the error bar says", off, found)
			}
			t.Log("hazards", report.Hazards, "overlaps", report.OverlapCount)
		})
	}
}

func distance(x float64, offsets []time.Duration, others ...float64) float64 {
	for _, o := range offsets {
		others = append(others, ms(o))
	}
	best := math.Inf(1)
	for _, o := range others {
		best = min(best, math.Abs(x-o))
	}
	return best
}

func value(p *float64) float64 {
	if p == nil {
		return math.NaN()
	}
	return *p
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// TestLeaseOfRealWaiters: a lease that nobody writes down is found, and clocks with it, where holders overrun it and others wait.
func TestLeaseOfRealWaiters(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Python)
	t.Parallel()
	s := redistest.Real(t)
	lease, clocks := 1650*time.Millisecond, []time.Duration{300 * time.Millisecond, -350 * time.Millisecond}
	var all []*holders.Holder
	for _, clock := range clocks {
		all = append(all, holders.Start(t, holders.RedisPy, s.URL(), holders.Arg("lease", lease), holders.Arg("wait", time.Minute), holders.Arg("clock", clock)))
	}
	heard := func(h *holders.Holder, want string) {
		select {
		case e := <-h.Events():
			require.Equal(t, want, e.Event, "%+v", e)
		case <-time.After(30 * time.Second):
			t.Fatalf("%v is silent", h)
		}
	}
	report := watch(t, s, observe.Options{}, func() {
		for round := range 4 {
			first, second := all[round%2], all[1-round%2]
			first.Send("acquire lock:x")
			heard(first, "acquired")
			second.Send("acquire lock:x")
			heard(second, "acquired") // when the lease is over by its clock
			second.Send("release lock:x")
			heard(second, "released")
			first.Send("release lock:x")
			<-first.Events() // released, or not: it has lost the lock
		}
	})
	require.Len(t, report.Clients, 2)
	for _, row := range report.Clients {
		t.Logf("lease %v from %s, between %v and %v; skew %v ±%v", row.LeaseMS, row.LeaseFrom, row.LeaseLeastMS, row.LeaseMostMS, value(row.SkewMS), value(row.SkewErrorMS))
		assert.Positive(t, row.LeaseLeastMS)
		assert.LessOrEqual(t, row.LeaseLeastMS, ms(lease))
		assert.GreaterOrEqual(t, row.LeaseMostMS, ms(lease))
		assert.GreaterOrEqual(t, row.LeaseMS, row.LeaseLeastMS)
		assert.LessOrEqual(t, row.LeaseMS, row.LeaseMostMS)
		within := row.LeaseMostMS - row.LeaseLeastMS
		assert.LessOrEqual(t, distance(value(row.SkewMS), clocks), within+2*value(row.SkewErrorMS)+2)
	}
}

// TestCleanRun lets fleets of every kind work as they should and wants nothing reported.
//
// Two of the dialects do not always, where they wait for each other: one that takes a vanished key for an expired one sends GETSET when the holder
// releases between its SETNX and its GET, and clobbers whoever comes in before that. So these two come one after the other; package legacy's
// lockers wait for each other in TestOwnKinds, and two of jedis-uuid in testdata/rows.txt.
func TestCleanRun(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Java, redistest.Python)
	t.Parallel()
	s := redistest.Real(t)
	lease, wait := holders.Arg("lease", 30*time.Second), holders.Arg("wait", time.Minute)
	report := watch(t, s, observe.Options{}, func() {
		turns(t, "lock:a", 8, 2, holders.Start(t, holders.JedisLock, s.URL(), lease, wait))
		turns(t, "lock:a", 8, 2, holders.Start(t, holders.Article, s.URL(), lease, wait))
		turns(t, "lock:b", 8, 2, holders.Start(t, holders.JedisUUID, s.URL(), lease, wait))
		turns(t, "lock:b", 8, 2, holders.Start(t, holders.JedisUUID, s.URL(), lease, wait))
		turns(t, "lock:c", 8, 2, holders.Start(t, holders.RedisPy, s.URL(), lease), holders.Start(t, holders.RedisPy, s.URL(), lease))
		turns(t, "lock:d", 4, 2, holders.Start(t, holders.SetNXPX, s.URL(), lease, wait, holders.Arg("poll", 20)), holders.Start(t, holders.PySetNXPX, s.URL(), lease, wait, holders.Arg("poll", 20)))
		turns(t, "lock:e", 4, 2, holders.Start(t, holders.Redisson, s.URL()), holders.Start(t, holders.Redisson, s.URL()))
		turns(t, "lock:f", 4, 2, holders.Start(t, holders.SetNXUUID, s.URL(), wait), holders.Start(t, holders.SetNXUUID, s.URL(), wait))
	})
	kinds := map[string]int64{}
	for _, row := range report.Clients {
		t.Logf("%s %s %s lease %v poll %v skew %v acquired %d released %d hold %v wait %v", row.Addr, row.Kind, row.Dialect, row.LeaseMS, row.PollMS, value(row.SkewMS), row.Acquired, row.Released, row.HoldP50MS, row.WaitP50MS)
		kinds[row.Kind+" "+row.Dialect] += row.Acquired
	}
	assert.Empty(t, report.Hazards)
	assert.Empty(t, report.Overlaps)
	assert.True(t, report.Complete)
	assert.Equal(t, map[string]int64{
		"legacy jedis-ms": 16, "legacy jedis-uuid": 16, "legacy redispy-float": 16, "modern set-nx-px": 8, "redisson redisson": 8, "legacy setnx-uuid": 8,
	}, kinds)
}
