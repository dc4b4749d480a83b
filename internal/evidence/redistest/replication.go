package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Replicated is a master with a replica whose link can be held up: what the master acknowledges while it
// is, a promoted replica has never seen.
type Replicated struct {
	Master, Replica *Server
	Link            *Link
}

// NewReplicated starts the pair and waits until they are in step.
func NewReplicated(t testing.TB, args ...string) *Replicated {
	t.Helper()
	return Shape{}.Replicated(t, args...)
}

// Replicated is NewReplicated of servers of a shape. The options have the names that every version knows.
func (shape Shape) Replicated(t testing.TB, args ...string) *Replicated {
	t.Helper()
	args = append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-slave-period", "1", "--repl-timeout", "60"}, args...)
	r := &Replicated{Master: shape.server(t, args...)}
	r.Master.Start()
	r.Link = NewLink(t, r.Master.Addr)
	r.Replica = shape.server(t, slices.Concat(args, follows(r.Link.Addr))...)
	r.Replica.Start()
	r.AwaitInStep(t)
	return r
}

// follows are the words that make a server a replica. Old versions want the address in two words.
func follows(addr string) []string {
	host, port, _ := net.SplitHostPort(addr)
	return []string{"--slaveof", host, port}
}

// AwaitInStep waits until the replica has everything.
func (r *Replicated) AwaitInStep(t testing.TB) {
	t.Helper()
	Await(t, "a replica in step", func() bool {
		master, err1 := redis.Values(r.Master.Try("ROLE"))
		replica, err2 := redis.Values(r.Replica.Try("ROLE"))
		if err1 != nil || err2 != nil || len(replica) < 5 || text(replica[3]) != "connected" {
			return false
		}
		sent, _ := redis.Int64(master[1], nil)
		have, _ := redis.Int64(replica[4], nil)
		return have >= sent
	})
}

// Promote makes the replica a master.
func (r *Replicated) Promote() { r.Replica.Do("REPLICAOF", "NO", "ONE") }

// SentinelGroup is a master, its replicas, and the sentinels that watch over them.
type SentinelGroup struct {
	Name      string
	Servers   []*Server // the first one was the master at the start
	Sentinels []*Server

	t         testing.TB
	downAfter time.Duration
}

// NewSentinels starts a master with replicas and sentinels that agree on it.
func NewSentinels(t testing.TB, replicas, sentinels int, args ...string) *SentinelGroup {
	t.Helper()
	return Shape{}.Sentinels(t, replicas, sentinels, args...)
}

// Sentinels is NewSentinels of servers of a shape.
func (shape Shape) Sentinels(t testing.TB, replicas, sentinels int, args ...string) *SentinelGroup {
	t.Helper()
	g := &SentinelGroup{Name: "locks", t: t, downAfter: 500 * time.Millisecond}
	args = append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-slave-period", "1"}, args...)
	g.Servers = []*Server{shape.server(t, args...)}
	g.Servers[0].Start()
	host, port, _ := net.SplitHostPort(g.Servers[0].Addr)
	var starting sync.WaitGroup
	for range replicas {
		s := shape.server(t, slices.Concat(args, follows(g.Servers[0].Addr))...)
		g.Servers = append(g.Servers, s)
		starting.Go(s.Start)
	}
	for range sentinels {
		s := shape.server(t)
		s.sentinel = fmt.Sprintf(`sentinel monitor %[1]s %[2]s %[3]s %[4]d
sentinel down-after-milliseconds %[1]s %[5]d
sentinel failover-timeout %[1]s 3000
`, g.Name, host, port, sentinels/2+1, g.downAfter.Milliseconds())
		g.Sentinels = append(g.Sentinels, s)
		starting.Go(s.Start)
	}
	starting.Wait()
	Await(t, "sentinels that know each other", func() bool {
		for _, s := range g.Sentinels {
			fields, err := redis.StringMap(s.Try("SENTINEL", "MASTER", g.Name))
			if err != nil || fields["num-other-sentinels"] != fmt.Sprint(sentinels-1) || fields["num-slaves"] != fmt.Sprint(replicas) ||
				fields["flags"] != "master" {
				return false
			}
		}
		return true
	})
	return g
}

