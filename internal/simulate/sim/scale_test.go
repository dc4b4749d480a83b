package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// smallFleet is 40 clients of a service on 20 keys of 4 masters, so that they meet. A client takes a lock about once a second, and crashes.
func smallFleet(scheme model.Scheme) *Fleet {
	f := &Fleet{Until: 30 * time.Second, Masters: 4, Network: legacyFleet(1).Network}
	for i := range 40 {
		c := Client{
			Member: model.Member{
				Name: fmt.Sprint("s-", i), Scheme: scheme, Dialect: protocol.JedisMS,
				Lease: 30 * time.Second, Poll: 100 * time.Millisecond, Patience: time.Hour,
			},
			Keys:  []KeySet{{Prefix: "order-0:", Count: 20}},
			Hold:  Uniform(5*time.Millisecond, 100*time.Millisecond),
			Think: Uniform(500*time.Millisecond, 1400*time.Millisecond),
			First: Uniform(0, time.Second),
			Chaos: Chaos{CrashEvery: Uniform(5*time.Second, 20*time.Second), Restart: Fixed(time.Second)},
		}
		if !scheme.Old() {
			c.Queue, c.Member.Fence, c.Renew, c.Settle, c.Grace, c.Yield = true, "fence", 10*time.Second, 50*time.Millisecond, time.Second, 300*time.Millisecond
		}
		f.Clients = append(f.Clients, c)
	}
	return f
}

func TestAnyNumberOfWorkersIsOneResult(t *testing.T) {
	for _, scheme := range []model.Scheme{model.Legacy, model.Bridge, model.Modern, model.Sidecar} {
		f := smallFleet(scheme)
		var results [3]Played
		for i, workers := range []int{1, 2, 5} {
			p := Parallel{Workers: workers}
			results[i] = p.Run(f, 7, 3)
		}
		require.Equal(t, results[0], results[1], scheme)
		require.Equal(t, results[0], results[2], scheme)
		require.Equal(t, new(World).Run(f, 7).Tally, func() Tally { p := new(Parallel).Run(f, 7, 1); s := p.Sum(); return s.Tally }(), scheme)
		sum := results[0].Sum()
		require.Greater(t, sum.Acquisitions, int64(1000), scheme)
		require.Greater(t, sum.LongestWait, 30*time.Millisecond, "nobody met: the fleet says nothing about exclusion")
	}
}

// Clients that share keys share them on every master; those that do not never meet, whatever their clocks say.
func TestKeysAreShared(t *testing.T) {
	f := smallFleet(model.Legacy)
	for i := range f.Clients {
		f.Clients[i].Chaos = Chaos{}
	}
	f.Clients[3].Offset = time.Minute
	pairs := 0
	p := Parallel{Overlap: func(int, int) { pairs++ }}
	p.Run(f, 1, 5)
	require.Positive(t, pairs, "a clock ahead by two leases breaks the lock")

	for i := range f.Clients {
		f.Clients[i].Keys = []KeySet{{Prefix: fmt.Sprint("own-", i, ":"), Count: 20}}
	}
	pairs = 0
	p.Run(f, 1, 5)
	require.Zero(t, pairs, "each has keys of its own")
}

// A client with keys on several masters takes as many turns as the same client with one.
func TestMastersKeepTheRate(t *testing.T) {
	f := smallFleet(model.Modern)
	f.Until = 2 * time.Minute
	for i := range f.Clients {
		f.Clients[i].Chaos = Chaos{}
		f.Clients[i].Keys[0].Count = 200
	}
	one := new(Parallel).Run(f, 1, 1)
	f.Masters = 0
	all := new(Parallel).Run(f, 1, 1)
	require.InEpsilon(t, all.Sum().Turns, one.Sum().Turns, 0.05)
	for _, m := range one.Masters {
		require.InEpsilon(t, float64(one.Sum().Turns)/4, m.Turns, 0.25, "each master has about a quarter of the keys")
	}
}

// What befalls a process befalls it on all masters at the same time.
func TestACrashIsEverywhere(t *testing.T) {
	f := smallFleet(model.Legacy)
	crashes := map[int32]map[protocol.Instant]int{}
	w := World{Trace: func(r *Record) {
		if r.Kind == Strikes {
			if crashes[r.Client] == nil {
				crashes[r.Client] = map[protocol.Instant]int{}
			}
			crashes[r.Client][r.At]++
		}
	}}
	w.Run(f, 1)
	require.Len(t, crashes, 40)
	for client, times := range crashes {
		for at, n := range times {
			require.Equal(t, 4, n, "client %d at %v", client, at)
		}
	}
}
