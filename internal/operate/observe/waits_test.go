package observe

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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

// TestLeasesThatDiffer: clients of one family with leases of their own are told apart where they wait for each other.
func TestLeasesThatDiffer(t *testing.T) {
	tp := newTape(Options{})
	clients := []waiter{{"10.0.0.1:1", "", 0, 1650 * time.Millisecond}, {"10.0.0.2:1", "", 0, 4 * time.Second}}
	fleetTape(tp, rand.New(rand.NewPCG(1, 1)), 5*time.Second, clients...)
	r := tp.report()
	for _, w := range clients {
		row := rowOf(t, r, w.addr)
		assert.InDelta(t, ms(w.lease), row.LeaseMS, 20)
		assert.InDelta(t, 0, *row.SkewMS, 20)
		assert.Empty(t, row.LeaseDoubt)
	}
}

// TestLeasesByWaitersAtRandom: what waiters did bounds a lease that nobody writes down. The truth lies within, whatever leases, clocks, delays and holds are: also where
// all clocks are ahead alike. So it is where nobody overruns, and with a pool that looks over one connection and takes over by another.
func TestLeasesByWaitersAtRandom(t *testing.T) {
	known := map[string]int{}
	for seed := range uint64(160) {
		kind := []string{"any", "all ahead", "nobody overruns", "a pool"}[seed%4]
		rng := rand.New(rand.NewPCG(seed, 5))
		lease := time.Duration(600+rng.IntN(4000)) * time.Millisecond
		longest := time.Duration(rng.Int64N(int64(2*lease)) + 1)
		var clients []waiter
		for i := range 2 + rng.IntN(4) {
			w := waiter{fmt.Sprintf("10.0.0.%d:1", i), "", time.Duration(rng.IntN(3000)-1500) * time.Millisecond, lease}
			switch kind {
			case "all ahead":
				w.clock, longest = 5*time.Second, 2*lease
			case "nobody overruns":
				w.clock, longest = 0, lease/3
			case "a pool":
				w.addr, w.getset, longest = fmt.Sprintf("10.0.0.1:%d", 2*i), fmt.Sprintf("10.0.0.1:%d", 2*i+1), 2*lease
			}
			clients = append(clients, w)
		}
		tp := newTape(Options{})
		fleetTape(tp, rng, longest, clients...)
		row := rowOf(t, tp.report(), clients[0].addr)
		if row.LeaseDoubt != "" {
			continue
		}
		assert.False(t, row.LeaseVaries, "seed %d", seed)
		assert.LessOrEqual(t, row.LeaseLeastMS, ms(lease)+60, "seed %d", seed)
		assert.GreaterOrEqual(t, row.LeaseMostMS, ms(lease)-60, "seed %d", seed)
		if row.LeaseMostMS-row.LeaseLeastMS < 120 {
			known[kind]++
			assert.InDelta(t, ms(lease), row.LeaseMS, 60, "seed %d", seed)
			assert.InDelta(t, ms(clients[0].clock), *row.SkewMS, 61+*row.SkewErrorMS, "seed %d", seed)
		}
	}
	t.Log("known of 40 fleets each:", known)
	assert.GreaterOrEqual(t, known["any"], 13)
	assert.GreaterOrEqual(t, known["all ahead"], 20)
}
