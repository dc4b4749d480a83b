// Package faults does to real servers, and to the ways to them, what goes wrong in operation, while
// holders of every kind work, and counts what came of it. docs/faults.md is its table.
package faults

import (
	"flag"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

var (
	update = flag.Bool("update", false, "write docs/faults.md")
	rounds = flag.Int("rounds", 2, "how often each fault is injected")
)

// site is where a fault happens.
type site struct {
	t       *testing.T
	server  *redistest.Server // the one server, or the master at the start
	link    *redistest.Link   // the far side's way to it
	pair    *redistest.Replicated
	group   *redistest.SentinelGroup
	cluster *redistest.Cluster
	clock   *redistest.Clocked
	sides   []side
	all     []*redistest.Server
}

// promise is what holds for tokens (bridge, modern) while a fault is going on. Legacy holders are in the
// table too, but nobody tells them anything.
type promise uint8

const (
	exclusive promise = iota // nothing that was acknowledged is lost: no overlap
	told                     // the server has lost what it acknowledged: the holder is told within one renewal
)

// fault is one line of the table.
type fault struct {
	name    string
	what    string
	promise promise
	site    func(s *site)
	inject  func(s *site)
	slow    time.Duration
}

// one is a site of a single server, which the far side reaches over a link.
func one(args ...string) func(*site) {
	return func(s *site) { s.use(redistest.Real(s.t, args...)) }
}

func (s *site) use(server *redistest.Server) {
	s.server, s.all = server, []*redistest.Server{server}
	s.link = redistest.NewLink(s.t, server.Addr)
	s.sides = []side{direct(server.Addr), direct(s.link.Addr)}
}

var faults = []fault{
	{
		name: "kill -9, appendfsync always", what: "the server is killed and comes back with all that it acknowledged",
		site:   one("--appendonly", "yes", "--appendfsync", "always"),
		inject: func(s *site) { s.server.Kill(); s.server.Start() },
	},
	{
		name: "kill -9, no persistence", what: "the server is killed and comes back empty", promise: told,
		site:   one(),
		inject: func(s *site) { s.server.Kill(); s.server.Start() },
	},
	{
		name: "LOADING", what: "the server comes back and loads for half a second, refusing everything",
		site: func(s *site) {
			one("--appendonly", "yes", "--appendfsync", "always", "--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024")(s)
			conn := s.server.Conn()
			for i := range 1000 {
				require.NoError(s.t, conn.Send("SET", fmt.Sprintf("ballast:%d", i), "x"))
			}
			_, err := conn.Do("")
			require.NoError(s.t, err)
		},
		inject: func(s *site) { s.server.Kill(); s.server.Start() },
	},
	{
		name: "promotion of a replica that lost the lock", what: "the master acknowledges, its replica never sees it and is promoted", promise: told,
		site: func(s *site) {
			s.pair = redistest.NewReplicated(s.t)
			s.server, s.all = s.pair.Master, []*redistest.Server{s.pair.Master, s.pair.Replica}
			s.link = redistest.NewLink(s.t, s.server.Addr) // as the name of the service, which everybody uses
			s.sides = []side{direct(s.link.Addr), direct(s.link.Addr)}
		},
		inject: func(s *site) {
			from, to := s.pair.Master, s.pair.Replica
			s.pair.Link.Partition()
			time.Sleep(100 * time.Millisecond) // the subject: locks are taken that only the master knows
			to.Do("REPLICAOF", "NO", "ONE")
			s.link.Retarget(to.Addr)
			s.link.Cut()
			// The other way round next time.
			s.pair.Link.Heal()
			s.pair.Link.Retarget(to.Addr)
			s.pair.Link.Cut()
			host, port, _ := net.SplitHostPort(s.pair.Link.Addr)
			from.Do("REPLICAOF", host, port)
			s.pair.Master, s.pair.Replica = to, from
			s.pair.AwaitInStep(s.t)
		},
	},
	{
		name: "Sentinel failover", what: "the master is killed; sentinels promote the replica", promise: told, slow: 15 * time.Second,
		site: func(s *site) {
			s.group = redistest.NewSentinels(s.t, 2, 3)
			s.server, s.all = s.group.Servers[0], s.group.Servers
			open := func() (pool, error) {
				return sentinel.New(sentinel.Options{Addrs: s.group.Addrs(), Master: s.group.Name})
			}
			s.sides = []side{open, open}
		},
		inject: func(s *site) {
			before := s.group.Master()
			before.Kill()
			s.group.AwaitFailover(before)
			s.group.Rejoin(before)
		},
	},
	{
		name: "cluster: resharding", what: "slots move between masters while their locks are held and waited for",
		site: clusterOf(3, 0),
		inject: func(s *site) {
			for _, k := range kinds {
				for i := range 2 {
					slot := protocol.Slot(fmt.Sprintf("fault:%s:%d", k.name, i))
					to := s.cluster.Masters[0]
					if s.cluster.Owner(slot) == to {
						to = s.cluster.Masters[1]
					}
					s.cluster.Migrate(slot, to).Finish()
				}
			}
		},
	},
	{
		name: "cluster: orderly failover", what: "every master hands over to its replica (CLUSTER FAILOVER)", slow: 10 * time.Second,
		site: clusterOf(3, 1),
		inject: func(s *site) {
			for i := range s.cluster.Masters {
				s.cluster.Failover(s.cluster.Replicas[i][0])
				s.cluster.AwaitOK()
			}
			s.cluster.Pairs()
		},
	},
	{
		name: "cluster: kill -9 of a master", what: "a master dies, its replica takes over; the dead one comes back", promise: told, slow: 15 * time.Second,
		site: clusterOf(3, 1),
		inject: func(s *site) {
			s.cluster.Masters[0].Kill()
			s.cluster.AwaitMaster(s.cluster.Replicas[0][0])
			s.cluster.Masters[0].Start()
			s.cluster.AwaitOK()
			s.cluster.Pairs()
		},
	},
	{
		name: "partition", what: "one process is cut off for longer than a TTL, and no connection notices",
		site:   one(),
		inject: during(ttl+ttl/3, func(s *site) (mend func()) { s.link.Partition(); return s.link.Heal }),
	},
	{
		name: "half-open link", what: "commands arrive, replies do not",
		site:   one(),
		inject: during(ttl, func(s *site) (mend func()) { s.link.HalfOpen(); return s.link.Heal }),
	},
	{
		name: "slow link", what: "every piece takes 60 ms each way, at 32 KB/s",
		site:   one(),
		inject: during(ttl, func(s *site) (mend func()) { s.link.Slow(60*time.Millisecond, 32<<10); return s.link.Heal }),
	},
	{
		name: "connections reset", what: "all connections of a process are reset, ten times in a row",
		site:   one(),
		inject: again(10, 20*time.Millisecond, func(s *site) { s.link.Cut() }), // they connect again between two
	},
	{
		name: "SIGSTOP of the server", what: "the server stands still for longer than a TTL",
		site:   one(),
		inject: during(ttl+ttl/3, func(s *site) (mend func()) { return s.server.Freeze() }),
	},
	{
		name: "CLIENT KILL", what: "the server ends all connections, ten times in a row",
		site: one(),
		inject: again(10, 20*time.Millisecond, func(s *site) { // they connect again between two
			s.server.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			s.server.Do("CLIENT", "KILL", "TYPE", "pubsub")
		}),
	},
	{
		name: "CLIENT PAUSE", what: "the server answers nobody for longer than the reply timeout",
		site:   one(),
		inject: again(1, ttl/2, func(s *site) { s.server.Do("CLIENT", "PAUSE", (ttl / 2).Milliseconds()) }),
	},
	{
		name: "SCRIPT FLUSH", what: "the server forgets all scripts, fifty times",
		site:   one(),
		inject: again(50, 5*time.Millisecond, func(s *site) { s.server.Do("SCRIPT", "FLUSH") }), // between commands of the crew
	},
	{
		name: "maxmemory, noeviction", what: "the server refuses whatever would take memory",
		site:   one("--maxmemory-policy", "noeviction"),
		inject: during(ttl/2, fullMemory),
	},
	{
		name: "maxmemory, eviction", what: "the server throws locks away to make room (allkeys-random)", promise: told,
		site:   one("--maxmemory-policy", "allkeys-random"),
		inject: during(50*time.Millisecond, fullMemory), // every command evicts meanwhile
	},
	{
		name: "FLUSHALL", what: "somebody deletes everything", promise: told,
		site:   one(),
		inject: func(s *site) { s.server.Do("FLUSHALL") },
	},
	{
		name: "the server's clock jumps ahead", what: "10 s at once: every TTL is over", promise: told, slow: ttl,
		site:   clocked,
		inject: func(s *site) { s.clock.Step(10 * time.Second) },
	},
	{
		name: "the server's clock jumps back", what: "1 s at once: TTLs last longer", slow: ttl,
		site:   clocked,
		inject: func(s *site) { s.clock.Step(-time.Second) },
	},
	{
		name: "disk full", what: "the append-only file cannot grow: MISCONF, until there is room again",
		site: func(s *site) {
			limited := redistest.Shape{Wrapper: []string{"sh", "-c", `trap '' XFSZ; exec "$@"`, "sh"}}
			s.use(limited.Start(s.t, "--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"))
		},
		inject: func(s *site) {
			limit := func(to uint64) {
				require.NoError(s.t, unix.Prlimit(s.server.PID(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: to, Max: unix.RLIM_INFINITY}, nil))
			}
			limit(1)
			defer limit(unix.RLIM_INFINITY)
			redistest.Await(s.t, "MISCONF", func() bool {
				_, err := s.server.Try("SET", "probe", 1, "PX", 1)
				return err != nil && strings.HasPrefix(err.Error(), "MISCONF")
			})
			time.Sleep(ttl / 3) // the subject
		},
	},
	{
		name: "rights taken away", what: "the user may write no keys any more, for a while (NOPERM)",
		site: one(),
		inject: during(ttl/2, func(s *site) (mend func()) {
			s.server.Do("ACL", "SETUSER", "default", "resetkeys", "~nothing")
			return func() { s.server.Do("ACL", "SETUSER", "default", "~*") }
		}),
	},
}

// during has a fault last for a while: the time is the subject.
func during(d time.Duration, begin func(s *site) (mend func())) func(*site) {
	return func(s *site) {
		mend := begin(s)
		time.Sleep(d)
		mend()
	}
}

// again has a fault happen n times, each followed by a pause.
func again(n int, pause time.Duration, happens func(s *site)) func(*site) {
	return func(s *site) {
		for range n {
			happens(s)
			time.Sleep(pause)
		}
	}
}

func fullMemory(s *site) (mend func()) {
	s.server.Do("CONFIG", "SET", "maxmemory", "1")
	return func() { s.server.Do("CONFIG", "SET", "maxmemory", "0") }
}

func clusterOf(masters, replicas int) func(*site) {
	return func(s *site) {
		s.cluster = redistest.NewCluster(s.t, masters, replicas)
		s.server, s.all = s.cluster.Masters[0], s.cluster.Nodes()
		open := func() (pool, error) { return cluster.New(cluster.Options{Addrs: s.cluster.Addrs()}) }
		s.sides = []side{open, open}
	}
}

// clocked is a site of a server whose clock the fault sets.
func clocked(s *site) {
	s.clock = redistest.NewClocked(s.t)
	s.use(s.clock.Server)
}

func TestFaults(t *testing.T) {
	rows := make([]*row, len(faults))
	t.Run("each", func(t *testing.T) {
		for i, f := range faults {
			t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				rows[i] = survive(t, f)
			})
		}
	})
	if t.Failed() || slices.Contains(rows, nil) {
		return // a part of the table is no table
	}
	if *update {
		write(t, rows)
	}
	check(t)
}

