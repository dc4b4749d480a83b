package observe

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// varied plays a fleet for some minutes. Each client locks a key of its own each few seconds, with a lease that is drawn for it, and some commands are long on
// their way. It returns the shortest lease of each client.
func varied(tp *tape, rng *rand.Rand, clocks []time.Duration, lease func(client int) time.Duration, stalls time.Duration) (shortest map[string]time.Duration) {
	shortest = map[string]time.Duration{}
	for range 120 {
		for i, clock := range clocks {
			addr := fmt.Sprintf("10.0.0.%d:1", i+1)
			l := lease(i).Truncate(time.Millisecond)
			if before, seen := shortest[addr]; !seen || l < before {
				shortest[addr] = l
			}
			delay := time.Duration(rng.Int64N(int64(2 * time.Millisecond)))
			if stalls > 0 && rng.IntN(60) == 0 {
				delay = time.Duration(rng.Int64N(int64(stalls)))
			}
			tp.turn(addr, fmt.Sprint("lock:order:", i), l, clock, delay)
			tp.wait(time.Duration(rng.Int64N(int64(time.Second))))
		}
	}
	return shortest
}

// TestLeasesThatVary: of fleets with leases from 5 to 30 s the record never takes a longer one than the shortest, whoever draws the leases and how. Where most
// clocks are right it takes one, and says from which to which they vary; else it says that it cannot tell.
func TestLeasesThatVary(t *testing.T) {
	from := []time.Duration{5 * time.Second, 8 * time.Second, 13 * time.Second, 21 * time.Second, 30 * time.Second}
	fleets := map[string]struct {
		known bool // not in doubt
		draw  func(rng *rand.Rand) func(client int) time.Duration
	}{
		"each lock takes one of five": {true, func(rng *rand.Rand) func(int) time.Duration {
			return func(int) time.Duration { return from[rng.IntN(len(from))] }
		}},
		"each lock takes any": {true, func(rng *rand.Rand) func(int) time.Duration {
			return func(int) time.Duration { return 5*time.Second + time.Duration(rng.Int64N(int64(25*time.Second))) }
		}},
		"one in thirty is short": {true, func(rng *rand.Rand) func(int) time.Duration {
			return func(int) time.Duration {
				if rng.IntN(30) == 0 {
					return 5 * time.Second
				}
				return 30 * time.Second
			}
		}},
		"each client has one of five": {false, func(rng *rand.Rand) func(int) time.Duration {
			first := rng.IntN(len(from))
			return func(client int) time.Duration { return from[(client+first)%len(from)] }
		}},
		"each client has any": {false, func(rng *rand.Rand) func(int) time.Duration {
			own := map[int]time.Duration{}
			return func(client int) time.Duration {
				if own[client] == 0 {
					own[client] = 5*time.Second + time.Duration(rng.Int64N(int64(25*time.Second)))
				}
				return own[client]
			}
		}},
	}
	for name, f := range fleets {
		t.Run(name, func(t *testing.T) {
			told := 0
			for seed := range uint64(30) {
				rng := rand.New(rand.NewPCG(seed, 3))
				clocks := []time.Duration{0, 0, 0, 0, time.Duration(rng.Int64N(int64(20*time.Second))) - 10*time.Second}
				tp := newTape(Options{})
				shortest := varied(tp, rng, clocks, f.draw(rng), 0)
				least := time.Hour
				r := tp.report()
				for addr, true := range shortest {
					row := rowOf(t, r, addr)
					least = min(least, true)
					if row.LeaseDoubt == "" {
						assert.LessOrEqual(t, 0.9*row.LeaseLeastMS, ms(true), "seed %d: %s: %s", seed, addr, leaseOfRow(row))
					}
				}
				old, err := tp.o.Profile().OldClients()
				if err == nil {
					told++
					assert.LessOrEqual(t, old.Shortest, least, "seed %d: %v", seed, old.Why)
					assert.GreaterOrEqual(t, old.Shortest, least/4, "seed %d: %v", seed, old.Why)
				} else {
					assert.ErrorContains(t, err, "the lease of", "seed %d", seed)
				}
				assert.Equal(t, f.known, rowOf(t, r, "10.0.0.1:1").LeaseVaries, "seed %d: %s", seed, leaseOfRow(rowOf(t, r, "10.0.0.1:1")))
				if t.Failed() {
					return
				}
			}
			t.Logf("told in %d of 30", told)
			if f.known {
				assert.GreaterOrEqual(t, told, 20, "a clock may be off by what makes its lease a round one")
			} else {
				assert.Zero(t, told)
			}
		})
	}
}

func leaseOfRow(r Row) string {
	return fmt.Sprintf("%v, %v to %v, varies %v, %s", r.LeaseMS, r.LeaseLeastMS, r.LeaseMostMS, r.LeaseVaries, r.LeaseDoubt)
}

// TestStallsAreNoLeases: a client whose commands are now and then long on their way has one lease, and the record loses little by it.
func TestStallsAreNoLeases(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 4))
		tp := newTape(Options{})
		varied(tp, rng, []time.Duration{0, 0, 3300 * time.Millisecond}, func(int) time.Duration { return 30 * time.Second }, 2*time.Second)
		r := tp.report()
		for i := range 3 {
			row := rowOf(t, r, fmt.Sprintf("10.0.0.%d:1", i+1))
			assert.False(t, row.LeaseVaries, "seed %d: %s", seed, leaseOfRow(row))
			assert.EqualValues(t, 30_000, row.LeaseMS)
			assert.Empty(t, row.LeaseDoubt)
		}
		old, err := tp.o.Profile().OldClients()
		require.NoError(t, err)
		assert.Equal(t, 27*time.Second, old.Shortest)
	}
}
