package versions

import (
	"context"
	"flag"
	"net"
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
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
)

var slotMoves = flag.Int("slot-moves", 2, "how often TestSlotsThatMoveAsAWhole moves the slot of its locks under observe, at least")

const (
	slotOf   = "{" + namespace + "}"
	slotKeys = slotOf + ".member"

	// wholeTTL is longer than the test: nobody is woken by the end of a lock.
	wholeTTL = 5 * time.Minute
)

// moving is a cluster whose server moves slots as a whole, and a fleet whose keys all lie in one of them.
type moving struct {
	*testing.T
	*redistest.Cluster
	ctx  context.Context
	ours sync.Map // addresses of the fleet's own connections, as the servers see them
}

// pool is that of one more process.
func (m *moving) pool() *cluster.Pool {
	pool, err := cluster.New(cluster.Options{Addrs: m.Addrs(), Dial: func(ctx context.Context, addr string) (redis.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		m.ours.Store(conn.LocalAddr().String(), true)
		return redis.NewConn(conn, 0, 0), nil
	}})
	require.NoError(m, err)
	m.Cleanup(func() { assert.NoError(m, pool.Close()) })
	return pool
}

// whole are the kinds of lock whose slot moves.
var whole = append(of("legacy-unexpired", "bridge", "modern-fencing", "modern-unfair", "redisson"),
	lock{"legacy by transaction", servers.Legacy, old(legacy.Options{Dialect: legacy.Dialect{Name: "servicestack"}})},
	lock{"member", servers.Namespace, func(p lockmigrate.Pool, _ time.Duration, _ lockmigrate.Observer) (lockmigrate.Locker, error) { // the record bounds it
		o := memberOptions(legacy.Dialect{Name: "jedis-ms"})
		o.TTL, o.Lease, o.ShortestLease = 4*lease, 4*lease, 2*lease // a claim of three seconds, the longest that there is
		l, err := compat.New(p, o)
		if err == nil {
			err = l.Ready(context.Background())
		}
		return l, err
	}})

// TestSlotsThatMoveAsAWhole: the slot of a fleet's locks, queues and record moves to and fro between two masters as a whole, with all keys at once, while
// the namespace goes from stage to stage. Nobody overlaps, no holder and no waiter hears of an error, behind a sidecar neither, and who waits is
// woken. Observe names nobody that is not there, and verify neither sees a client in it nor says that there was none.
func TestSlotsThatMoveAsAWhole(t *testing.T) {
	t.Parallel()
	// A move holds writes up, by default for up to ten seconds. Who was handed a lock just before has three until its first renewal.
	for name, holdsUp := range map[string]string{"valkey-9.0.0": "--cluster-manual-failover-timeout", "redis-8.10.2": "--cluster-slot-migration-write-pause-timeout"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := redistest.Bounded(t, wholeTTL)
			m := &moving{T: t, Cluster: redistest.Shape{Version: name}.Cluster(t, 3, 0, holdsUp, "1000"), ctx: ctx}
			m.fleet()
		})
	}
}

