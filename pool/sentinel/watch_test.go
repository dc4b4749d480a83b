package sentinel

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// book counts the open connections to each server.
type book struct {
	mu   sync.Mutex
	open map[string]int
}

func (b *book) add(addr string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[addr] += n
}

func (b *book) at(addr string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open[addr]
}

func (b *book) dial(ctx context.Context, addr string) (redis.Conn, error) {
	return redis.DialContext(ctx, "tcp", addr, redis.DialContextFunc(func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		b.add(addr, 1)
		return &booked{Conn: conn, book: b, addr: addr}, nil
	}))
}

type booked struct {
	net.Conn
	book *book
	addr string
	once sync.Once
}

func (c *booked) Close() error {
	c.once.Do(func() { c.book.add(c.addr, -1) })
	return c.Conn.Close()
}

// The master hangs with idle connections to it, which no error would ever tell: as the sentinels replace it,
// the pool drops them and turns to the new one, without a command.
func TestThePoolTurnsWithoutACommand(t *testing.T) {
	g := redistest.NewSentinels(t, 1, 3)
	connections := &book{open: map[string]int{}}
	pool, err := New(Options{Addrs: g.Addrs(), Master: g.Name, Dial: connections.dial})
	require.NoError(t, err)
	defer pool.Close()
	before := g.Master()
	conns := make([]redis.Conn, 3)
	for i := range conns {
		conns[i], err = pool.GetContext(t.Context())
		require.NoError(t, err)
		_, err = conns[i].Do("SET", "k", i)
		require.NoError(t, err)
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	require.Equal(t, 3, connections.at(before.Addr), "idle")
	redistest.Await(t, "listeners on all sentinels", func() bool {
		for _, s := range g.Sentinels {
			if !listenedTo(s) {
				return false
			}
		}
		return true
	})

	before.Signal(syscall.SIGSTOP)
	defer before.Signal(syscall.SIGCONT)
	after := g.AwaitFailover(before)
	redistest.Await(t, "the idle connections to be dropped", func() bool { return connections.at(before.Addr) == 0 })
	masters, err := topology.RouterOf(pool).Masters(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{after.Addr}, masters)
	conn, err := pool.GetContext(t.Context())
	require.NoError(t, err)
	_, err = conn.Do("SET", "k", "v")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	assert.Zero(t, connections.at(before.Addr), "and nobody went there again")
}

// listenedTo tells that somebody has one channel of a sentinel; the other sentinels listen to other servers.
func listenedTo(s *redistest.Server) bool {
	list, _ := redis.String(s.Try("CLIENT", "LIST"))
	return strings.Contains(list, " sub=1 ")
}

// fake is a sentinel that says the same all the time: what MASTER tells, and what it names as the address.
func fake(t *testing.T, inMaster, named string, epoch int) *server.Server {
	t.Helper()
	s, err := server.NewServer("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.NoError(t, s.Register("SENTINEL", func(c *server.Peer, _ string, args []string) {
		if strings.EqualFold(args[0], "MASTER") {
			host, port, _ := net.SplitHostPort(inMaster)
			c.WriteStrings([]string{"ip", host, "port", port, "config-epoch", strconv.Itoa(epoch)})
			return
		}
		host, port, _ := net.SplitHostPort(named)
		c.WriteStrings([]string{host, port})
	}))
	return s
}

func finderOf(sentinels ...*server.Server) *finder {
	o := Options{Master: "m", DialSentinel: topology.Plain(rawconn.DialContext, time.Second), Map: topology.AsTold}
	for _, s := range sentinels {
		o.Addrs = append(o.Addrs, s.Addr().String())
	}
	return &finder{opts: o}
}

func mastersOf(t *testing.T, f *finder) []string {
	t.Helper()
	table, err := f.find(t.Context())
	require.NoError(t, err)
	return table.Masters
}

// The sentinel that leads a failover has the new epoch before it has the new master: until the other replicas
// follow that one, its SENTINEL MASTER gives the old address beside it. It must not draw with those that have
// heard of the new master already, nor lead back while it is the only one that answers.
func TestTheLeaderOfAFailoverNamesTheNewMaster(t *testing.T) {
	leader := fake(t, "10.0.0.1:1", "10.0.0.2:1", 7)
	follower := fake(t, "10.0.0.2:1", "10.0.0.2:1", 7)
	behind := fake(t, "10.0.0.1:1", "10.0.0.1:1", 6)
	for range 20 { // whose answer comes first is chance
		assert.Equal(t, []string{"10.0.0.2:1"}, mastersOf(t, finderOf(leader, follower, behind)))
	}
	assert.Equal(t, []string{"10.0.0.2:1"}, mastersOf(t, finderOf(leader, behind)))
}

