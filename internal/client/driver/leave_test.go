package driver

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// A server that is a master no more, behind an address that still means it: its answers reach their callers, and
// few connections are made. When the address means the new master, the line goes there.
func TestAServerThatIsTheWrongOneIsLeft(t *testing.T) {
	servers := redistest.NewReplicated(t)
	name := redistest.NewLink(t, servers.Master.Addr)
	var dials atomic.Int64
	l := open(t, redistest.Dialer(name.Addr), func(o *SharedOptions) {
		o.Dial = func(ctx context.Context) (redis.Conn, error) {
			dials.Add(1)
			return redis.DialContext(ctx, "tcp", name.Addr)
		}
	})
	set := func() error {
		_, err := l.Request(t.Context(), wire.Plain("SET", "k", "v"))
		return err
	}
	require.NoError(t, set())
	servers.Master.Do("REPLICAOF", "127.0.0.1", "1")
	start := time.Now()
	for time.Since(start) < time.Second {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				err := set()
				assert.ErrorContains(t, err, "READONLY")
				assert.NotErrorIs(t, err, ErrNotSent)
				_, err = l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "k"})
				assert.NoError(t, err, "what others have sent gets its reply")
			})
		}
		all.Wait()
	}
	t.Logf("%d connections in %v", dials.Load(), time.Since(start))
	assert.Less(t, dials.Load(), int64(12))
	servers.Promote()
	name.Retarget(servers.Replica.Addr)
	redistest.Await(t, "the new master", func() bool { return set() == nil })
}

// moving is a cluster of two in memory: "old:1" redirects everything to "new:1", which answers after a round trip.
type moving struct {
	topology.Servers
	sync.Mutex
	master string
	trip   time.Duration
}

func (m *moving) Locate(context.Context, string) (string, error) {
	m.Lock()
	defer m.Unlock()
	return m.master, nil
}

func (m *moving) Moved(_ int, addr string) {
	m.Lock()
	defer m.Unlock()
	m.master = addr
}

func (m *moving) Address(told string) string           { return told }
func (m *moving) Patience() time.Duration              { return time.Second }
func (m *moving) Gone(func(addr string)) (stop func()) { return func() {} }
func (m *moving) DialAddr(_ context.Context, addr string) (redis.Conn, error) {
	return &node{fake: newFake(), addr: addr, trip: m.trip}, nil
}

// node is a server of moving.
type node struct {
	*fake
	addr string
	trip time.Duration
}

func (n *node) Flush() error {
	n.mu.Lock()
	asked := len(n.got) - n.flushed
	n.mu.Unlock()
	time.AfterFunc(n.trip, func() {
		for range asked {
			if n.addr == "old:1" {
				n.replies <- redis.Error(fmt.Sprintf("MOVED %d new:1", protocol.Slot("k")))
			} else {
				n.replies <- "OK"
			}
		}
	})
	return n.fake.Flush()
}

func (n *node) Receive() (any, error) {
	reply, err := n.fake.Receive()
	if _, refused := err.(redis.Error); refused {
		<-n.asked
	}
	return reply, err
}

func (n *node) ReceiveWithTimeout(time.Duration) (any, error) { return n.Receive() }

// TestABatchIsRedirectedAtOnce: after a failover of a cluster the replies of a batch say MOVED. To send one command after the other
// then would take so many round trips, for which the next renewals wait.
func TestABatchIsRedirectedAtOnce(t *testing.T) {
	const trip = 20 * time.Millisecond // one after the other takes six seconds
	servers := &moving{master: "old:1", trip: trip}
	c := NewShared(SharedOptions{Servers: servers, Now: func() protocol.Instant { return protocol.InstantOf(time.Now()) }, ReplyTimeout: time.Minute})
	defer func() { c.Close(); c.Wait() }()
	commands := make([]protocol.Command, 300)
	for i := range commands {
		commands[i] = protocol.Command{Op: protocol.Get, Key: "k"}
	}
	var mu sync.Mutex
	answered := make(map[int]bool)
	start := time.Now()
	c.Batch(t.Context(), commands, func(i int, reply protocol.Reply, err error) {
		mu.Lock()
		defer mu.Unlock()
		assert.NoError(t, err)
		assert.Equal(t, "OK", reply.Text)
		assert.False(t, answered[i])
		answered[i] = true
	})
	assert.Len(t, answered, len(commands))
	assert.Less(t, time.Since(start), 100*trip)
}

const token, wait = "5123456789012345678", time.Minute

// asUser returns a driver whose connections belong to a user with rules of its own.
func asUser(t *testing.T, s *redistest.Server, rules ...any) *PerAttempt {
	s.Do("ACL", append([]any{"SETUSER", "app", "reset", "on", ">secret"}, rules...)...)
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.Addr, redis.DialUsername("app"), redis.DialPassword("secret"))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	return newDriver(pool)
}

// losing is a connection on which the second command of all loses its reply.
type losing struct {
	redis.ConnWithTimeout
	commands *int
}

func (c losing) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	reply, err := c.ConnWithTimeout.DoWithTimeout(timeout, name, args...)
	if *c.commands++; *c.commands == 2 {
		_ = c.Close()
		return nil, io.EOF
	}
	return reply, err
}

// TestADisplacementIsToldWithoutCompanions: the release that names the lock's own keys only leaves the guard too, until it is heard.
func TestADisplacementIsToldWithoutCompanions(t *testing.T) {
	s := redistest.Real(t)
	const theirs = "1700000000000"
	guard := protocol.GuardKey("lock:1")
	d := asUser(t, s, "+@all", "&*", "~lock:*", "~{lock:*}:guard")
	s.Do("SET", "lock:1", theirs)
	s.Do("SET", guard, token, "PX", 60_000)
	m := &protocol.BridgeRelease{Key: "lock:1", Guard: guard, Value: token, Queue: protocol.QueueKey("lock:1"), Hand: true}
	d.advance(context.Background(), &protocol.BridgeRelease{Key: "lock:2", Guard: protocol.GuardKey("lock:2"), Value: token}, protocol.Reply{}) // loads the script
	commands, dial := 0, topology.Dialler(d.Pool)
	d.Pool = &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) { // the first command is refused
		conn, err := dial(ctx)
		return losing{conn.(redis.ConnWithTimeout), &commands}, err
	}}
	out := d.advance(context.Background(), m, protocol.Reply{})
	assert.Equal(t, protocol.Displaced, out.Step.Verdict, "%v", out.Err)
	assert.Equal(t, theirs, m.Seen())
	assert.Empty(t, s.Value(guard))
	assert.Equal(t, 4, commands, "refused, lost, told, cleared")
}

// TestAReleaseSaysWhatTheFallbackFound: where the queue's key is denied the lock may have gone before.
func TestAReleaseSaysWhatTheFallbackFound(t *testing.T) {
	s := redistest.Real(t)
	d := asUser(t, s, "+@all", "~lock:*")
	out := d.advance(context.Background(), &protocol.ModernRelease{Key: "lock:1", Token: token, Queue: "{lock:1}:queue"}, protocol.Reply{})
	assert.Equal(t, protocol.NotOurs, out.Step.Verdict)
	none := asUser(t, s, "+@all", "~other:*")
	out = none.advance(context.Background(), &protocol.ModernRelease{Key: "lock:1", Token: token, Queue: "{lock:1}:queue"}, protocol.Reply{})
	assert.Equal(t, protocol.Failed, out.Step.Verdict)
	require.ErrorContains(t, out.Err, "NOPERM")
}