// Addrs returns the sentinels' addresses.
func (g *SentinelGroup) Addrs() []string { return addrsOf(g.Sentinels) }

// URL names the group as lockmigrate's --redis does.
func (g *SentinelGroup) URL() string {
	return "redis+sentinel://" + strings.Join(g.Addrs(), ",") + "/" + g.Name
}

// agreed returns the server that is the group's master for each sentinel that answers, with no failover under way; nil for none.
func (g *SentinelGroup) agreed() *Server {
	named := ""
	for _, sentinel := range g.Sentinels {
		fields, err := redis.StringMap(sentinel.Try("SENTINEL", "MASTER", g.Name))
		if err != nil {
			continue
		}
		addr := net.JoinHostPort(fields["ip"], fields["port"])
		if named != "" && named != addr || strings.Contains(fields["flags"], "failover_in_progress") {
			return nil
		}
		named = addr
	}
	for _, s := range g.Servers {
		if s.Addr == named && s.Role() == "master" {
			return s
		}
	}
	return nil
}

// Master waits until the sentinels agree on a master.
func (g *SentinelGroup) Master() (master *Server) {
	g.t.Helper()
	defer g.tell()
	began := time.Now()
	Await(g.t, "sentinels that agree", func() bool {
		if time.Since(began) > 20*time.Second {
			g.reconcile()
			began = time.Now()
		}
		master = g.agreed()
		return master != nil
	})
	return master
}

// reconcile does what an operator must where a failover by order met an election: two sentinels can then
// name different masters in the same epoch, and never agree by themselves. The server that the others
// replicate from is right.
func (g *SentinelGroup) reconcile() {
	var right *Server
	for _, s := range g.Servers {
		if role, err := redis.Values(s.Try("ROLE")); err == nil && text(role[0]) == "master" {
			if replicas, _ := redis.Values(role[2], nil); len(replicas) > 0 {
				right = s
			}
		}
	}
	if right == nil {
		return
	}
	host, port, _ := net.SplitHostPort(right.Addr)
	for _, sentinel := range g.Sentinels {
		fields, err := redis.StringMap(sentinel.Try("SENTINEL", "MASTER", g.Name))
		if err == nil && net.JoinHostPort(fields["ip"], fields["port"]) != right.Addr {
			g.t.Logf("sentinel %s is told that %s is the master, not port %s", sentinel.Addr, right.Addr, fields["port"])
			_, _ = sentinel.Try("SENTINEL", "REMOVE", g.Name)
			_, _ = sentinel.Try("SENTINEL", "MONITOR", g.Name, host, port, len(g.Sentinels)/2+1)
			_, _ = sentinel.Try("SENTINEL", "SET", g.Name, "down-after-milliseconds", g.downAfter.Milliseconds(), "failover-timeout", "3000")
		}
	}
}

// tell logs what sentinels and servers have said, where the test has failed.
func (g *SentinelGroup) tell() {
	if !g.t.Failed() {
		return
	}
	for _, s := range g.Sentinels {
		g.t.Logf("sentinel %s:\n%s", s.Addr, s.log.String())
		replicas, _ := redis.Values(s.Try("SENTINEL", "REPLICAS", g.Name))
		for _, r := range replicas {
			fields, _ := redis.StringMap(r, nil)
			g.t.Logf("sees %v", fields)
		}
	}
	for _, s := range g.Servers {
		if s.Running() {
			g.t.Logf("server %s, %q:\n%s", s.Addr, s.Role(), s.log.String())
		}
	}
}

// Failover has a sentinel replace the master in an orderly way, and returns the new one. A sentinel that has
// not heard of a replica yet, or not for some seconds, as happens on a busy machine, refuses (NOGOODSLAVE)
// or gives up half way: it is asked again.
func (g *SentinelGroup) Failover() *Server {
	g.t.Helper()
	before, sentinel := g.Master(), g.Sentinels[0]
	Await(g.t, "a sentinel that replaces the master", func() bool {
		fields, err := redis.StringMap(sentinel.Try("SENTINEL", "MASTER", g.Name))
		if err != nil {
			return false
		}
		if net.JoinHostPort(fields["ip"], fields["port"]) != before.Addr {
			return true
		}
		if fields["flags"] == "master" { // else it is at it
			_, _ = sentinel.Try("SENTINEL", "FAILOVER", g.Name)
		}
		return false
	})
	return g.AwaitFailover(before)
}