// A real leader: it is asked all the time while it replaces the master, and one of the replicas is stopped, so
// that the failover takes long. Once the new epoch has been heard of, the old master is not named any more.
func TestNoWayBackWithinAFailover(t *testing.T) {
	g := redistest.NewSentinels(t, 2, 3)
	f := &finder{opts: Options{Addrs: g.Addrs(), Master: g.Name, DialSentinel: topology.Plain(rawconn.DialContext, time.Second), Map: topology.AsTold}}
	before := g.Master()
	old, err := f.find(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{before.Addr}, old.Masters)
	epoch := f.epoch
	thaw := func() {}
	for _, s := range g.Servers {
		if s != before {
			thaw = s.Freeze() // the other one is promoted: this one cannot be made to follow it
			break
		}
	}
	defer thaw()
	before.Kill()
	redistest.Await(t, "a new master", func() bool {
		_, err := f.find(t.Context())
		return err == nil && f.epoch > epoch
	})
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if table, err := f.find(t.Context()); err == nil {
			require.NotEqual(t, []string{before.Addr}, table.Masters, "epoch %d", f.epoch)
		}
	}
}

// While the only sentinel that knows of a failover is silent, the others do not lead back to the old master.
// When all of them say the same, they were set up anew.
func TestOlderAnswersDoNotLeadBack(t *testing.T) {
	leader, behind, other := fake(t, "10.0.0.2:1", "10.0.0.2:1", 7), fake(t, "10.0.0.1:1", "10.0.0.1:1", 6), fake(t, "10.0.0.1:1", "10.0.0.1:1", 6)
	f := finderOf(behind, leader, other)
	masters := func() []string { return mastersOf(t, f) }
	assert.Equal(t, []string{"10.0.0.2:1"}, masters(), "the newest")
	leader.Close()
	assert.Equal(t, []string{"10.0.0.2:1"}, masters(), "and no way back")
	f.heard = time.Now().Add(-2 * forgetAfter)
	assert.Equal(t, []string{"10.0.0.1:1"}, masters(), "long after it was last heard of")
	f.epoch, f.heard = 9, time.Now()
	f.opts.Addrs = []string{behind.Addr().String(), other.Addr().String()}
	assert.Equal(t, []string{"10.0.0.1:1"}, masters(), "all say so")
}

// A sentinel that is away is connected to again when it is back, and what it publishes then is heard.
func TestTheWatchComesBack(t *testing.T) {
	g := redistest.NewSentinels(t, 1, 1)
	pool := newPool(t, g)
	_, err := topology.RouterOf(pool).Masters(t.Context())
	require.NoError(t, err)
	listening := func() bool { return listenedTo(g.Sentinels[0]) }
	redistest.Await(t, "a listener", listening)
	g.Sentinels[0].Kill()
	g.Sentinels[0].Start()
	redistest.Await(t, "a listener on the new process", listening)
	after := g.Failover()
	redistest.Await(t, "the pool to turn", func() bool {
		masters, err := topology.RouterOf(pool).Masters(t.Context()) // what it has heard; Masters asks nobody
		return err == nil && masters[0] == after.Addr
	})
}

// A pool that is closed before its first use, and one that is closed at once, leave nothing behind.
func TestClosingEndsTheWatch(t *testing.T) {
	pool, err := New(Options{Addrs: []string{"127.0.0.1:1"}, Master: "m", Patience: -1})
	require.NoError(t, err)
	require.NoError(t, pool.Close())
	pool, err = New(Options{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, Master: "m", Patience: -1})
	require.NoError(t, err)
	_, err = topology.RouterOf(pool).Masters(t.Context())
	assert.Error(t, err)
	require.NoError(t, pool.Close())
	_, err = topology.RouterOf(pool).Masters(t.Context())
	assert.Error(t, err)
}

// Who waits for a lock while the sentinels replace a master that hangs is told of the lock's release at the new one:
// its connections to the old one would tell it nothing.
func TestAWaiterTurnsToTheNewMaster(t *testing.T) {
	g := redistest.NewSentinels(t, 1, 3)
	pool := newPool(t, g)
	ctx := redistest.Bounded(t, 4*time.Minute)
	var mode redistest.Mode
	newLocker := func(o lockmigrate.Observer) lockmigrate.Locker {
		l, err := modern.New(pool, modern.Options{TTL: 5 * time.Minute, Observer: o})
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	holder, waiter := newLocker(nil), newLocker(mode.Observe)
	held, err := holder.Acquire(ctx, "orders")
	require.NoError(t, err)
	before := g.Master()
	got := redistest.BeginTurn(ctx, waiter.Acquire, "orders")
	redistest.Await(t, "a waiter in line", func() bool {
		n, _ := redis.Int(before.Try("ZCARD", "{orders}:queue"))
		return n == 1 && mode.Is() == "tracking"
	})
	acknowledged, err := redis.Int(before.Conn().Do("WAIT", 1, 30_000))
	require.NoError(t, err)
	require.Equal(t, 1, acknowledged, "the replica is in step")
	time.Sleep(time.Second) // the waiter has nothing to ask any more

	before.Signal(syscall.SIGSTOP)
	defer before.Signal(syscall.SIGCONT)
	after := g.AwaitFailover(before)
	redistest.Await(t, "the pool to turn", func() bool {
		masters, err := topology.RouterOf(pool).Masters(ctx)
		return err == nil && masters[0] == after.Addr
	})
	require.NoError(t, held.Release(ctx))
	released := time.Now()
	require.NoError(t, <-got)
	assert.Less(t, time.Since(released), 8*time.Second)
}
