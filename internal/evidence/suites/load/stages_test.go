// Package load measures on a real server what a fleet costs it at each stage, and what members cost that do nothing.
package load

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	work "github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

func TestMain(m *testing.M) { redistest.Main(m, redistest.Redis) }

var measure = flag.Bool("measure", false, "measure for longer, and write the table into docs/scale.md")

const command = "LOCKMIGRATE_SUITES=redis go test ./internal/evidence/suites/load -run TestStagesCost -measure"

// habits are those of the clients that are run.
type habits struct {
	name              string
	clients, keys     int
	holdFor, thinkFor time.Duration
}

var fleets = []habits{
	{"clients that wait for each other", 60, 40, 20 * time.Millisecond, 100 * time.Millisecond},
	{"as fast as they can", 60, 20_000, time.Millisecond, time.Millisecond},
	{"few of them wait", 80, 400, 25 * time.Millisecond, 250 * time.Millisecond},
}

const lease = 30 * time.Second

// TestStagesCost runs the same fleets of old clients and of members on a real server, and says what the server did for each lock. What
// README and docs/scale.md say of it is held within wide bounds: a member takes a few more commands for a lock, and a few connections.
func TestStagesCost(t *testing.T) {
	runFor := time.Second
	if *measure {
		runFor = 6 * time.Second
	}
	var b strings.Builder
	text, err := redis.String(redistest.Real(t).Try("INFO", "server"))
	require.NoError(t, err)
	machine, _ := os.ReadFile("/proc/cpuinfo") // it has the form of INFO
	fmt.Fprintf(&b, "%s on%s, one core for the server, %s.\n\n", servers.Of(endpoint.InfoOf(text)), endpoint.InfoOf(string(machine))["model name\t"], time.Now().Format(time.DateOnly))
	fmt.Fprintln(&b, "| fleet | stage | locks/s | commands a lock | processor time a lock | connections | memory |\n|---|---|---|---|---|---|---|")
	for _, h := range fleets {
		old := counted{}
		for _, stage := range []string{"legacy", "bridge", "modern"} {
			got := h.run(t, stage, runFor)
			fmt.Fprintf(&b, "| %d on %d keys, %s | %s | %.0f | %.1f | %.0f µs | %d | %.0f KiB |\n", h.clients, h.keys, h.name, stage,
				got.acquired, got.commands/got.acquired, 1e6*got.cpu/got.acquired, got.connections, got.memory/1024)
			if stage == "legacy" {
				old = got
				continue
			}
			assert.Less(t, got.commands/got.acquired, 45.0, "%s, %s: commands a lock", h.name, stage)
			assert.LessOrEqual(t, got.connections, 4*h.clients+5, "%s, %s: a member has up to four connections", h.name, stage)
			assert.Less(t, got.memory, 5*old.memory, "%s, %s: memory", h.name, stage)
		}
	}
	commands, cpu, connections := idle(t, runFor)
	fmt.Fprintf(&b, "\nA member of a namespace that does nothing: %.2f commands/s, %.0f µs of processor time a second, %.1f connections.\n", commands, 1e6*cpu, connections)
	assert.Less(t, commands, 4.0, "reports of a member")
	t.Log("\n" + b.String())
	if *measure {
		redistest.Section(t, "../../../../docs/scale.md", "costs", command, b.String(), true)
	}
}

// bench is a server that is looked at.
type bench struct {
	t *testing.T
	s *redistest.Server
}

func (b *bench) number(field string) float64 {
	text, err := redis.String(b.s.Try("INFO", "everything"))
	require.NoError(b.t, err)
	n, err := strconv.ParseFloat(endpoint.InfoOf(text)[field], 64)
	require.NoError(b.t, err, field)
	return n
}

func (b *bench) cpu() float64 { return b.number("used_cpu_sys") + b.number("used_cpu_user") }

