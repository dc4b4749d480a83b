package sidecar

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

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
		addrs = append(addrs, p.line.Listen, p.line.Listen)
	}
	turns := make([]atomic.Int64, len(addrs)+m.golang)
	var inside, most, satisfied atomic.Int64
	began := time.Now().Add(2 * underWay)
	ctx, cancel := context.WithDeadline(t.Context(), began.Add(during))
	defer cancel()
	turn := func(i int) {
		most.Store(max(most.Load(), inside.Add(1)))
		time.Sleep(5 * time.Millisecond)
		inside.Add(-1)
		if time.Now().After(began) && turns[i].Add(1) == enough && satisfied.Add(1) == int64(len(turns)) {
			cancel()
		}
	}
	var working sync.WaitGroup
	for i, addr := range addrs {
		working.Go(func() {
			conn, err := redis.Dial("tcp", addr)
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			for ctx.Err() == nil {
				if jedis(conn, "lock:fleet", s.lease) {
					turn(i)
					_, err := conn.Do("DEL", "lock:fleet")
					assert.NoError(t, err)
				} else {
					time.Sleep(m.poll)
				}
			}
		})
	}
	for i := range m.golang {
		pool := &redis.Pool{MaxIdle: 4, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", s.server.Addr) }}
		t.Cleanup(func() { _ = pool.Close() })
		locker, err := compat.New(pool, compat.Options{Namespace: "orders", Lease: s.lease, TTL: 2 * time.Second})
		require.NoError(t, err)
		defer locker.Close()
		working.Go(func() {
			for ctx.Err() == nil {
				if lock, err := locker.Acquire(ctx, "lock:fleet"); err == nil {
					turn(len(addrs) + i)
					_ = lock.Release(context.WithoutCancel(ctx))
				}
			}
		})
	}
	working.Wait()
	assert.EqualValues(t, 1, most.Load(), redistest.Violated)
	counts := make([]int64, len(turns))
	for i := range turns {
		counts[i] = turns[i].Load()
	}
	return counts
}

// jedis is one attempt of jedis-lock.
func jedis(conn redis.Conn, key string, lease time.Duration) bool {
	expiry := strconv.FormatInt(time.Now().Add(lease).UnixMilli()+1, 10)
	if n, _ := redis.Int(conn.Do("SETNX", key, expiry)); n == 1 {
		return true
	}
	seen, _ := redis.String(conn.Do("GET", key))
	if ends, err := strconv.ParseInt(seen, 10, 64); err != nil || ends >= time.Now().UnixMilli() {
		return false
	}
	was, _ := redis.String(conn.Do("GETSET", key, expiry))
	return was == seen
}

// TestMixes: while sidecars are rolled out, some old clients still talk to the server, others are behind sidecars, and Go members are at the
// bridge. No process starves: each gets 25 turns. With -mixes it runs all mixes, at stage legacy too, and prints the shares that
// docs/runbook.md sums up.
func TestMixes(t *testing.T) {
	const short, long = 20 * time.Millisecond, 100 * time.Millisecond
	if *mixes == 0 {
		for _, m := range []mix{{1, 2, 2, short}, {2, 1, 2, short}} {
			got := m.play(t, stages.Bridge, time.Minute, 25)
			t.Log(m, got)
			assert.GreaterOrEqual(t, slices.Min(got), int64(25), m)
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
