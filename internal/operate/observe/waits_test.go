package observe

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waiter is a client of a tape that writes milliseconds and polls each 100 ms.
type waiter struct {
	addr, getset string // the connection of its GETSETs, where it is another one
	clock, lease time.Duration
}

// fleetTape plays a minute of turns on one key: clients that hold for up to a time, and wait for each other by the rules of jedis-lock.
func fleetTape(tp *tape, rng *rand.Rand, longest time.Duration, clients ...waiter) {
	now := func(w waiter) int64 { return int64(tp.at.Add(time.Millisecond+w.clock)) / 1e6 }
	var value int64 // on the key; 0: it is free
	holder := -1
	free := time.Duration(0) // when the holder leaves
	began := tp.at
	for tp.at.Sub(began) < time.Minute {
		for i, w := range clients {
			tp.wait(time.Duration(1+rng.IntN(200)) * 100 * time.Microsecond)
			if holder == i {
				if tp.at.Sub(began) >= free {
					tp.run(w.addr, "DEL", "lock:a")
					holder, value = -1, 0
				}
				continue
			}
			enters := func() {
				holder, free = i, tp.at.Sub(began)+time.Duration(rng.Int64N(int64(longest)))
			}
			mine := now(w) + int64(w.lease/time.Millisecond) + 1
			tp.run(w.addr, "SETNX", "lock:a", strconv.FormatInt(mine, 10))
			if value == 0 {
				value = mine
				enters()
				continue
			}
			tp.run(w.addr, "GET", "lock:a")
			if value < now(w) {
				addr := w.addr
				if w.getset != "" {
					addr = w.getset
				}
				tp.run(addr, "GETSET", "lock:a", strconv.FormatInt(mine, 10))
				value = mine
				enters()
			}
		}
		tp.wait(60 * time.Millisecond)
	}
}

// TestLeasesByWaiters: what waiters did bounds a lease that nobody writes down, whatever their clocks. The guess without it
// is 2 s for 1.65 s: all clocks agree with neither.
func TestLeasesByWaiters(t *testing.T) {
	const lease = 1650 * time.Millisecond
	ahead := func(i int, clock time.Duration) waiter {
		return waiter{fmt.Sprintf("10.0.0.%d:1", i), "", clock, lease}
	}
	for name, c := range map[string]struct {
		clients  []waiter
		longest  time.Duration
		from     string
		low      float64 // at least
		high     float64 // at most; 0: no bound
		leaseNot float64
	}{
		"takeovers":            {[]waiter{ahead(1, -650*time.Millisecond), ahead(2, 0), ahead(3, 200*time.Millisecond)}, 3 * time.Second, "bounded", 1600, 1700, 1000},
		"all clocks are ahead": {[]waiter{ahead(1, 5*time.Second), ahead(2, 5*time.Second), ahead(3, 5*time.Second)}, 3 * time.Second, "bounded", 1600, 1700, 6650},
		"nobody overruns":      {[]waiter{ahead(1, -650*time.Millisecond), ahead(2, 0), ahead(3, 0)}, 900 * time.Millisecond, "below", 1300, 0, 1000},
		"a pool":               {[]waiter{{"10.0.0.1:1", "10.0.0.1:2", 0, lease}, {"10.0.0.1:3", "10.0.0.1:4", 300 * time.Millisecond, lease}}, 3 * time.Second, "", 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tp := newTape(Options{})
			fleetTape(tp, rand.New(rand.NewPCG(1, 1)), c.longest, c.clients...)
			r := tp.report()
			for _, w := range c.clients {
				row := rowOf(t, r, w.addr)
				require.NotNil(t, row.LeaseMS)
				t.Logf("%s: lease %v from %s, between %v and %v; skew %v ±%v", w.addr, *row.LeaseMS, row.LeaseFrom, row.LeaseLeastMS, row.LeaseMostMS, *row.SkewMS, *row.SkewErrorMS)
				if c.from == "" {
					assert.NotEmpty(t, row.LeaseDoubt)
					continue
				}
				assert.Equal(t, "written", row.LeaseFrom)
				assert.Equal(t, c.from == "below", row.LeaseDoubt != "", row.LeaseDoubt)
				assert.LessOrEqual(t, row.LeaseLeastMS, ms(lease), "the truth lies within")
				assert.GreaterOrEqual(t, row.LeaseLeastMS, c.low)
				assert.GreaterOrEqual(t, *row.LeaseMS, row.LeaseLeastMS)
				assert.NotEqual(t, c.leaseNot, *row.LeaseMS)
				if c.high == 0 {
					continue
				}
				assert.GreaterOrEqual(t, row.LeaseMostMS, ms(lease))
				assert.LessOrEqual(t, row.LeaseMostMS, c.high)
				assert.InDelta(t, ms(w.clock), *row.SkewMS, (row.LeaseMostMS-row.LeaseLeastMS)/2+*row.SkewErrorMS+1)
			}
		})
	}
}