// between is what the server did in a time, a second.
func (b *bench) between(runFor time.Duration) (commands, cpu, seconds float64) {
	began, commands, cpu := time.Now(), b.number("total_commands_processed"), b.cpu()
	time.Sleep(runFor) // it is watched for so long
	seconds = time.Since(began).Seconds()
	return (b.number("total_commands_processed") - commands) / seconds, (b.cpu() - cpu) / seconds, seconds
}

// counted is what a server did, a second.
type counted struct {
	acquired, commands, cpu float64
	connections             int
	memory                  float64
}

// run is the fleet at a stage.
func (h habits) run(t *testing.T, stage string, runFor time.Duration) (got counted) {
	b := &bench{t: t, s: redistest.Real(t)}
	at, members := map[string]lockmigrate.Stage{"bridge": lockmigrate.StageBridge, "modern": lockmigrate.StageModern}[stage]
	name := ""
	if members {
		var err error
		name, err = redistest.InStage(b.s.Pool(), at, "jedis-ms", lease)
		require.NoError(t, err)
	}
	referee, workers := work.NewReferee(), make([]*work.Worker, h.clients)
	for i := range workers {
		w := &work.Worker{
			Name: fmt.Sprint("client-", i), Key: func() string { return fmt.Sprint("key-", rand.IntN(h.keys)) },
			Hold:  func() time.Duration { return h.holdFor/2 + rand.N(h.holdFor) },
			Think: func() time.Duration { return h.thinkFor/2 + rand.N(h.thinkFor) },
		}
		if members {
			l := b.member(name)
			w.Take, w.Close = work.Of(l.Acquire), func() { assert.NoError(t, l.Close()) }
		} else { // one connection each
			old := &work.Old{Pool: b.s.Pool(), Dialect: protocol.JedisMS, Lease: lease, Poll: 100 * time.Millisecond}
			w.Take = old.Acquire
		}
		w.Start(t.Context(), referee, 0)
		workers[i] = w
	}
	time.Sleep(time.Second) // until all is under way
	overlaps := referee.Since().Overlaps
	commands, cpu, seconds := b.between(runFor)
	counted := referee.Since()
	got.commands, got.cpu, got.acquired = commands, cpu, float64(counted.Turns)/seconds
	got.connections, got.memory = int(b.number("connected_clients"))-1, b.number("used_memory")
	for _, w := range workers {
		w.Stop()
	}
	for _, w := range workers {
		assert.NoError(t, w.Wait(t.Context()))
	}
	assert.NoError(t, referee.Last())
	assert.Zero(t, overlaps+counted.Overlaps+referee.Since().Overlaps, redistest.Violated)
	return got
}

func (b *bench) member(namespace string) compat.Locker {
	l, err := compat.New(b.s.Pool(), compat.Options{Namespace: namespace})
	require.NoError(b.t, err)
	return l
}

// idle is what members cost that have nothing to do once they have waited for a lock.
func idle(t *testing.T, runFor time.Duration) (commands, cpu, connections float64) {
	const n = 30
	b := &bench{t: t, s: redistest.Real(t)}
	name, err := redistest.InStage(b.s.Pool(), lockmigrate.StageBridge, "jedis-ms", lease)
	require.NoError(t, err)
	before := b.number("connected_clients")
	var group sync.WaitGroup
	for i := range n {
		l := b.member(name)
		defer func() { assert.NoError(t, l.Close()) }()
		group.Go(func() {
			for turn := range 5 {
				turnOf(t, l, fmt.Sprint("waited-for-", (i+turn)%10), 10*time.Millisecond)
			}
		})
	}
	group.Wait()
	connections = (b.number("connected_clients") - before) / n
	commands, cpu, _ = b.between(5 * runFor)
	return commands / n, cpu / n, connections
}

func turnOf(t *testing.T, l compat.Locker, key string, hold time.Duration) {
	lock, err := l.Acquire(context.Background(), key)
	if assert.NoError(t, err) {
		time.Sleep(hold) // the work
		assert.NoError(t, lock.Release(context.Background()))
	}
}
