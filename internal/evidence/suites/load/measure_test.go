// Package load measures on a real server what each command, lock, connection and member costs, and compares what
// `--load` says of a fleet with what a server then has to do.
package load

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/load"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

var measure = flag.Bool("measure", false, "measure the costs and write them into internal/simulate/load/costs.json and docs/scale.md")

const command = "LOCKMIGRATE_SUITES=redis go test ./internal/evidence/suites/load -run TestCosts -measure"

// scale is how many locks a measurement takes.
const (
	locks = 10_000
	conns = 40
)

// TestCosts measures when it is asked to. Else it only looks whether the document shows the table that the program has.
func TestCosts(t *testing.T) {
	costs, err := load.Measured()
	if *measure {
		costs = measured(t)
		text, marshalErr := json.MarshalIndent(costs, "", "  ")
		require.NoError(t, marshalErr)
		redistest.Document(t, "../../../simulate/load/costs.json", string(text)+"\n", true)
		err = nil
	}
	require.NoError(t, err)
	redistest.Section(t, "../../../../docs/scale.md", "costs", "internal/simulate/load/costs.json by "+command, table(&costs), *measure)
}

// bench is a server that is measured.
type bench struct {
	t     *testing.T
	s     *redistest.Server
	conns []redis.Conn
	costs load.Costs
}

func measured(t *testing.T) load.Costs {
	b := &bench{t: t, s: redistest.Real(t)}
	b.costs = load.Costs{
		Server: "redis-server " + b.info("redis_version:"), Machine: fmt.Sprintf("%s, %d cores, shared with the clients", processor(), runtime.NumCPU()),
		Measured: time.Now().Format(time.DateOnly), Command: command, Bytes: load.Bytes{Held: map[string]float64{}},
	}
	b.costs.Bytes.Empty = b.memory()
	for range conns {
		b.conns = append(b.conns, b.s.Conn())
	}
	b.connection()
	b.member()
	b.plain()
	for _, m := range holders() {
		b.holder(m)
	}
	least := slices.MinFunc(b.costs.Ops, func(x, y load.OpCost) int { return int(x.CPU*10) - int(y.CPU*10) })
	for i := range b.costs.Ops {
		b.costs.Ops[i].Executes = round(b.costs.Ops[i].CPU - least.CPU)
	}
	slices.SortFunc(b.costs.Ops, func(x, y load.OpCost) int { return int(x.Op) - int(y.Op) })
	return b.costs
}

