package redistest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Slots is how many slots a cluster has.
const Slots = 16384

// Cluster is a Redis Cluster of one test.
type Cluster struct {
	Masters  []*Server   // as they were at the start, or at the last Pairs
	Replicas [][]*Server // of each master

	t testing.TB
}

// NodeTimeout is after how long a cluster of a test takes a node that is silent for dead.
const NodeTimeout = 600 * time.Millisecond

// NewCluster starts a cluster with the slots spread evenly and waits until every node serves it, which
// takes Redis two seconds.
func NewCluster(t testing.TB, masters, replicas int, args ...string) *Cluster {
	t.Helper()
	return Shape{}.Cluster(t, masters, replicas, args...)
}

// Cluster is NewCluster of servers of a shape, from Redis 5.0 on. With TLS they speak nothing else among themselves either.
func (shape Shape) Cluster(t testing.TB, masters, replicas int, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Replicas: make([][]*Server, masters)}
	args = append([]string{
		"--cluster-enabled", "yes", "--cluster-node-timeout", fmt.Sprint(NodeTimeout.Milliseconds()),
		"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
	}, args...)
	if shape.TLS != nil {
		args = append(args, "--tls-cluster", "yes", "--tls-replication", "yes")
	}
	before7 := strings.HasPrefix(shape.Version, "redis-5.") || strings.HasPrefix(shape.Version, "redis-6.")
	if !before7 { // DEBUG needs no such word there, and the bus is 10,000 above the port
		args = append([]string{"--enable-debug-command", "local"}, args...)
	}
	var all []*Server
	for i := range masters * (1 + replicas) {
		s := shape.server(t, slices.Concat(args, []string{"--cluster-config-file", fmt.Sprintf("nodes-%d.conf", i)})...)
		s.bus = busOf(s.Addr)
		if !before7 {
			_, s.bus, _ = net.SplitHostPort(FreeAddr(t))
			s.args = append(s.args, "--cluster-port", s.bus)
		}
		all = append(all, s)
	}
	c.Masters = all[:masters]
	for i, s := range all[masters:] {
		c.Replicas[i%masters] = append(c.Replicas[i%masters], s)
	}
	var starting sync.WaitGroup
	for _, s := range all {
		starting.Go(s.Start)
	}
	starting.Wait()
	for i, s := range all {
		s.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < masters {
			s.addSlots(i*Slots/masters, (i+1)*Slots/masters-1)
		}
	}
	var met time.Time
	Await(c.t, "nodes that know all others", func() bool {
		// Everybody meets everybody: gossip alone would take seconds to spread the word. On a busy machine a
		// handshake may take longer than the second that Redis gives it, and is then forgotten: again.
		if time.Since(met) > 3*time.Second {
			met = time.Now()
			for i, s := range all {
				for _, other := range all[:i] {
					host, port, _ := net.SplitHostPort(other.Addr)
					_, _ = s.Try("CLUSTER", "MEET", host, port, other.bus)
				}
			}
		}
		for _, s := range all {
			nodes, _ := s.Try("CLUSTER", "NODES")
			known := 0
			for line := range strings.Lines(text(nodes)) {
				if fields := strings.Fields(line); len(fields) > 7 && fields[7] == "connected" && !strings.Contains(fields[2], "handshake") {
					known++
				}
			}
			if known < len(all) {
				return false
			}
		}
		return true
	})
	for i, group := range c.Replicas {
		id := text(c.Masters[i].Do("CLUSTER", "MYID"))
		for _, r := range group {
			r.Do("CLUSTER", "REPLICATE", id)
		}
	}
	c.AwaitOK()
	return c
}

// addSlots gives a node a range of slots.
func (s *Server) addSlots(from, to int) {
	s.t.Helper()
	if _, err := s.Try("CLUSTER", "ADDSLOTSRANGE", from, to); err == nil {
		return
	}
	args := []any{"ADDSLOTS"} // before 7.0
	for slot := from; slot <= to; slot++ {
		args = append(args, slot)
	}
	s.Do("CLUSTER", args...)
}

// busOf is the port of a node's bus where it cannot be chosen.
func busOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return strconv.Itoa(n + 10_000)
}

// Nodes returns all servers.
func (c *Cluster) Nodes() []*Server {
	all := append([]*Server(nil), c.Masters...)
	for _, group := range c.Replicas {
		all = append(all, group...)
	}
	return all
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrsOf(c.Nodes()) }

