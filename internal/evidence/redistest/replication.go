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
	return NewReplicatedOf(t, "", args...)
}

// NewReplicatedOf is NewReplicated of another version, see Of. The options have the names that every version knows.
func NewReplicatedOf(t testing.TB, name string, args ...string) *Replicated {
	t.Helper()
	Need(t, Redis)
	args = append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-slave-period", "1", "--repl-timeout", "60"}, args...)
	r := &Replicated{Master: newServerOf(t, name, args...)}
	r.Master.Start()
	r.Link = NewLink(t, r.Master.Addr)
	r.Replica = newServerOf(t, name, slices.Concat(args, follows(r.Link.Addr))...)
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
	Await(t, "a replica in step", 10*time.Second, func() bool {
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

	t testing.TB
}

// NewSentinels starts a master with replicas and sentinels that agree on it.
func NewSentinels(t testing.TB, replicas, sentinels int, args ...string) *SentinelGroup {
	t.Helper()
	return NewSentinelsOf(t, "", replicas, sentinels, args...)
}

// NewSentinelsOf is NewSentinels of another version, see Of.
func NewSentinelsOf(t testing.TB, name string, replicas, sentinels int, args ...string) *SentinelGroup {
	t.Helper()
	Need(t, Redis)
	g := &SentinelGroup{Name: "locks", t: t}
	args = append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-slave-period", "1"}, args...)
	g.Servers = []*Server{newServerOf(t, name, args...)}
	g.Servers[0].Start()
	host, port, _ := net.SplitHostPort(g.Servers[0].Addr)
	var starting sync.WaitGroup
	for range replicas {
		s := newServerOf(t, name, slices.Concat(args, follows(g.Servers[0].Addr))...)
		g.Servers = append(g.Servers, s)
		starting.Go(s.Start)
	}
	for range sentinels {
		s := newServerOf(t, name)
		s.sentinel = fmt.Sprintf(`sentinel monitor %[1]s %[2]s %[3]s %[4]d
sentinel down-after-milliseconds %[1]s %[5]d
sentinel failover-timeout %[1]s 3000
`, g.Name, host, port, sentinels/2+1, DownAfter.Milliseconds())
		g.Sentinels = append(g.Sentinels, s)
		starting.Go(s.Start)
	}
	starting.Wait()
	Await(t, "sentinels that know each other", 20*time.Second, func() bool {
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
func (g *SentinelGroup) Addrs() []string {
	var addrs []string
	for _, s := range g.Sentinels {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// URL names the group as lockmigrate's --redis does.
func (g *SentinelGroup) URL() string {
	return "redis+sentinel://" + strings.Join(g.Addrs(), ",") + "/" + g.Name
}

// Master returns the server that the sentinels name.
func (g *SentinelGroup) Master() *Server {
	g.t.Helper()
	for _, sentinel := range g.Sentinels {
		parts, err := redis.Strings(sentinel.Try("SENTINEL", "GET-MASTER-ADDR-BY-NAME", g.Name))
		if err != nil || len(parts) != 2 {
			continue
		}
		for _, s := range g.Servers {
			if s.Addr == net.JoinHostPort(parts[0], parts[1]) {
				return s
			}
		}
	}
	g.t.Fatal("no sentinel names a master")
	return nil
}

// Failover has a sentinel replace the master in an orderly way, and returns the new one. A sentinel that has
// not heard of a replica yet, or not for some seconds, as happens on a busy machine, refuses (NOGOODSLAVE)
// or gives up half way: it is asked again.
func (g *SentinelGroup) Failover() *Server {
	g.t.Helper()
	before, sentinel := g.Master(), g.Sentinels[0]
	Await(g.t, "a sentinel that replaces the master", 2*time.Minute, func() bool {
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

// DownAfter is for how long a server must not have answered for a sentinel to take it to be down.
const DownAfter = 500 * time.Millisecond

// AwaitFailover waits until the failover is over: the sentinels name another master than before, it is one, and
// each sentinel that answers has it as the group's master; with patience for sentinels that are starved of the
// processor themselves (see startSentinel).
//
// That each has it matters to a test that kills the new master next. The sentinel that leads a failover names the new
// master before it has made the other replicas follow it, and while it is at that, it never replaces a new master
// that dies: the failover ends only when the new master is up.
//
// Patience alone does not do. A sentinel never promotes a replica that had been without its master for more than
// ten times DownAfter when the sentinel itself saw the master down: both times grow together from then on, so
// sentinels that were starved for longer in that moment replace nobody, for good. Nor does it promote a replica
// that it takes to be down, as it does with each that is late by DownAfter. So the longer it takes, the longer
// DownAfter becomes, until it is over: a fifth of the time waited, so that ten times it are more than all of it,
// while the master stays down.
func (g *SentinelGroup) AwaitFailover(before *Server) *Server {
	g.t.Helper()
	defer func() {
		if g.t.Failed() {
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
					g.t.Logf("server %s:\n%s", s.Addr, s.log.String())
				}
			}
		}
	}()
	began, raised := time.Now(), time.Duration(0)
	Await(g.t, "another master", 2*time.Minute, func() bool {
		if waited := time.Since(began); waited > raised+10*time.Second {
			raised = waited
			g.takeAsDownAfter(waited / 5)
		}
		now := g.Master()
		if now == before {
			return false
		}
		role, err := redis.Values(now.Try("ROLE"))
		return err == nil && text(role[0]) == "master" && g.allHave(now)
	})
	if raised > 0 {
		g.takeAsDownAfter(DownAfter)
	}
	return g.Master()
}

// allHave tells that s is the group's master for each sentinel that answers, with no failover under way.
func (g *SentinelGroup) allHave(s *Server) bool {
	for _, sentinel := range g.Sentinels {
		fields, err := redis.StringMap(sentinel.Try("SENTINEL", "MASTER", g.Name))
		if err == nil && (net.JoinHostPort(fields["ip"], fields["port"]) != s.Addr || strings.Contains(fields["flags"], "failover_in_progress")) {
			return false
		}
	}
	return true
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
	s.await(s.ping)
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
