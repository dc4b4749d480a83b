package endpoint

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

// sentinel is a server that answers for the master "orders".
func sentinel(t *testing.T, master string) string { return sentinelAt(t, master, "1") }

// sentinelAt is one whose settings are of an epoch.
func sentinelAt(t *testing.T, master, epoch string) string {
	t.Helper()
	s, err := server.NewServer("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.NoError(t, s.Register("PING", func(c *server.Peer, _ string, _ []string) { c.WriteInline("PONG") }))
	require.NoError(t, s.Register("CLIENT", func(c *server.Peer, _ string, _ []string) { c.WriteOK() }))
	require.NoError(t, s.Register("SENTINEL", func(c *server.Peer, _ string, args []string) {
		if args[1] != "orders" {
			c.WriteError("ERR No such master with that name")
			return
		}
		host, port, _ := net.SplitHostPort(master)
		if args[0] == "MASTER" {
			c.WriteStrings([]string{"name", "orders", "config-epoch", epoch})
			return
		}
		c.WriteStrings([]string{host, port})
	}))
	return s.Addr().String()
}

func TestSentinel(t *testing.T) {
	master := redistest.Mini(t)
	good := sentinel(t, master.Addr)
	gone := redistest.FreeAddr(t)
	e := parsed(t, "redis+sentinel://"+gone+","+good+"/orders?db=2", TLSFiles{})
	writes(t, e)
	assert.True(t, master.Mini.DB(2).Exists("k"))

	masters, err := e.Masters(context.Background())
	require.NoError(t, err)
	assert.Equal(t, []string{master.Addr}, masters)

	assert.EqualError(t, dialError(t, "redis+sentinel://"+good+"/other", TLSFiles{}), "the sentinel "+good+` knows no master "other"`)
	assert.EqualError(t, dialError(t, "redis+sentinel://"+gone+","+good+"/other", TLSFiles{}), "the sentinel "+good+` knows no master "other"`, "not that one is dead")
	assert.EqualError(t, dialError(t, "redis+sentinel://"+master.Addr+"/orders", TLSFiles{}), master.Addr+" is no sentinel")
}

// TestTheNewestSentinelCounts: a tool may not look at a master that was replaced, though the first sentinel still names it, and
// though that server takes itself for a master. verify would see nobody there.
func TestTheNewestSentinelCounts(t *testing.T) {
	old, master := redistest.Real(t), redistest.Real(t)
	stale, fresh := sentinelAt(t, old.Addr, "3"), sentinelAt(t, master.Addr, "4")
	for _, order := range []string{stale + "," + fresh, fresh + "," + stale} {
		e := parsed(t, "redis+sentinel://"+order+"/orders", TLSFiles{})
		masters, err := e.Masters(context.Background())
		require.NoError(t, err)
		assert.Equal(t, []string{master.Addr}, masters)
		writes(t, e)
	}
	assert.EqualValues(t, 0, old.Do("EXISTS", "k"))
}

func TestSentinelThatNamesAReplica(t *testing.T) {
	master := redistest.Real(t)
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := redistest.Real(t, "--replicaof", host+" "+port)
	err := dialError(t, "redis+sentinel://"+sentinel(t, replica.Addr)+"/orders", TLSFiles{})
	assert.EqualError(t, err, replica.Addr+" is no master any more")
}

func TestCluster(t *testing.T) {
	empty := redistest.Real(t, "--cluster-enabled", "yes")
	assert.EqualError(t, dialMasters(t, empty.Addr).err, "the cluster serves 0 of 16384 slots")
	c := redistest.NewCluster(t, 2, 0)
	assert.ElementsMatch(t, []string{c.Masters[0].Addr, c.Masters[1].Addr}, dialMasters(t, c.Masters[0].Addr).addrs)
	plain := redistest.Real(t)
	assert.EqualError(t, dialMasters(t, plain.Addr).err, "the server is not part of a cluster")
}

// TestNodesWithoutTheNameThatTheClusterPrefers: each answers "?" for the host, and tells its address beside it. The nodes differ by
// address alone. A tool that took the asked node for all of them looked at one server, and verify said none-seen of the cluster.
func TestNodesWithoutTheNameThatTheClusterPrefers(t *testing.T) {
	args := []string{"--cluster-enabled", "yes", "--cluster-preferred-endpoint-type", "hostname", "--cluster-announce-ip"}
	a := redistest.Real(t, append(args, "127.0.0.1")...)
	_, port, _ := net.SplitHostPort(a.Addr)
	b := redistest.Shape{Addr: "127.0.0.2:" + port}.Start(t, append(args, "127.0.0.2")...)
	a.Do("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
	b.Do("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
	b.Do("CLUSTER", "MEET", "127.0.0.1", port)
	a.Do("CLUSTER", "MEET", "127.0.0.2", port)
	redistest.Await(t, "a cluster", func() bool {
		info, _ := redis.String(a.Try("CLUSTER", "INFO"))
		other, _ := redis.String(b.Try("CLUSTER", "INFO"))
		return strings.Contains(info, "cluster_state:ok") && strings.Contains(other, "cluster_state:ok")
	})
	for _, asked := range []string{a.Addr, b.Addr} {
		assert.ElementsMatch(t, []string{a.Addr, b.Addr}, dialMasters(t, asked).addrs, asked)
		hold(t, "redis+cluster://"+asked, TLSFiles{}) // MOVED names "?" too
	}
	// Without any host for a node they cannot be told apart.
	for _, s := range []*redistest.Server{a, b} {
		s.Do("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
	}
	assert.ErrorContains(t, dialMasters(t, a.Addr).err, "two masters have the address "+a.Addr)
}

// TestAddressesThatLeadNowhere: behind NAT what is announced cannot be reached. The error says who named the address.
func TestAddressesThatLeadNowhere(t *testing.T) {
	nowhere := redistest.Real(t)
	nowhere.Kill()
	host, port, _ := net.SplitHostPort(nowhere.Addr)
	s := redistest.Real(t, "--cluster-enabled", "yes", "--cluster-announce-ip", host, "--cluster-announce-port", port)
	s.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	e := parsed(t, "redis+cluster://"+s.Addr, TLSFiles{})
	addrs, err := e.Masters(context.Background())
	require.NoError(t, err)
	_, err = e.DialAddr(context.Background(), addrs[0])
	assert.EqualError(t, err, "cannot connect to "+nowhere.Addr+", which the cluster announces: connection refused")
	assert.EqualError(t, dialError(t, "redis+sentinel://"+sentinel(t, nowhere.Addr)+"/orders", TLSFiles{}), "cannot connect to "+nowhere.Addr+", which the sentinels name: connection refused")
}

// TestNodesWithoutAnEndpoint are reached by the name of the URL. With TLS their certificates have that name, and no address.
func TestNodesWithoutAnEndpoint(t *testing.T) {
	s := redistest.Real(t, "--cluster-enabled", "yes", "--cluster-preferred-endpoint-type", "unknown-endpoint")
	s.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	_, port, _ := net.SplitHostPort(s.Addr)
	assert.Equal(t, masters{[]string{"localhost:" + port}, nil}, dialMasters(t, "localhost:"+port))
}

// TestReplicasByName: CLUSTER SLOTS gives names, CLUSTER NODES addresses. Each server is named once.
func TestReplicasByName(t *testing.T) {
	c := redistest.NewCluster(t, 1, 1, "--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname")
	e := parsed(t, "redis+cluster://"+c.Masters[0].Addr, TLSFiles{})
	byName := func(s *redistest.Server) string { return strings.Replace(s.Addr, "127.0.0.1", "localhost", 1) }
	want := []Node{{byName(c.Masters[0]), false}, {byName(c.Replicas[0][0]), true}}
	redistest.Await(t, "the names to go round", func() bool {
		nodes, err := e.Nodes(context.Background())
		return err == nil && len(nodes) == 2 && nodes[0] == want[0] && nodes[1] == want[1]
	})
}

// FuzzNodes reads what a server, or whoever is in between, answers to CLUSTER NODES.
func FuzzNodes(f *testing.F) {
	f.Add("07c3 127.0.0.1:30004@31004,name slave e7d1 0 1426238317239 4 connected\n67ed :30002@31002 myself,master - 0 0 2 connected 5461-10922\n")
	f.Add("292f ::1:30003@31003 slave,fail 67ed 1426238316232 0 3 disconnected\n6ec2 :0@0 slave,noaddr - 0 0 5 disconnected\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, addr := range replicasIn(text, "10.0.0.1:7000", nil) {
			if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "0" {
				t.Fatalf("%q: %v", addr, err)
			}
		}
	})
}

func TestReplicasThatAreDown(t *testing.T) {
	c := redistest.NewCluster(t, 1, 2)
	c.Replicas[0][0].Kill()
	redistest.Await(t, "the others to give it up", func() bool {
		return strings.Contains(string(c.Masters[0].Do("CLUSTER", "NODES").([]byte)), "slave,fail ")
	})
	e := parsed(t, "redis+cluster://"+c.Masters[0].Addr, TLSFiles{})
	nodes, err := e.Nodes(context.Background())
	require.NoError(t, err)
	assert.ElementsMatch(t, []Node{{c.Masters[0].Addr, false}, {c.Replicas[0][0].Addr, true}, {c.Replicas[0][1].Addr, true}}, nodes)
}

type masters struct {
	addrs []string
	err   error
}

func dialMasters(t *testing.T, addr string) masters {
	t.Helper()
	e := parsed(t, "redis+cluster://"+addr, TLSFiles{})
	addrs, err := e.Masters(context.Background())
	return masters{addrs, err}
}

func TestMasterOf(t *testing.T) {
	c := redistest.NewCluster(t, 3, 0)
	e := parsed(t, c.URL(), TLSFiles{})
	for _, key := range []string{"a", "b", "c", "{c}d"} {
		addr, err := e.MasterOf(context.Background(), key)
		require.NoError(t, err)
		conn, err := e.DialAddr(context.Background(), addr)
		require.NoError(t, err)
		_, err = conn.Do("GET", key)
		assert.NoError(t, err, "%s is of %s", key, addr)
		_ = conn.Close()
	}
}

// hold takes and gives back a lock of each kind over a URL.
func hold(t *testing.T, url string, files TLSFiles) {
	t.Helper()
	e := parsed(t, url, files)
	pool, err := e.Locks()
	require.NoError(t, err)
	defer pool.Close()
	ctx := redistest.Bounded(t, 20*time.Second)
	var mode redistest.Mode
	m, err := modern.New(pool, modern.Options{FenceTTL: time.Minute, Observer: mode.Observe})
	require.NoError(t, err)
	defer m.Close()
	l, err := legacy.New(pool, legacy.Options{})
	require.NoError(t, err)
	defer l.Close()
	for _, key := range []string{"a", "b", "c"} { // in three slots
		require.NoError(t, m.Do(ctx, "modern:"+key, func(context.Context) error { return nil }))
		require.NoError(t, l.Do(ctx, "legacy:"+key, func(context.Context) error { return nil }))
	}
	// Waiting too: it has connections of its own.
	k, err := m.Acquire(ctx, "modern:a")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() { waiting <- m.Do(ctx, "modern:a", func(context.Context) error { return nil }) }()
	redistest.Await(t, "a waiter", func() bool { return mode.Is() == "tracking" })
	require.NoError(t, k.Release(ctx))
	require.NoError(t, <-waiting)
}

func TestLocksOverTLSWithACertificateAndAnACLUser(t *testing.T) {
	certs := redistest.NewCertificates(t)
	s := redistest.Shape{TLS: certs}.Start(t)
	s.Do("ACL", "SETUSER", "locks", "on", ">p@ss:w/rd", "~*", "&*", "+@all", "-@dangerous", "+client", "+info")
	s.Do("ACL", "SETUSER", "default", "nopass", "on")
	hold(t, "rediss://locks:p%40ss%3Aw%2Frd@"+s.Addr, TLSFiles{CA: certs.CA, Cert: certs.Cert, Key: certs.Key})
}

func TestLocksOverAClusterWithTLSAndAnACLUser(t *testing.T) {
	certs := redistest.NewCertificates(t)
	c := redistest.Shape{TLS: certs}.Cluster(t, 3, 0)
	for _, s := range c.Masters {
		s.Do("ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all", "-@dangerous", "+client", "+info", "+cluster|slots")
	}
	url := "rediss+cluster://locks:secret@" + strings.Join(c.Addrs(), ",")
	hold(t, url, TLSFiles{CA: certs.CA, Cert: certs.Cert, Key: certs.Key})
}

func TestLocksOverSentinels(t *testing.T) {
	g := redistest.NewSentinels(t, 1, 1)
	hold(t, g.URL(), TLSFiles{})
}