func (b *bench) info(field string) string {
	text, err := redis.String(b.s.Try("INFO", "everything"))
	require.NoError(b.t, err)
	_, rest, ok := strings.Cut(text, "\r\n"+field)
	require.True(b.t, ok, field)
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

func (b *bench) number(field string) float64 {
	n, err := strconv.ParseFloat(b.info(field), 64)
	require.NoError(b.t, err)
	return n
}

func (b *bench) memory() float64 { return b.number("used_memory:") }

// connection measures what connections take, in use and idle.
func (b *bench) connection() {
	const n = 1000
	before := b.memory()
	all := make([]redis.Conn, n)
	for i := range all {
		all[i] = b.s.Conn()
		_, err := all[i].Do("GET", "key")
		require.NoError(b.t, err)
	}
	for range 3 { // by and by the server gives each the buffers that it needs
		time.Sleep(time.Second)
		for _, c := range all {
			_, err := c.Do("GET", "key")
			require.NoError(b.t, err)
		}
	}
	b.costs.Bytes.Connection = round((b.memory() - before) / n)
	time.Sleep(4 * time.Second) // the server takes their buffers back
	b.costs.Bytes.Idle = round((b.memory() - before) / n)
	for _, c := range all {
		require.NoError(b.t, c.Close())
	}
	time.Sleep(time.Second)
}

// member measures processes that belong to a namespace and do nothing, and how many connections each has once it has waited.
func (b *bench) member() {
	name, err := redistest.InStage(b.s.Pool(), lockmigrate.StageBridge, "jedis-ms", 30*time.Second)
	require.NoError(b.t, err)
	const n, watched = 50, 10 * time.Second
	before := int(b.number("connected_clients:"))
	var all []compat.Locker
	for range n {
		l, err := compat.New(b.s.Pool(), compat.Options{Namespace: name})
		require.NoError(b.t, err)
		all = append(all, l)
	}
	var group sync.WaitGroup
	for i, l := range all {
		group.Go(func() {
			for turn := range 5 {
				lock, err := l.Acquire(context.Background(), fmt.Sprint("waited-for-", (i+turn)%10))
				require.NoError(b.t, err)
				time.Sleep(10 * time.Millisecond) // the work
				require.NoError(b.t, lock.Release(context.Background()))
			}
		})
	}
	group.Wait()
	b.costs.Members.Connections = (int(b.number("connected_clients:")) - before + n/2) / n
	commands, cpu := b.number("total_commands_processed:"), b.cpu()
	time.Sleep(watched)
	seconds := watched.Seconds()
	b.costs.Members.CommandsPerSecond = (b.number("total_commands_processed:") - commands) / n / seconds
	b.costs.Members.CPU = (b.cpu() - cpu) / n / seconds
	for _, l := range all {
		require.NoError(b.t, l.Close())
	}
}

// cpu is the processor time of the server's process, in microseconds.
func (b *bench) cpu() float64 {
	return (b.number("used_cpu_sys:") + b.number("used_cpu_user:")) * 1e6
}

// calls is how many commands of a name the server has run.
func (b *bench) calls(name string) float64 {
	text, err := redis.String(b.s.Try("INFO", "commandstats"))
	require.NoError(b.t, err)
	m := regexp.MustCompile(`cmdstat_` + strings.ToLower(name) + `:calls=(\d+)`).FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	calls, _ := strconv.ParseFloat(m[1], 64)
	return calls
}

// each runs one command for each lock, over all connections at once, notes what one cost, and returns its processor time in
// microseconds.
func (b *bench) each(op protocol.Op, title string, do func(conn redis.Conn, lock int)) float64 {
	b.t.Helper()
	c := protocol.Command{Op: op, Key: "k", Value: "v", Sidecar: &protocol.SidecarCall{}}
	name := "EVALSHA"
	if request, err := wire.RequestOf(c); err == nil && request.Script == nil {
		name = request.Name
	}
	b.over(do, 1) // the script is known to the server from now on
	calls, total, cpu := b.calls(name), b.number("total_commands_processed:"), b.cpu()
	b.over(do, locks)
	cpu = b.cpu() - cpu
	total = b.number("total_commands_processed:") - total
	require.InEpsilon(b.t, locks, b.calls(name)-calls, 0.01, "%s: one %s for each lock", title, name)
	path := load.Usual
	for ending, is := range paths {
		if strings.HasSuffix(title, ending) {
			path = is
		}
	}
	b.note(load.OpCost{Path: path, Op: op, Name: title, CPU: cpu / locks, Commands: total / locks})
	return cpu / locks
}

// paths are the endings of titles.
var paths = map[string]load.Path{", found held": load.Look, ", without a place": load.Asks, ", where gaps are noted": load.Long, ", to a waiter": load.Hands}

func (b *bench) over(do func(conn redis.Conn, lock int), n int) {
	var group sync.WaitGroup
	for w, conn := range b.conns {
		group.Go(func() {
			for i := w; i < n; i += len(b.conns) {
				do(conn, i)
			}
		})
	}
	group.Wait()
}

// note keeps what a command costs.
func (b *bench) note(cost load.OpCost) {
	cost.CPU, cost.Commands = round(cost.CPU), round(cost.Commands)
	b.costs.Ops = append(b.costs.Ops, cost)
}

func round(f float64) float64 { return float64(int(f*10+0.5)) / 10 }

// plain measures the commands of the old clients.
func (b *bench) plain() {
	value := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
	send := func(c protocol.Command) func(redis.Conn, int) {
		return func(conn redis.Conn, lock int) {
			c := c
			c.Key = fmt.Sprint("plain-", lock)
			_, err := wire.Do(conn, time.Minute, c)
			require.NoError(b.t, err)
		}
	}
	before := b.memory()
	b.each(protocol.SetNX, "SETNX, free", send(protocol.Command{Op: protocol.SetNX, Value: value}))
	b.costs.Bytes.Held[model.Legacy.String()] = round((b.memory() - before) / locks)
	b.each(protocol.SetNX, "SETNX, found held", send(protocol.Command{Op: protocol.SetNX, Value: value}))
	b.each(protocol.Get, "GET", send(protocol.Command{Op: protocol.Get}))
	b.each(protocol.GetSet, "GETSET", send(protocol.Command{Op: protocol.GetSet, Value: value}))
	b.each(protocol.Del, "DEL", send(protocol.Command{Op: protocol.Del}))
	b.s.Do("FLUSHALL")
}

// holders are the clients whose turns are measured.
func holders() []model.Member {
	m := model.Member{Dialect: protocol.JedisMS, Lease: 10 * time.Minute, Poll: time.Second, Settle: time.Millisecond, Claim: 3 * time.Second}
	bridge, side := m, m
	bridge.Scheme, bridge.Queue, bridge.Grace = model.Bridge, true, time.Second
	bridge.Yield = 120 * time.Millisecond
	bridge.NotAfter = protocol.Instant(time.Now().Add(time.Hour).UnixNano()) // as every member of a namespace has
	side.Scheme, side.Behind, side.Grace = model.Sidecar, "side", time.Second
	side.Release = side.Dialect.Release
	return []model.Member{bridge, side}
}

// holder measures a turn: the key is taken, another client finds it held, it is renewed and given back.
func (b *bench) holder(m model.Member) {
	m.Name = m.Scheme.String()
	other := m
	other.Name = "other"
	if m.Behind != "" {
		other.Behind = "other-side"
	}
	start := time.Now()
	read := func() model.Reading {
		return model.Reading{Wall: protocol.Instant(time.Now().UnixNano()), Mono: protocol.Instant(time.Since(start))}
	}
	// drive takes a session as far as its next sleep or verdict.
	drive := func(s *model.Session, conn redis.Conn, step protocol.Step) {
		for step.Kind == protocol.Send {
			reply, err := wire.Do(conn, time.Minute, step.Command)
			require.NoError(b.t, err)
			step = s.Next(read(), reply)
		}
	}
	ops := map[model.Scheme][3]protocol.Op{
		model.Bridge:  {protocol.BridgeTake, protocol.BridgeExtend, protocol.BridgeDrop},
		model.Sidecar: {protocol.SidecarTake, protocol.SidecarKeep, protocol.SidecarDel},
	}[m.Scheme]
	what := map[model.Scheme][3]string{
		model.Bridge:  {"acquire, bridge or modern", "renew, bridge or modern", "release, bridge or modern"},
		model.Sidecar: {"SETNX through a sidecar", "renewal by a sidecar", "DEL through a sidecar"},
	}[m.Scheme]
	one, two, steps := make([]model.Session, locks), make([]model.Session, locks), make([]protocol.Step, locks)
	take := func(conn redis.Conn, lock int) {
		if s := &one[lock]; !s.Holds() {
			if s.Member == nil {
				*s = model.NewSession(lock, &m)
				s.On(fmt.Sprint(m.Name, "-", lock), "")
			}
			step := s.Acquire(read())
			step.Command.Entry = "" // a member asks once before it queues
			drive(s, conn, step)
		}
	}
	release := func(conn redis.Conn, lock int) {
		if one[lock].Holds() {
			drive(&one[lock], conn, one[lock].Release(read()))
		}
	}
	asks := func(conn redis.Conn, lock int) {
		s := model.NewSession(locks+lock, &other)
		s.On(fmt.Sprint(m.Name, "-", lock), "")
		step := s.Acquire(read())
		step.Command.Entry = ""
		_, err := wire.Do(conn, time.Minute, step.Command)
		require.NoError(b.t, err)
	}
	look := func(conn redis.Conn, lock int) { // one command
		s := &two[lock]
		if s.Member == nil {
			*s = model.NewSession(locks+lock, &other)
			s.On(fmt.Sprint(m.Name, "-", lock), "")
			step := s.Acquire(read())
			reply, err := wire.Do(conn, time.Minute, step.Command)
			require.NoError(b.t, err)
			steps[lock] = s.Next(read(), reply)
		}
	}
	before := b.memory()
	b.each(ops[0], what[0], take)
	b.costs.Bytes.Held[m.Scheme.String()] = round((b.memory() - before) / locks)
	for i := range one {
		require.True(b.t, one[i].Holds(), i)
	}
	b.each(ops[1], what[1], func(conn redis.Conn, lock int) { drive(&one[lock], conn, one[lock].Renew(read())) })
	noted := ""
	if m.Scheme == model.Bridge { // a key that was held for so long has notes about gaps
		noted = ", where gaps are noted"
	}
	plain := b.each(ops[2], what[2]+noted, release)
	b.over(take, locks)
	if noted != "" { // the notes are kept for a moment
		cpu, commands := b.both(func(conn redis.Conn, lock int) {
			release(conn, lock)
			take(conn, lock)
		})
		of := b.costs.Ops[len(b.costs.Ops)-1]
		b.each(ops[0], what[0]+", found held, without a place", asks)
		b.note(load.OpCost{Op: ops[0], Path: load.Long, Name: what[0] + noted, CPU: max(cpu-of.CPU, 0), Commands: commands - of.Commands})
	}
	before = b.memory()
	b.each(ops[0], what[0]+", found held", look)
	if m.Scheme == model.Sidecar {
		b.each(protocol.SidecarGet, "GET through a sidecar", func(conn redis.Conn, lock int) {
			require.Equal(b.t, protocol.SidecarGet, steps[lock].Command.Op)
			_, err := wire.Do(conn, time.Minute, steps[lock].Command)
			require.NoError(b.t, err)
		})
	} else {
		b.costs.Bytes.Waiter = round((b.memory() - before) / locks)
		listening := b.listen(two[0].Channel())
		b.costs.MessageUS = round(max(b.each(ops[2], what[2]+", to a waiter", release)-plain, 0.1))
		require.NoError(b.t, listening.Close())
		for i := range one { // the lock was handed to the other
			one[i].Reset()
			one[i].On(fmt.Sprint(m.Name, "-", i), "")
		}
		b.short(what[2]+", held for a moment", take, release)
	}
	b.s.Do("FLUSHALL")
}

// both is what commands cost for each lock that are not measured one by one.
func (b *bench) both(do func(redis.Conn, int)) (cpu, commands float64) {
	cpu, commands = b.cpu(), b.number("total_commands_processed:")
	b.over(do, locks)
	return (b.cpu() - cpu) / locks, (b.number("total_commands_processed:") - commands) / locks
}

// short measures the release of locks that were held for a moment: nothing is noted about gaps for old clients then.
func (b *bench) short(title string, take, release func(redis.Conn, int)) {
	b.s.Do("FLUSHALL") // the notes about gaps are gone
	both, commands := b.both(func(conn redis.Conn, lock int) {
		take(conn, lock)
		release(conn, lock)
	})
	taking, takes := b.both(take)
	b.over(release, locks)
	b.note(load.OpCost{Op: protocol.BridgeDrop, Name: title, CPU: both - taking, Commands: commands - takes})
}

// listen has somebody listen on a channel.
func (b *bench) listen(channel string) redis.Conn {
	sub := redis.PubSubConn{Conn: b.s.Conn()}
	require.NoError(b.t, sub.Subscribe(channel))
	go func() {
		for {
			if _, failed := sub.ReceiveWithTimeout(0).(error); failed {
				return
			}
		}
	}()
	return sub.Conn
}

func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
			}
		}
	}
	out, _ := exec.Command("uname", "-m").Output()
	return strings.TrimSpace(string(out))
}