// survive lets a crew work through rounds of a fault.
func survive(t *testing.T, f fault) *row {
	s := &site{t: t}
	f.site(s)
	c := newCrew(t, kinds, 8*time.Millisecond, s.sides...)
	end := sync.OnceFunc(c.end)
	defer func() {
		if t.Failed() {
			describe(s)
		}
		end()
	}()
	c.progress(20 * time.Second)
	for range *rounds {
		redistest.Within(t, "a holder in a long turn", 10*ttl, c.midst)
		f.inject(s)
		// Nobody waits for longer than what was lost with its holder lasts: a lease of the old kind.
		c.progress(lease + ttl + 10*time.Second + f.slow)
	}
	end()
	result := &row{turns: c.referee.Since().Turns, legacy: c.overlaps["legacy"], lost: c.told}
	for _, n := range c.overlaps {
		result.overlaps += n
	}
	result.overlaps -= result.legacy
	for _, d := range c.delays {
		result.delay = max(result.delay, d)
	}
	if f.promise == exclusive {
		assert.Zero(t, result.overlaps, redistest.Violated+": overlaps of tokens")
		assert.Zero(t, result.legacy, "nor of old locks: nothing was lost and no lease overrun")
		checked, wrong := c.unexplained()
		assert.Empty(t, wrong, "histories that no order explains")
		t.Logf("%d turns with fencing tokens", checked)
	} else {
		assert.Zero(t, c.untold, redistest.Violated+": a holder that was overlapped did not hear of it")
		assert.LessOrEqual(t, result.delay, 2*ttl, "and soon")
	}
	s.nothingLeft()
	t.Logf("%+v", result)
	return result
}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // they wait for leases and servers; the command line still decides
	redistest.Main(redistest.Leakless{M: m}, redistest.Redis)
}