// TestLeasesThatDiffer: clients of one family with leases of their own are told apart where they wait for each other.
func TestLeasesThatDiffer(t *testing.T) {
	tp := newTape(Options{})
	clients := []waiter{{"10.0.0.1:1", "", 0, 1650 * time.Millisecond}, {"10.0.0.2:1", "", 0, 4 * time.Second}}
	fleetTape(tp, rand.New(rand.NewPCG(1, 1)), 5*time.Second, clients...)
	r := tp.report()
	for _, w := range clients {
		row := rowOf(t, r, w.addr)
		assert.InDelta(t, ms(w.lease), *row.LeaseMS, 20)
		assert.InDelta(t, 0, *row.SkewMS, 20)
		assert.Empty(t, row.LeaseDoubt)
	}
}

// Threads that share a connection interleave: the try of one comes between the GET and the GETSET of another, which has found the lease
// over long ago. Who waited is not known then.
func TestThreadsOnOneConnection(t *testing.T) {
	for name, between := range map[string]bool{"one after the other": false, "a try between": true} {
		tp := newTape(Options{})
		tp.run("10.0.0.1:1", "SETNX", "lock:a", tp.ms(30*time.Second))
		for range 5 {
			tp.wait(100 * time.Millisecond)
			tp.run("10.0.0.2:1", "SETNX", "lock:a", tp.ms(30*time.Second))
			tp.run("10.0.0.2:1", "GET", "lock:a")
		}
		tp.wait(40 * time.Second)
		first := tp.ms(30 * time.Second)
		tp.run("10.0.0.2:1", "SETNX", "lock:a", first)
		tp.run("10.0.0.2:1", "GET", "lock:a")
		if between {
			tp.run("10.0.0.2:1", "SETNX", "lock:a", tp.ms(30*time.Second+2*time.Millisecond))
			tp.run("10.0.0.2:1", "GET", "lock:a")
		}
		tp.run("10.0.0.2:1", "GETSET", "lock:a", first)
		tp.report()
		for w, s := range tp.o.leads {
			if w.client.addr == "10.0.0.2:1" {
				assert.Equal(t, between, s.clock.low == -forever, "%s: %+v", name, s.clock)
			}
		}
	}
}

// Bounds hold whatever leases, clocks, delays and holds are: the truth lies within, in each of many random fleets.
func TestLeasesByWaitersAtRandom(t *testing.T) {
	known := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		lease := time.Duration(600+rng.IntN(4000)) * time.Millisecond
		var clients []waiter
		for i := range 2 + rng.IntN(4) {
			clients = append(clients, waiter{fmt.Sprintf("10.0.0.%d:1", i), "", time.Duration(rng.IntN(3000)-1500) * time.Millisecond, lease})
		}
		tp := newTape(Options{})
		fleetTape(tp, rng, time.Duration(rng.Int64N(int64(2*lease))+1), clients...)
		row := rowOf(t, tp.report(), clients[0].addr)
		if row.LeaseDoubt != "" {
			continue
		}
		assert.False(t, row.LeaseVaries, "seed %d", seed)
		assert.LessOrEqual(t, row.LeaseLeastMS, ms(lease)+60, "seed %d", seed)
		assert.GreaterOrEqual(t, row.LeaseMostMS, ms(lease)-60, "seed %d", seed)
		if row.LeaseMostMS-row.LeaseLeastMS < 120 {
			known++
			assert.InDelta(t, ms(lease), *row.LeaseMS, 60, "seed %d", seed)
		}
	}
	t.Logf("known in %d of 60 fleets", known)
	assert.GreaterOrEqual(t, known, 20)
}
