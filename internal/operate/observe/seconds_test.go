package observe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// fleet plays clients of one dialect that lock for a while, each with a clock of its own.
type fleetClient struct {
	addr   string
	offset time.Duration
	turns  int
	fresh  bool // a connection for each lock
}

// value is what a client with this clock writes.
type value func(clock protocol.Instant, lease time.Duration) string

func floorSeconds(extra int64) value {
	return func(clock protocol.Instant, lease time.Duration) string {
		return strconv.FormatInt(int64(clock)/1e9+int64(lease/time.Second)+extra, 10)
	}
}

func roundSeconds(clock protocol.Instant, lease time.Duration) string {
	return strconv.FormatInt((int64(clock)+5e8)/1e9+int64(lease/time.Second)+1, 10)
}

// TestWholeSeconds: where clients write whole seconds, lease and skew are right within their own error bars,
// whatever clocks are wrong, whether the language cuts or rounds, with many samples and with one.
func TestWholeSeconds(t *testing.T) {
	const lease = 3 * time.Second
	s := time.Second
	float := func(clock protocol.Instant, lease time.Duration) string {
		return fmt.Sprintf("%.6f", float64(clock)/1e9+lease.Seconds()+1)
	}
	for name, c := range map[string]struct {
		writes  value
		expire  bool
		dialect string
		fleet   []fleetClient
	}{
		"one wrong clock of three":         {floorSeconds(1), false, "redis-doc", []fleetClient{{"1.1.1.1:1", 0, 40, false}, {"2.2.2.2:1", 0, 40, false}, {"3.3.3.3:1", 2 * s, 40, false}}},
		"one wrong clock of three, seldom": {floorSeconds(1), false, "redis-doc", []fleetClient{{"1.1.1.1:1", 0, 5, false}, {"2.2.2.2:1", 0, 5, false}, {"3.3.3.3:1", 7 * s, 5, false}}},
		"rounding":                         {roundSeconds, true, "redis-doc", []fleetClient{{"1.1.1.1:1", 0, 30, false}, {"2.2.2.2:1", 5 * s, 30, false}, {"3.3.3.3:1", 0, 30, false}}},
		"rounding, no EXPIRE":              {roundSeconds, false, "redis-doc", []fleetClient{{"1.1.1.1:1", 0, 30, false}, {"2.2.2.2:1", 0, 30, false}, {"3.3.3.3:1", -9 * s, 30, false}}},
		"retools":                          {float, true, "redis-objects", []fleetClient{{"1.1.1.1:1", 0, 20, false}, {"2.2.2.2:1", 4 * s, 20, false}, {"3.3.3.3:1", 0, 20, false}}},
		"redis-py 2.7, a connection each": {func(clock protocol.Instant, lease time.Duration) string { return floorSeconds(0)(clock, lease) + ".0" }, false, "redispy-float",
			[]fleetClient{{"1.1.1.1:1", 0, 20, true}, {"2.2.2.2:1", 0, 20, true}, {"3.3.3.3:1", 6 * s, 20, true}}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				rng := rand.New(rand.NewPCG(seed, 7))
				tp := newTape(Options{})
				truth := map[string]time.Duration{}
				port := 1
				for turn := range 40 {
					for _, f := range c.fleet {
						if turn >= f.turns {
							continue
						}
						addr := f.addr
						if f.fresh {
							port++
							addr = strings.TrimSuffix(addr, "1") + strconv.Itoa(port)
						}
						truth[addr] = f.offset
						tp.wait(time.Duration(rng.Int64N(int64(2 * s))))
						now := tp.at.Add(time.Millisecond - time.Duration(rng.Int64N(int64(400*time.Microsecond))))
						tp.run(addr, "SETNX", "lock:x", c.writes(now.Add(f.offset), lease))
						if c.expire {
							tp.run(addr, "EXPIRE", "lock:x", "3")
						}
						tp.wait(5 * time.Millisecond)
						if c.dialect == "redispy-float" {
							tp.run(addr, "GET", "lock:x")
						}
						tp.run(addr, "DEL", "lock:x")
					}
				}
				r := tp.report()
				require.NotEmpty(t, r.Clients)
				for _, row := range r.Clients {
					assert.Equal(t, c.dialect, row.Dialect)
					require.NotNil(t, row.LeaseMS)
					require.NotNil(t, row.SkewMS)
					assert.EqualValues(t, 3000, *row.LeaseMS, "seed %d, %s", seed, row.LeaseFrom)
					off := math.Abs(*row.SkewMS - float64(truth[row.Addr]/time.Millisecond))
					assert.LessOrEqual(t, off, *row.SkewErrorMS, "seed %d: %s is said to be %v ± %v ms off, the truth is %v", seed, row.Addr, *row.SkewMS, *row.SkewErrorMS, truth[row.Addr])
					assert.LessOrEqual(t, *row.SkewErrorMS, 1100.0, "an error bar that says something")
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

// TestWholeSecondsAtRandom: fleets of three to six clients, less than half of them with a wrong clock, a lease from
// a second to an hour, one value each or many, some held up on their way. Of the leases one in a hundred may be
// wrong, of the error bars one in two hundred.
func TestWholeSecondsAtRandom(t *testing.T) {
	s := time.Second
	bad, total, badLease, fleets := 0, 0, 0, 0
	for seed := range uint64(600) {
		rng := rand.New(rand.NewPCG(seed, 11))
		n := 3 + rng.IntN(4)
		wrong := rng.IntN((n-1)/2 + 1)
		lease := []time.Duration{1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 3600}[rng.IntN(13)] * s
		var w value
		switch rng.IntN(3) {
		case 0:
			w = floorSeconds(1)
		case 1:
			w = roundSeconds
		default:
			w = func(c protocol.Instant, l time.Duration) string { return floorSeconds(0)(c, l) + ".0" }
		}
		tp := newTape(Options{})
		off := map[string]time.Duration{}
		turns := 1 + rng.IntN(30)
		for i := range n {
			addr := fmt.Sprintf("10.0.0.%d:1", i)
			if i < wrong {
				off[addr] = time.Duration(rng.Int64N(int64(60*s))) - 30*s
			} else {
				off[addr] = time.Duration(rng.Int64N(int64(10 * time.Millisecond)))
			}
		}
		for range turns {
			for i := range n {
				addr := fmt.Sprintf("10.0.0.%d:1", i)
				tp.wait(time.Duration(rng.Int64N(int64(2 * s))))
				d := time.Duration(rng.Int64N(int64(2 * time.Millisecond)))
				if rng.IntN(20) == 0 {
					d = time.Duration(rng.Int64N(int64(200 * time.Millisecond)))
				}
				tp.run(addr, "SETNX", "lock:x", w(tp.at.Add(time.Millisecond-d+off[addr]), lease))
				tp.wait(time.Millisecond)
				tp.run(addr, "GET", "lock:x")
				tp.run(addr, "DEL", "lock:x")
			}
		}
		r := tp.report()
		fleets++
		lb := false
		for _, row := range r.Clients {
			total++
			if *row.LeaseMS != ms(lease) {
				lb = true
			}
			if math.Abs(*row.SkewMS-ms(off[row.Addr])) > *row.SkewErrorMS {
				bad++
			}
		}
		if lb {
			badLease++
		}
	}
	t.Logf("of %d error bars %d do not hold; of %d leases %d are wrong", total, bad, fleets, badLease)
	assert.LessOrEqual(t, 200*bad, total)
	assert.LessOrEqual(t, 100*badLease, fleets)
}