// One packet in twenty is lost, each way, between every client and the server; then one in five. TCP repairs
// it, late: locks get slow, and stay exclusive. The legacy ones do so where they compare before they delete: a bare DEL that TCP delivers
// after the lease is the old scheme's stale-delete.
func TestPacketLoss(t *testing.T) {
	server := newLossy(t)
	s := &site{t: t, server: server.Server, all: []*redistest.Server{server.Server}, sides: []side{direct(server.Addr), direct(server.Addr)}}
	c := newCrew(t, append([]kind{comparing}, kinds[1:]...), 8*time.Millisecond, s.sides...)
	c.progress(20 * time.Second)
	for _, loss := range []int64{50, 200} {
		server.loss.Store(loss)
		time.Sleep(2 * ttl) // the subject is time on a bad network
		server.loss.Store(0)
		c.progress(lease + ttl + 10*time.Second)
	}
	c.end()
	assert.Empty(t, c.overlaps, redistest.Violated)
	checked, wrong := c.unexplained()
	assert.Empty(t, wrong)
	s.nothingLeft()
	assert.Greater(t, server.lost.Load(), int64(50), "the network was bad")
	t.Logf("%d packets lost; %d turns, %d told of a loss, %d turns with fencing tokens", server.lost.Load(), c.referee.Since().Turns, c.told, checked)
}
