package observe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// TestWholeSecondsAtRandom: where clients write whole seconds, lease and skew are right within their own error bars, whether the language cuts or
// rounds, and whether a TTL follows: fleets of three to six clients, less than half of them with a wrong clock, a lease from a second to an
// hour, one value each or many, over one connection or one for each lock, some held up on their way. Of the leases one in a hundred may
// be wrong, of the error bars one in two hundred. The dialect never is.
func TestWholeSecondsAtRandom(t *testing.T) {
	s := time.Second
	bad, total, badLease, fleets := 0, 0, 0, 0
	for seed := range uint64(600) {
		rng := rand.New(rand.NewPCG(seed, 11))
		n := 3 + rng.IntN(4)
		wrong := rng.IntN((n-1)/2 + 1)
		lease := []time.Duration{1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 3600}[rng.IntN(13)] * s
		dialect, extra, round, fraction := "redis-doc", int64(1), int64(0), ""
		switch rng.IntN(3) {
		case 0:
		case 1:
			round = 5e8
		default:
			dialect, extra, fraction = "redispy-float", 0, ".0"
		}
		written := func(clock protocol.Instant) string {
			return fmt.Sprint((int64(clock)+round)/1e9+int64(lease/s)+extra, fraction)
		}
		fresh, expire := seed%5 == 1, seed%5 == 2 && dialect == "redis-doc"
		tp := newTape(Options{})
		off := map[string]time.Duration{} // by host
		turns := 1 + rng.IntN(30)
		for i := range n {
			addr := fmt.Sprintf("10.0.0.%d", i)
			if i < wrong {
				off[addr] = time.Duration(rng.Int64N(int64(60*s))) - 30*s
			} else {
				off[addr] = time.Duration(rng.Int64N(int64(10 * time.Millisecond)))
			}
		}
		for turn := range turns {
			for i := range n {
				host := fmt.Sprintf("10.0.0.%d", i)
				addr := host + ":1"
				if fresh {
					addr = fmt.Sprintf("%s:%d", host, 1+turn)
				}
				tp.wait(time.Duration(rng.Int64N(int64(2 * s))))
				d := time.Duration(rng.Int64N(int64(2 * time.Millisecond)))
				if rng.IntN(20) == 0 {
					d = time.Duration(rng.Int64N(int64(200 * time.Millisecond)))
				}
				tp.run(addr, "SETNX", "lock:x", written(tp.at.Add(time.Millisecond-d+off[host])))
				if expire {
					tp.run(addr, "EXPIRE", "lock:x", fmt.Sprint(int64(lease/s)))
				}
				tp.wait(time.Millisecond)
				tp.run(addr, "GET", "lock:x")
				tp.run(addr, "DEL", "lock:x")
			}
		}
		fleets++
		wrongLease := 0
		for _, row := range tp.report().Clients {
			total++
			assert.Equal(t, dialect, row.Dialect, "seed %d", seed)
			if row.LeaseMS != ms(lease) {
				wrongLease = 1
			}
			if math.Abs(*row.SkewMS-ms(off[row.Host])) > *row.SkewErrorMS {
				bad++
			}
		}
		badLease += wrongLease
	}
	t.Logf("of %d error bars %d do not hold; of %d leases %d are wrong", total, bad, fleets, badLease)
	assert.LessOrEqual(t, 200*bad, total)
	assert.LessOrEqual(t, 100*badLease, fleets)
}

// TestProfileOfDrift wants the drift of a clock that runs 200 ppm fast, within its error.
func TestProfileOfDrift(t *testing.T) {
	tp := newTape(Options{Lease: 10 * time.Second})
	for n := range time.Duration(600) {
		for i, ppm := range []time.Duration{0, 200} {
			at := n * time.Second
			tp.at = epoch.Add(at + 20*time.Millisecond*time.Duration(i))
			tp.turn(fmt.Sprintf("10.0.0.%d:1", i+1), fmt.Sprint("lock:", i), 10*time.Second, at*ppm/1_000_000, (n*7+time.Duration(i))%3*time.Millisecond)
		}
	}
	tp.report()
	p := tp.o.Profile()
	require.Len(t, p.Clients, 2)
	for _, c := range p.Clients {
		want := 0.0
		if c.Name == "10.0.0.2:1" {
			want = 200
		}
		ppm, off, known := c.Drift()
		t.Log(c.Name, ppm, off, c.Clock)
		assert.True(t, known)
		assert.InDelta(t, want, ppm, off)
		assert.Less(t, off, 150.0)
	}
}