func addrsOf(servers []*Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// URL names the cluster as lockmigrate's --redis does.
func (c *Cluster) URL() string { return "redis+cluster://" + strings.Join(c.Addrs(), ",") }

// AwaitOK waits until every node that runs says that all slots are served, and every replica is in step.
func (c *Cluster) AwaitOK() {
	c.t.Helper()
	Await(c.t, "a cluster that is up", func() bool {
		for _, s := range c.Nodes() {
			if !s.Running() {
				continue
			}
			info, err := s.Try("CLUSTER", "INFO")
			if err != nil || !strings.Contains(text(info), "cluster_state:ok") {
				return false
			}
			role, err := redis.Values(s.Try("ROLE"))
			if err != nil || text(role[0]) == "slave" && text(role[3]) != "connected" {
				return false
			}
		}
		return true
	})
}

// Owner returns the node that serves a slot, as most nodes see it.
func (c *Cluster) Owner(slot int) *Server {
	c.t.Helper()
	votes := map[string]int{}
	for _, s := range c.Nodes() {
		if s.Running() {
			addr := s.owner(slot)
			votes[addr]++
			if addr == s.Addr { // it should know
				votes[addr]++
			}
		}
	}
	var best *Server
	for _, s := range c.Nodes() {
		if n := votes[s.Addr]; n > 0 && (best == nil || n > votes[best.Addr]) {
			best = s
		}
	}
	if best == nil {
		c.t.Fatalf("nobody serves slot %d: %v", slot, votes)
	}
	return best
}

// AwaitOwner waits until every node that runs names the server as the owner of a slot: after a failover word
// of it takes a moment to go round.
func (c *Cluster) AwaitOwner(slot int, owner *Server) {
	c.t.Helper()
	Await(c.t, "everybody to name a slot's new owner", func() bool {
		for _, s := range c.Nodes() {
			if s.Running() && s.owner(slot) != owner.Addr {
				return false
			}
		}
		return true
	})
}

// Migration is the move of one slot to another node, in steps.
type Migration struct {
	cluster  *Cluster
	slot     int
	From, To *Server
}

// Migrate begins to move a slot: from now on keys that are absent on From answer with ASK.
func (c *Cluster) Migrate(slot int, to *Server) *Migration {
	c.t.Helper()
	m := &Migration{cluster: c, slot: slot, To: to}
	// The last move may not have come round to everybody.
	Await(c.t, "the owner of a slot to begin its move", func() bool {
		m.From = c.Owner(slot)
		if m.From == to {
			return true // it has it already
		}
		_, err1 := to.Try("CLUSTER", "SETSLOT", slot, "IMPORTING", text(m.From.Do("CLUSTER", "MYID")))
		_, err2 := m.From.Try("CLUSTER", "SETSLOT", slot, "MIGRATING", text(to.Do("CLUSTER", "MYID")))
		if err1 != nil || err2 != nil {
			_, _ = to.Try("CLUSTER", "SETSLOT", slot, "STABLE")
			_, _ = m.From.Try("CLUSTER", "SETSLOT", slot, "STABLE")
		}
		return err1 == nil && err2 == nil
	})
	return m
}

// Keys moves up to n keys of the slot and returns how many went.
func (m *Migration) Keys(n int) int {
	m.cluster.t.Helper()
	if m.From == m.To {
		return 0
	}
	keys, _ := redis.Strings(m.From.Do("CLUSTER", "GETKEYSINSLOT", m.slot, n), nil)
	host, port, _ := net.SplitHostPort(m.To.Addr)
	for _, key := range keys {
		m.From.Do("MIGRATE", host, port, key, 0, 5000) // NOKEY, when it has gone meanwhile, is fine
	}
	return len(keys)
}

// Finish moves what is left and gives the slot to its new owner.
func (m *Migration) Finish() {
	m.cluster.t.Helper()
	if m.From == m.To {
		return
	}
	for m.Keys(100) > 0 {
		continue
	}
	id := text(m.To.Do("CLUSTER", "MYID"))
	m.To.Do("CLUSTER", "SETSLOT", m.slot, "NODE", id)
	// Moves that follow each other faster than gossip can end with two nodes that each name the other, for
	// good. The newest epoch wins.
	m.To.Do("CLUSTER", "BUMPEPOCH")
	for _, s := range m.cluster.Masters {
		if s.Running() {
			_, _ = s.Try("CLUSTER", "SETSLOT", m.slot, "NODE", id) // ends the migrating state; a replica takes no such command
		}
	}
	// Nor may the next move begin before everybody has heard of this epoch: its own would be the same.
	Await(m.cluster.t, "everybody to agree on the slot's owner", func() bool {
		agreed, epoch := true, m.To.epoch()
		for _, s := range m.cluster.Nodes() {
			if s.Running() && s.owner(m.slot) != m.To.Addr {
				agreed = false
				_, _ = s.Try("CLUSTER", "SETSLOT", m.slot, "NODE", id) // a replica takes no such command
			}
		}
		for _, s := range m.cluster.Nodes() {
			agreed = agreed && (!s.Running() || s.epoch() == epoch)
		}
		return agreed
	})
	for _, s := range []*Server{m.From, m.To} {
		if s.Running() {
			s.Do("CLUSTER", "SETSLOT", m.slot, "STABLE")
		}
	}
}

// MoveWhole has the server itself move a slot to another node, with all its keys at once: Valkey 9 and Redis 8.4 have commands for
// that. It returns when everybody names the new owner.
func (c *Cluster) MoveWhole(slot int, to *Server) {
	c.t.Helper()
	from := c.Owner(slot)
	if from == to {
		return
	}
	// The node that was given a slot last may still be tidying up; and a move that holds writes up for longer than the server is to allow is given up.
	Await(c.t, "a slot's move as a whole", func() bool {
		_, err := from.Try("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", text(to.Do("CLUSTER", "MYID")))
		if err != nil && strings.Contains(err.Error(), "unknown subcommand") {
			_, _ = to.Try("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
		}
		return from.owner(slot) == to.Addr
	})
	c.AwaitOwner(slot, to)
}

// epoch returns the newest configuration epoch that a node has heard of.
func (s *Server) epoch() string {
	info, _ := s.Try("CLUSTER", "INFO")
	_, after, _ := strings.Cut(text(info), "cluster_current_epoch:")
	epoch, _, _ := strings.Cut(after, "\r")
	return epoch
}

// owner returns the address that a node names for a slot.
func (s *Server) owner(slot int) string {
	ranges, _ := redis.Values(s.Try("CLUSTER", "SLOTS"))
	for _, r := range ranges {
		span, _ := redis.Values(r, nil)
		from, _ := redis.Int(span[0], nil)
		to, _ := redis.Int(span[1], nil)
		if slot >= from && slot <= to {
			node, _ := redis.Values(span[2], nil)
			port, _ := redis.Int(node[1], nil)
			return fmt.Sprintf("%s:%d", text(node[0]), port)
		}
	}
	return ""
}

// Failover makes a replica take over from its master in an orderly way, and waits until it has.
func (c *Cluster) Failover(replica *Server) {
	c.t.Helper()
	// A failover that is not through within 5 s is given up by the replica, and has to be asked for again.
	const givenUp = 6 * time.Second
	var asked time.Time
	Await(c.t, "a replica that took over", func() bool {
		if replica.Role() == "master" {
			return true
		}
		if time.Since(asked) > givenUp {
			_, _ = replica.Try("CLUSTER", "FAILOVER") // refused while its master is down: then it takes over by itself
			asked = time.Now()
		}
		return false
	})
}

// AwaitMaster waits until a node is a master.
func (c *Cluster) AwaitMaster(s *Server) {
	c.t.Helper()
	Await(c.t, "a replica that became the master", func() bool { return s.Role() == "master" })
}

// Pairs puts the masters of the present first, where each has one replica: any pair may have changed places.
func (c *Cluster) Pairs() {
	for i, group := range c.Replicas {
		role := "down"
		if group[0].Running() {
			Await(c.t, "a node to tell its role", func() bool { role = group[0].Role(); return role != "" })
		}
		if role == "master" {
			c.Masters[i], group[0] = group[0], c.Masters[i]
		}
	}
}

// Await polls another process until something is so that has to come, however slow the machine is.
func Await(t testing.TB, what string, reached func() bool) {
	t.Helper()
	Within(t, what, 3*time.Minute, reached)
}

// Within is Await for what is promised by then.
func Within(t testing.TB, what string, within time.Duration, reached func() bool) {
	t.Helper()
	for deadline, pause := time.Now().Add(within), 100*time.Microsecond; !reached(); pause = min(2*pause, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for %s", within, what)
		}
		time.Sleep(pause) // polling another process: there is nothing to be notified by
	}
}

// Bounded is a context of the test's that ends after a time.
func Bounded(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Running tells that the server's process is there.
func (s *Server) Running() bool { return s.PID() != 0 }

// Role is what the server says that it is, master or slave; "" where it does not answer.
func (s *Server) Role() string {
	role, err := redis.Values(s.Try("ROLE"))
	if err != nil || len(role) == 0 {
		return ""
	}
	return text(role[0])
}

// Try runs one command on a fresh connection, within a second.
func (s *Server) Try(name string, args ...any) (any, error) {
	return s.ask(time.Second, name, args...)
}

func (s *Server) ask(within time.Duration, name string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	conn, err := s.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return redis.DoWithTimeout(conn, within, name, args...)
}

// text reads a bulk or simple string; a cluster node without a name of its own is on the loopback.
func text(v any) string {
	s, _ := redis.String(v, nil)
	return s
}