// table is the costs as docs/scale.md shows them.
func table(c *load.Costs) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, %s. %d connections, one command at a time on each.\n\n", c.Server, c.Machine, c.Measured, conns)
	fmt.Fprintf(&b, "| command | processor time of the server | of it more than the cheapest command | counted as commands |\n|---|---|---|---|\n")
	for _, o := range c.Ops {
		fmt.Fprintf(&b, "| %s | %.1f µs | %.1f µs | %.1f |\n", o.Name, o.CPU, o.Executes, o.Commands)
	}
	fmt.Fprintf(&b, "| a message to a listener | %.1f µs | | |\n", c.MessageUS)
	fmt.Fprintf(&b, "\n| thing | cost |\n|---|---|\n")
	fmt.Fprintf(&b, "| member of a namespace that does nothing | %.2f commands/s, %.0f µs/s; %d connections once it has locked and waited |\n", c.Members.CommandsPerSecond, c.Members.CPU, c.Members.Connections)
	for _, s := range []model.Scheme{model.Legacy, model.Bridge, model.Sidecar} {
		fmt.Fprintf(&b, "| held lock, %s | %.0f bytes |\n", s, c.Bytes.Held[s.String()])
	}
	fmt.Fprintf(&b, "| waiter in a queue | %.0f bytes |\n| connection in use | %.0f bytes |\n| connection, idle for two seconds | %.0f bytes |\n| empty server | %.0f bytes |\n", c.Bytes.Waiter, c.Bytes.Connection, c.Bytes.Idle, c.Bytes.Empty)
	return b.String()
}
