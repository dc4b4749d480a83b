package soak

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// The topologies of a soak.
const (
	onSingle   = "single"
	onSentinel = "sentinel"
	onCluster  = "cluster"

	masterName = "locks"
)

// site is where a fleet works: the servers, and how the old clients, which know nothing of sentinels and
// clusters, get to the one that has their key.
type site struct {
	t        testing.TB
	topology string
	server   *redistest.Server // the one server of onSingle
	group    *redistest.SentinelGroup
	cluster  *redistest.Cluster
	book     *redistest.Server // the referee's, which no fault reaches
	monitor  *redistest.Monitor
	visited  []redistest.Command
	sets     []*keyset
	far      *redistest.Link // to the one server, for the member that is cut off
	lossy    []span          // when servers forgot what they had acknowledged
	broken   []span          // when connections of old clients broke
	expected []string        // the masters, as far as the faults have said
	checked  time.Time
}

// keyset are the keys of one fleet, on a cluster one on each master.
type keyset struct {
	keys []string
	// links are, for each key, an address that always stands for its master: what a virtual address or a
	// TCP proxy is to services whose client can only connect to one server. Whoever moves a key moves it.
	links []*redistest.Link
}

func newSite(t testing.TB, topology string, masters int) *site {
	t.Helper()
	s := &site{t: t, topology: topology, book: redistest.Real(t)}
	s.monitor = s.book.Monitor()
	switch topology {
	case onSingle:
		s.server = redistest.Real(t, "--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "local")
		s.far = redistest.NewLink(t, s.server.Addr)
	case onSentinel:
		s.group = redistest.NewSentinels(t, 2, 3)
		s.group.DownAfter(2 * time.Second) // a failover that nobody asked for, because the machine was busy, would lose what no fault lost
	case onCluster:
		s.cluster = redistest.NewCluster(t, masters, 1, "--cluster-node-timeout", "2000")
	default:
		t.Fatalf("no topology is named %q; they are single, sentinel, cluster", topology)
	}
	s.expect()
	return s
}

// keyset makes the keys of a fleet whose names begin with a prefix.
func (s *site) keyset(prefix string) *keyset {
	set := &keyset{keys: []string{prefix}}
	switch s.topology {
	case onSentinel:
		set.keys = []string{prefix + ":1", prefix + ":2"}
	case onCluster:
		set.keys = nil
		for i, masters := 0, len(s.cluster.Masters); i < masters; i++ {
			for n := 0; ; n++ {
				key := fmt.Sprintf("%s:%d", prefix, n)
				if protocol.Slot(key)*masters/redistest.Slots == i {
					set.keys = append(set.keys, key)
					break
				}
			}
		}
	}
	return s.linked(set)
}

func (s *site) linked(set *keyset) *keyset {
	for _, key := range set.keys {
		set.links = append(set.links, redistest.NewLink(s.t, s.owner(key).Addr))
	}
	s.sets = append(s.sets, set)
	return set
}

// allKeys are the keys of all fleets.
func (s *site) allKeys() (keys []string) {
	for _, set := range s.sets {
		keys = append(keys, set.keys...)
	}
	return keys
}

// owner returns the server that has a key.
func (s *site) owner(key string) *redistest.Server {
	switch s.topology {
	case onSentinel:
		return s.group.Master()
	case onCluster:
		return s.cluster.Owner(protocol.Slot(key))
	default:
		return s.server
	}
}

// servers are all that hold keys.
func (s *site) servers() []*redistest.Server {
	switch s.topology {
	case onSentinel:
		return s.group.Servers
	case onCluster:
		return s.cluster.Nodes()
	default:
		return []*redistest.Server{s.server}
	}
}

// moved lets the old clients' addresses stand for the masters of the present.
func (s *site) moved() {
	for _, set := range s.sets {
		for i, l := range set.links {
			l.Retarget(s.owner(set.keys[i]).Addr)
			l.Cut()
		}
	}
}

// pool connects as a service on this topology does.
func (s *site) pool() (pool, error) {
	if s.topology == onSingle {
		return s.server.Pool(), nil
	}
	return poolOf(nil, s.where())
}

// url is where a client connects that knows only one server, which has the i-th key.
func (s *site) url(set *keyset, i int) string {
	if s.topology == onSingle {
		return s.server.URL()
	}
	return fmt.Sprintf("redis://%s/0", set.links[i].Addr)
}

// where are the arguments of a holder whose client knows the topology.
func (s *site) where() map[string]string {
	switch s.topology {
	case onSentinel:
		return map[string]string{"sentinels": strings.Join(s.group.Addrs(), ","), "master": masterName}
	case onCluster:
		return map[string]string{"cluster": strings.Join(s.cluster.Addrs(), ",")}
	default:
		return nil
	}
}

func (s *site) knowing() (options []holders.Option) {
	for name, value := range s.where() {
		options = append(options, holders.Arg(name, value))
	}
	return options
}

// each sends a command to every server that runs.
func (s *site) each(name string, args ...any) {
	for _, server := range s.servers() {
		if server.Running() {
			_, _ = server.Try(name, args...)
		}
	}
}

// masters tells who is a master, of those servers that run.
func (s *site) masters() []string {
	s.t.Helper()
	var names []string
	for _, server := range s.servers() {
		if !server.Running() {
			continue
		}
		role := ""
		redistest.Await(s.t, "a server to tell its role", func() bool {
			role = server.Role()
			return role != ""
		})
		if role == "master" {
			names = append(names, server.Addr)
		}
	}
	slices.Sort(names)
	return names
}

// expect takes the masters of the present for those that should be.
func (s *site) expect() { s.expected, s.checked = s.masters(), time.Now() }

// unasked notices a failover that no fault asked for, as a machine that stands still for seconds brings
// about: it may lose what any failover loses.
func (s *site) unasked() bool {
	s.t.Helper()
	if s.topology == onSingle || slices.Equal(s.masters(), s.expected) {
		s.checked = time.Now()
		return false
	}
	from := s.checked
	s.settle()
	s.moved()
	s.expect()
	s.lossy = append(s.lossy, span{from, s.checked})
	return true
}

// breaking runs a fault that breaks connections of old clients and loses nothing.
func (s *site) breaking(fault func()) { during(&s.broken, fault) }

// during notes when a fault went on. The span is open while it does.
func during(spans *[]span, fault func()) {
	from, n := time.Now(), len(*spans)
	*spans = append(*spans, span{from, from.Add(time.Hour)})
	fault()
	(*spans)[n].to = time.Now()
}

// recorded returns everything that was written into the book so far.
func (s *site) recorded() []redistest.Command {
	s.visited = append(s.visited, s.monitor.Commands()...)
	return s.visited
}

// failover hands the i-th master's keys to its replica. One way is in order: on a cluster nothing is lost
// then. The other is kill -9, by default of a master whose replicas have not heard of it for a while.
func (s *site) failover(i int, kill bool, unheard time.Duration) {
	s.t.Helper()
	if s.topology == onSentinel {
		before := s.group.Master()
		if kill {
			replicas := slices.DeleteFunc(slices.Clone(s.group.Servers), func(x *redistest.Server) bool { return x == before })
			s.kill(before, replicas, unheard)
			s.group.AwaitFailover(before)
		} else {
			s.group.Failover()
		}
		s.group.Rejoin(before)
		s.moved()
		return
	}
	s.cluster.Pairs()
	i %= len(s.cluster.Masters)
	master, replica := s.cluster.Masters[i], s.cluster.Replicas[i][0]
	var slots []int
	for _, key := range s.allKeys() {
		if s.owner(key) == master {
			slots = append(slots, protocol.Slot(key))
		}
	}
	if kill {
		s.kill(master, []*redistest.Server{replica}, unheard)
		s.cluster.AwaitMaster(replica)
		master.Start()
	} else {
		s.cluster.Failover(replica)
	}
	s.cluster.AwaitOK()
	for _, slot := range slots {
		s.cluster.AwaitOwner(slot, replica)
	}
	s.moved()
	s.cluster.Pairs()
}

// orderly lets the i-th master of a cluster hand over to its replica. Anything else that changes meanwhile is
// left for unasked to notice.
func (s *site) orderly(i int) {
	s.t.Helper()
	s.cluster.Pairs()
	i %= len(s.cluster.Masters)
	from, to := s.cluster.Masters[i].Addr, s.cluster.Replicas[i][0].Addr
	s.failover(i, false, 0)
	if n := slices.Index(s.expected, from); n >= 0 {
		s.expected[n] = to
		slices.Sort(s.expected)
	}
}

// kill kills a master when its replicas have not heard of it for a while: they could not authenticate.
func (s *site) kill(master *redistest.Server, replicas []*redistest.Server, unheard time.Duration) {
	password := func(p string) {
		for _, r := range replicas {
			r.Do("CONFIG", "SET", "masterauth", p)
		}
	}
	if unheard > 0 {
		password("wrong")
		for _, r := range replicas {
			r.Do("CLIENT", "KILL", "TYPE", "master")
		}
		time.Sleep(unheard) // the subject: what is acknowledged now is lost
	}
	master.Kill()
	if unheard > 0 {
		password("")
	}
}

// reshard moves a key's slot to the next master.
func (s *site) reshard(key string) {
	s.t.Helper()
	slot := protocol.Slot(key)
	from := s.cluster.Owner(slot)
	for n, m := range s.cluster.Masters {
		if m == from {
			s.cluster.Migrate(slot, s.cluster.Masters[(n+1)%len(s.cluster.Masters)]).Finish()
			break
		}
	}
	s.moved()
}

// settle waits until everything is up and in step.
func (s *site) settle() {
	switch s.topology {
	case onCluster:
		s.cluster.AwaitOK()
	case onSentinel:
		s.group.AwaitOK()
	}
}