func (m *moving) fleet() {
	store := &stages.Store{Pool: m.pool(), Namespace: namespace, ReplyTimeout: 5 * time.Second}
	require.NoError(m, store.Init(m.ctx, stages.Record{Stage: stages.Bridge, Patterns: []string{slotKeys + "*"}, Dialect: "jedis-ms", Shortest: 2 * lease}))
	end, err := endpoint.Parse(m.URL(), endpoint.TLSFiles{})
	require.NoError(m, err)
	through, err := fleet.StartSidecar(m.ctx, sidecar.Options{Pool: m.pool(), Namespace: namespace, Name: "billing"}, end, slotKeys, sidecar.Listener{})
	require.NoError(m, err)
	defer through.Close()
	var working sync.WaitGroup
	var over atomic.Bool
	turns, held, waiters := map[string]*redistest.Referee{}, map[string]lockmigrate.Lock{}, map[string]lockmigrate.Locker{}
	work := func(kind string, l lockmigrate.Locker) {
		key := slotOf + "." + kind
		working.Go(func() {
			for !over.Load() {
				k, err := l.Acquire(m.ctx, key)
				if !assert.NoError(m, err, key) {
					return
				}
				turns[kind].Turn(func() { time.Sleep(2 * time.Millisecond) })
				if !assert.NoError(m, k.Context().Err(), key) || !assert.NoError(m, k.Release(m.ctx), key) {
					return
				}
			}
		})
	}
	open := func(l lock) lockmigrate.Locker { return l.process(m.T, m.pool(), wholeTTL, nil) }
	for _, l := range whole {
		turns[l.name], waiters[l.name] = redistest.NewReferee(m), open(l)
		held[l.name], err = open(l).Acquire(m.ctx, slotOf+"."+l.name+".held")
		require.NoError(m, err, l.name)
	}
	old, err := legacy.New(through.Pool(), legacy.Options{Lease: 4 * lease, Poll: 5 * time.Millisecond, Release: legacy.ReleaseAsDialect})
	require.NoError(m, err)
	defer old.Close()
	work("member", old)
	for _, l := range whole {
		work(l.name, waiters[l.name])
		work(l.name, open(l))
	}

	// What a client has left that crashed long ago moves with the slot: the node that gives it sends it like a client.
	m.Owner(protocol.Slot(slotOf)).Do("SET", slotKeys+".ghost", jedis(-time.Hour))
	certificate := make(chan verify.Certificate, 1)
	go func() {
		cert, err := verify.Run(m.ctx, end, verify.Options{Window: 2 * time.Second, Longest: time.Second, Match: []string{slotKeys + "*"}, Whole: true})
		assert.NoError(m, err)
		certificate <- cert
	}()
	path := make(chan error, 1)
	go func() {
		var err error
		for _, to := range []stages.Stage{stages.Modern, stages.Bridge} {
			if err == nil {
				err = (&stages.Mover{Store: store, Look: 20 * time.Millisecond}).Run(m.ctx, to, func(stages.View, []stages.Blocker) {})
			}
		}
		path <- err
	}()

	moves, longest, arrived := 0, time.Duration(0), false
	move := func() {
		woken, before := map[string]chan lockmigrate.Lock{}, map[string]int64{}
		for kind, l := range waiters {
			woken[kind], before[kind] = make(chan lockmigrate.Lock, 1), turns[kind].Turns()
			go func() {
				k, err := l.Acquire(m.ctx, slotOf+"."+kind+".held")
				assert.NoError(m, err, kind)
				woken[kind] <- k
			}()
		}
		m.MoveWhole(protocol.Slot(slotOf), m.Masters[moves%2])
		moves++
		for kind, k := range held {
			require.NoError(m, k.Renew(m.ctx), kind)
			require.NoError(m, k.Context().Err(), kind)
		}
		for kind, r := range turns {
			redistest.Await(m, "a turn of "+kind+" after the move", func() bool { return r.Turns() > before[kind] })
		}
		for kind, k := range held {
			began := time.Now()
			require.NoError(m, k.Release(m.ctx), kind)
			held[kind] = <-woken[kind]
			longest = max(longest, time.Since(began))
		}
	}
	for judged := false; !judged; {
		move()
		select {
		case cert := <-certificate:
			judged = true
			assert.Equal(m, verify.Inconclusive, cert.Verdict, "%v %+v", cert.Why, cert.Evidence.Seen)
			assert.Contains(m, cert.Why, "slots may have moved")
		default:
		}
	}
	watching, stop := context.WithCancel(m.ctx)
	defer stop()
	watch, err := observe.StartMasters(watching, end, observe.Options{}, observe.Limits{})
	require.NoError(m, err)
	for least, looked := moves+*slotMoves, map[*redistest.Server]int64{}; moves < least || !arrived; {
		// Observe asks twice a second who has which slot, after it has asked who is connected. A slot that comes back sooner is not what happens to anybody.
		for _, s := range m.Masters {
			redistest.Await(m, "observe to look again", func() bool { return m.looks(s) > looked[s]+2 })
		}
		move()
		for _, s := range m.Masters {
			looked[s] = m.looks(s)
		}
		select {
		case err := <-path:
			require.NoError(m, err)
			arrived = true
		default:
		}
	}
	over.Store(true)
	working.Wait()
	for kind, k := range held {
		assert.NoError(m, k.Release(m.ctx), kind)
		m.Logf("%s: %d turns", kind, turns[kind].Turns())
	}
	m.Logf("%d moves; who waited was woken within %v", moves, longest)
	assert.Less(m, longest, wholeTTL/5)

	stop()
	assert.ErrorIs(m, watch.Wait(), context.Canceled)
	seen := map[string]int{}
	for _, row := range watch.Report().Clients {
		_, ours := m.ours.Load(row.Addr)
		assert.True(m, ours || row.Kind == "sidecar", "observe names a client that is not there: %+v", row)
		seen[row.Kind]++
	}
	assert.NotZero(m, seen["legacy"]*seen["modern"]*seen["sidecar"], "%v", seen)
}

// looks is how often somebody has asked a server who is connected. Only observe does here.
func (m *moving) looks(s *redistest.Server) int64 {
	info, err := redis.String(s.Do("INFO", "commandstats"), nil)
	require.NoError(m, err)
	return endpoint.CallsOf(endpoint.InfoOf(info)["cmdstat_client|list"]).Calls
}
