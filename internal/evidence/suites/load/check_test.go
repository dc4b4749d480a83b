package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/load"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// habits are those of the clients that are run.
type habits struct {
	name              string
	clients, keys     int
	holdFor, thinkFor time.Duration
}

// In the first fleet clients wait for each other. The second keeps the server as busy as this machine can: what a command
// costs a server that has time is more, because it wakes for each.
var (
	contended = habits{"clients that wait for each other", 60, 40, 20 * time.Millisecond, 100 * time.Millisecond}
	busy      = habits{"as fast as they can", 60, 20_000, time.Millisecond, time.Millisecond}
	// No cost is measured on fleets like these.
	crowded = habits{"most of them wait", 30, 5, 30 * time.Millisecond, 60 * time.Millisecond}
	sparse  = habits{"few of them wait", 80, 400, 25 * time.Millisecond, 250 * time.Millisecond}
)

const lease = 30 * time.Second

// TestPredictedIsMeasured runs fleets on a real server in the stages legacy and bridge, and compares what the server counted
// with the forecast. A busy machine makes all turns slower, so figures are compared for each lock taken.
func TestPredictedIsMeasured(t *testing.T) {
	runFor := 3 * time.Second
	if *measure {
		runFor = 6 * time.Second
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Predicted / measured, on one server for %v.\n\n", runFor)
	fmt.Fprintf(&b, "| fleet | stage | locks/s | commands/s | commands a lock | processor time a lock | connections | memory |\n|---|---|---|---|---|---|---|---|\n")
	for _, h := range []habits{contended, busy, crowded, sparse} {
		report, err := load.Forecast(h.fleet(runFor+time.Second), load.Options{Factors: []int{1}})
		require.NoError(t, err)
		for _, name := range []string{"legacy", "bridge"} {
			row := rowOf(t, report, name)
			got := h.run(t, name, runFor)
			u, perLock, wantPerLock := row.Server, got.commands/got.acquired, row.Server.Commands/row.Acquired
			cpu, wantCPU := 1e6*got.cpu/got.acquired, 1e6*u.CPU/row.Acquired
			fmt.Fprintf(&b, "| %d on %d keys, %s | %s | %.0f / %.0f | %.0f / %.0f | %.2f / %.2f | %.0f / %.0f µs | %d / %d | %.0f / %.0f KiB |\n", h.clients, h.keys, h.name, name,
				row.Acquired, got.acquired, u.Commands, got.commands, wantPerLock, perLock, wantCPU, cpu, u.Connections, got.connections, u.Memory/1024, got.memory/1024)
			if got.acquired < row.Acquired/3 {
				t.Logf("%s, %s: the machine was too busy for %.0f locks a second, so this says nothing", h.name, name, row.Acquired)
				continue
			}
			off := 0.15
			if h == crowded { // where a queue is long, each look of a waiter finds something else
				off = 0.22
			}
			assert.InEpsilon(t, wantPerLock, perLock, off, "%s, %s: commands a lock", h.name, name)
			if h == busy || h == sparse {
				// A member that never waits has fewer connections. A server that the machine leaves idle wakes for each command.
				assert.LessOrEqual(t, float64(got.connections), 1.15*float64(u.Connections), "%s: connections", name)
				if h == busy {
					assert.True(t, cpu/wantCPU > 0.4 && cpu/wantCPU < 2.5, "%s: a lock took %.0f µs of the processor, predicted were %.0f", name, cpu, wantCPU)
				}
				continue
			}
			assert.InEpsilon(t, u.Connections, got.connections, 0.15, "%s: connections", name)
			assert.InEpsilon(t, u.Memory, got.memory, 0.25, "%s: memory", name)
			assert.InDelta(t, 1, got.acquired/row.Acquired, 0.6, "%s: locks a second", name)
		}
	}
	t.Log("\n" + b.String())
	if *measure {
		redistest.Section(t, "../../../../docs/scale.md", "check", checkCommand, b.String(), true)
	}
}

const checkCommand = "LOCKMIGRATE_SUITES=redis go test ./internal/evidence/suites/load -run TestPredicted -measure"

func rowOf(t *testing.T, r *load.Report, stage string) load.Row {
	for _, s := range r.Stages {
		if s.Name == stage {
			return s.Rows[0]
		}
	}
	t.Fatal("no stage ", stage)
	return load.Row{}
}

// fleet is played for as long as the real one runs: both begin with an empty server, where nothing is noted about gaps yet.
func (h habits) fleet(until time.Duration) *sim.Fleet {
	near := sim.Spread(50*time.Microsecond, 150*time.Microsecond, time.Millisecond, 5*time.Millisecond)
	f := &sim.Fleet{Until: until, Network: sim.Network{Request: near, Reply: near, Timeout: time.Second}}
	for i := range h.clients {
		f.Clients = append(f.Clients, sim.Client{
			Member: legacyMember(i), Keys: []sim.KeySet{{Prefix: "key-", Count: h.keys}},
			Hold: sim.Uniform(h.holdFor/2, h.holdFor*3/2), Think: sim.Uniform(h.thinkFor/2, h.thinkFor*3/2),
		})
	}
	return f
}

func legacyMember(i int) model.Member {
	return model.Member{
		Name: fmt.Sprint("client-", i), Scheme: model.Legacy, Dialect: protocol.JedisMS, Owner: fmt.Sprint("owner-", i),
		Lease: lease, Poll: 100 * time.Millisecond, Patience: time.Hour, Release: protocol.JedisMS.Release,
	}
}

// counted is what a server did, a second.
type counted struct {
	acquired, commands, cpu float64
	connections             int
	memory                  float64
}

// run is the same fleet on a real server.
func (h habits) run(t *testing.T, stage string, runFor time.Duration) counted {
	b := &bench{t: t, s: redistest.Real(t)}
	var turn func(i int, key string, hold time.Duration)
	var ends []func()
	if stage == "legacy" {
		conns := make([]redis.Conn, h.clients)
		for i := range conns {
			conns[i] = b.s.Conn()
		}
		turn = func(i int, key string, hold time.Duration) { oldTurn(t, conns[i], i, key, hold) }
	} else {
		name, err := redistest.InStage(b.s.Pool(), lockmigrate.StageBridge, "jedis-ms", lease)
		require.NoError(t, err)
		lockers := make([]compat.Locker, h.clients)
		for i := range lockers {
			lockers[i], err = compat.New(b.s.Pool(), compat.Options{Namespace: name})
			require.NoError(t, err)
			ends = append(ends, func() { assert.NoError(t, lockers[i].Close()) })
		}
		turn = func(i int, key string, hold time.Duration) {
			lock, err := lockers[i].Acquire(context.Background(), key)
			if assert.NoError(t, err) {
				time.Sleep(hold) // the work
				assert.NoError(t, lock.Release(context.Background()))
			}
		}
	}
	var acquired atomic.Int64
	var stop atomic.Bool
	var group sync.WaitGroup
	for i := range h.clients {
		group.Go(func() {
			for !stop.Load() {
				turn(i, fmt.Sprint("key-", rand.IntN(h.keys)), h.holdFor/2+rand.N(h.holdFor))
				acquired.Add(1)
				time.Sleep(h.thinkFor/2 + rand.N(h.thinkFor)) // it does other things
			}
		})
	}
	time.Sleep(time.Second) // until all is under way
	began, before, commands, cpu := time.Now(), acquired.Load(), b.number("total_commands_processed:"), b.cpu()
	time.Sleep(runFor)
	seconds := time.Since(began).Seconds()
	got := counted{
		acquired: float64(acquired.Load()-before) / seconds, commands: (b.number("total_commands_processed:") - commands) / seconds,
		cpu: (b.cpu() - cpu) / 1e6 / seconds, connections: int(b.number("connected_clients:")) - 1, memory: b.memory(),
	}
	stop.Store(true)
	group.Wait()
	for _, end := range ends {
		end()
	}
	return got
}

// oldTurn is a turn of the old code: the machine that the simulator runs, over a connection of its own.
func oldTurn(t *testing.T, conn redis.Conn, i int, key string, hold time.Duration) {
	m := legacyMember(i)
	s := model.NewSession(i, &m)
	s.On(key, "")
	start := time.Now()
	read := func() model.Reading {
		return model.Reading{Wall: protocol.Instant(time.Now().UnixNano()), Mono: protocol.Instant(time.Since(start))}
	}
	follow := func(step protocol.Step) {
		for step.Kind != protocol.Done {
			reply := protocol.Reply{Kind: protocol.Woke}
			if step.Kind == protocol.Sleep {
				time.Sleep(step.Sleep) // its poll
			} else {
				var err error
				reply, err = wire.Do(conn, time.Minute, step.Command)
				assert.NoError(t, err)
			}
			step = s.Next(read(), reply)
		}
	}
	follow(s.Acquire(read()))
	assert.True(t, s.Holds())
	time.Sleep(hold) // the work
	follow(s.Release(read()))
}