// AwaitFailover waits until the failover is over: each sentinel that answers has another server as the group's master than before, and it is
// one; with patience for sentinels that are starved of the processor themselves (see startSentinel).
//
// That each has it matters to a test that kills the new master next. The sentinel that leads a failover names the new
// master before it has made the other replicas follow it, and while it is at that, it never replaces a new master
// that dies: the failover ends only when the new master is up.
//
// Patience alone does not do. A sentinel never promotes a replica that had been without its master for more than
// ten times the down-after time when the sentinel itself saw the master down: both times grow together from then on, so
// sentinels that were starved for longer in that moment replace nobody, for good. Nor does it promote a replica
// that it takes to be down, as it does with each that is late by that time. So the longer it takes, the longer
// that time becomes, until it is over: a fifth of the time waited, so that ten times it are more than all of it,
// while the master stays down.
func (g *SentinelGroup) AwaitFailover(before *Server) (now *Server) {
	g.t.Helper()
	defer g.tell()
	began, raised := time.Now(), time.Duration(0)
	Await(g.t, "another master", func() bool {
		if waited := time.Since(began); waited > raised+10*time.Second {
			raised = waited
			g.takeAsDownAfter(waited / 5)
		}
		now = g.agreed()
		return now != nil && now != before
	})
	if raised > 0 {
		g.takeAsDownAfter(g.downAfter)
	}
	return now
}

// AwaitOK waits until the sentinels agree on a master, and all other servers are its replicas and in step.
func (g *SentinelGroup) AwaitOK() {
	g.t.Helper()
	Await(g.t, "replicas in step with the master", func() bool {
		master := g.agreed()
		for _, s := range g.Servers {
			role, err := redis.Values(s.Try("ROLE"))
			if err != nil || s != master && (text(role[0]) != "slave" || text(role[3]) != "connected") {
				return false
			}
		}
		return master != nil
	})
}

// Rejoin makes a server that was a master, or was down, follow the present master, as the sentinels will, in their time.
func (g *SentinelGroup) Rejoin(s *Server) {
	g.t.Helper()
	if !s.Running() {
		s.Start()
	}
	host, port, _ := net.SplitHostPort(g.Master().Addr)
	s.Do("REPLICAOF", host, port)
}

// DownAfter sets for how long a server must not have answered for a sentinel to take it to be down; at first half a second.
func (g *SentinelGroup) DownAfter(d time.Duration) {
	g.downAfter = d
	g.takeAsDownAfter(d)
}

func (g *SentinelGroup) takeAsDownAfter(d time.Duration) {
	for _, s := range g.Sentinels {
		_, _ = s.Try("SENTINEL", "SET", g.Name, "down-after-milliseconds", d.Milliseconds()) // one may be down itself
	}
}

// startSentinel runs the server as a sentinel. The caller holds mu.
func (s *Server) startSentinel(port string) {
	s.t.Helper()
	file := filepath.Join(s.dir, "sentinel.conf")
	if _, err := os.Stat(file); err != nil { // sentinels keep what they learn in it
		config := "port " + port + "\nbind 127.0.0.1\ndir " + s.dir + "\n" + s.sentinel
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	s.launch(file, "--sentinel")
	s.await()
	// A sentinel that was starved of the processor for 2 s ("tilt") does nothing for 30 s; a master that dies
	// meanwhile is never replaced, because by then its replicas have been without it for too long. Before
	// Redis 7 there is no such command, and the rest is patience.
	_, _ = s.Try("SENTINEL", "DEBUG", "tilt-period", "1000", "info-period", "2000", "publish-period", "500")
}

// Freeze stops the server's process until the returned function thaws it.
func (s *Server) Freeze() (thaw func()) {
	if s.virtual != nil {
		return s.virtual.Freeze()
	}
	s.Signal(syscall.SIGSTOP)
	return sync.OnceFunc(func() { s.Signal(syscall.SIGCONT) })
}
