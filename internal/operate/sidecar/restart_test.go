package sidecar_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// listed waits for an entry of the list of sidecar "one"; empty: for none.
func (b *bed) listed(key, entry string) {
	b.t.Helper()
	redistest.Await(b.t, "the entry "+entry, func() bool {
		got, _ := redis.String(b.redis.Do("HGET", sidecar.ListKey("orders", "one"), key), nil)
		return got == entry
	})
}

// The service has ended its connections before its sidecar ends: the next one does not keep its lock, unless a service is connected.
func TestTheNextSidecarKeepsNoLockOfNobody(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Bridge, "jedis-ms")
	s := b.sidecar("one", sidecar.DialectNone)
	c := b.client(s)
	says(t, c, "1", "SETNX", "lock:g", "some uuid")
	b.listed("lock:g", "connected")
	time.Sleep(time.Second) // it is looked at
	_ = c.Close()
	b.listed("lock:g", "parted")
	s.Close()
	require.EqualValues(t, 1, b.redis.Do("EXISTS", "lock:g"))
	s = b.sidecar("one", sidecar.DialectNone)
	redistest.Await(t, "the end of the lock", func() bool { return b.redis.Do("EXISTS", "lock:g") == int64(0) })
	b.listed("lock:g", "")
	assert.EqualValues(t, 1, s.counted("ended"), "it is told")
}

// With KeepFor a lock outlasts the end of its sidecar by that, whether the service comes back or not.
func TestTheNextSidecarKeepsForKeepFor(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Modern, "jedis-ms")
	keeps := func(o *sidecar.Options) { o.KeepFor = 3 * time.Second }
	s := b.sidecar("one", sidecar.DialectNone, keeps)
	says(t, b.client(s), "1", "SETNX", "lock:f", "some uuid")
	b.listed("lock:f", "connected")
	s.Close()
	c := b.client(b.sidecar("one", sidecar.DialectNone, keeps))
	time.Sleep(2500 * time.Millisecond)
	says(t, c, "some uuid", "GET", "lock:f")
	redistest.Await(t, "the end of the lock", func() bool { return b.redis.Do("EXISTS", "lock:f") == int64(0) })
}

// A second process listens beside the first, which then ends. The first takes locks to its end; when it has ended, the second one has all of them.
func TestReplacedSidecarLeavesItsLocks(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Bridge, "jedis-ms")
	first := b.sidecar("one", sidecar.DialectNone)
	old := b.client(first)
	says(t, old, "1", "SETNX", "lock:h", "uuid 1")
	b.addr = first.Addr
	next := b.sidecar("one", sidecar.DialectNone)
	says(t, old, "1", "SETNX", "lock:i", "uuid 2")
	fresh := b.client(next) // either may have accepted it
	says(t, fresh, "1", "SETNX", "lock:j", "uuid 3")
	says(t, fresh, "1", "DEL", "lock:j")
	first.Close()
	_, err := old.Do("PING")
	require.ErrorIs(t, err, io.EOF, "the connection has ended between two commands")
	time.Sleep(3 * time.Second) // more than a lease
	after := b.client(next)     // nobody else listens any more
	for key, text := range map[string]string{"lock:h": "uuid 1", "lock:i": "uuid 2"} {
		says(t, after, text, "GET", key)
		says(t, after, "1", "DEL", key)
	}
	assert.Zero(t, first.counted("twins")+next.counted("twins"))
}

// A sidecar of another name does not share an address.
func TestNoOtherSidecarShares(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Bridge, "jedis-ms")
	one := b.sidecar("one", "")
	two, err := sidecar.New(t.Context(), sidecar.Options{Pool: b.redis.Pool(), Namespace: "orders", Name: "two"})
	require.NoError(t, err)
	assert.False(t, two.Beside(t.Context()))
	p := proxy.New(proxy.Options{Listeners: []proxy.Listener{{Address: one.Addr, Rewriter: proxy.Passing}}, Log: slog.New(slog.DiscardHandler), Beside: two.Beside,
		Dial: func(context.Context) (net.Conn, error) { return net.Dial("tcp", b.redis.Addr) }})
	require.ErrorIs(t, p.Run(t.Context()), syscall.EADDRINUSE)
}

// A DEL that was not the holder's removes a key while the sidecar restarts: the next one sets it again.
func TestTheNextSidecarRepairs(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Bridge, "jedis-ms")
	s := b.sidecar("one", "")
	says(t, b.client(s), "1", "SETNX", "lock:r", ends(20*time.Second))
	b.listed("lock:r", "timed")
	s.Close()
	assert.Positive(t, b.redis.Do("PTTL", sidecar.ListKey("orders", "one")), "the list does not stay")
	b.redis.Do("DEL", "lock:r")
	s = b.sidecar("one", "")
	redistest.Await(t, "the repair", func() bool { return b.redis.Do("EXISTS", "lock:r") == int64(1) })
	says(t, b.client(s), "1", "DEL", "lock:r")
	assert.EqualValues(t, 0, b.redis.Do("EXISTS", "lock:r", protocol.GuardKey("lock:r")))
	s.Close()
	assert.EqualValues(t, 0, b.redis.Do("EXISTS", sidecar.ListKey("orders", "one")), "nothing is held, and nothing is left")
}

// The server ends the connections of a service, which says nothing until its work is done: its lock stays.
func TestTheServerEndsConnections(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Modern, "jedis-ms")
	s := b.sidecar("one", sidecar.DialectNone)
	c := b.client(s)
	id, err := c.Do("CLIENT", "ID")
	require.NoError(t, err)
	says(t, c, "1", "SETNX", "lock:c", "some uuid")
	time.Sleep(time.Second) // it is looked at
	b.redis.Do("CLIENT", "KILL", "ID", id)
	time.Sleep(3 * time.Second) // more than a lease
	c = b.client(s)
	says(t, c, "some uuid", "GET", "lock:c")
	says(t, c, "1", "DEL", "lock:c")
}

// A lock without a time is taken in stage legacy, held for longer than its record lasts by itself, and given back at bridge.
func TestALongLockOverAStage(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Legacy, "jedis-ms")
	s := b.sidecar("one", sidecar.DialectNone, memberFor(2*time.Second))
	c := b.client(s)
	says(t, c, "1", "SETNX", "lock:l", "some uuid")
	time.Sleep(7 * time.Second) // three leases are 6 s
	b.moves(stages.Bridge, s)
	says(t, c, "some uuid", "GET", "lock:l")
	says(t, c, "1", "DEL", "lock:l")
	assert.EqualValues(t, 0, b.redis.Do("EXISTS", "lock:l"))
}

// A key on which nothing was found, and which is taken again, is looked after again, however long the member's lease is.
func TestAKeyIsTakenAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Modern, "jedis-ms")
	c := b.client(b.sidecar("one", sidecar.DialectNone))
	says(t, c, "1", "SETNX", "lock:a", "uuid 1")
	says(t, c, "1", "DEL", "lock:a")
	time.Sleep(1500 * time.Millisecond) // a look has come, a third of a lease after the first attempt, and found nothing
	says(t, c, "1", "SETNX", "lock:a", "uuid 2")
	time.Sleep(3 * time.Second) // more than a lease
	says(t, c, "uuid 2", "GET", "lock:a")
}

// What is told to a sidecar does not reach one of the same name in another namespace.
func TestNamespacesHaveTheirOwnSidecars(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Modern, "jedis-ms")
	require.NoError(t, (&stages.Store{Pool: b.redis.Pool(), Namespace: "stock", ReplyTimeout: 5 * time.Second}).Init(t.Context(),
		stages.Record{Namespace: "stock", Stage: stages.Modern, Patterns: []string{"stock:*"}, Dialect: "jedis-ms", Shortest: time.Second}))
	b.sidecar("one", "")
	b.sidecar("one", "", func(o *sidecar.Options) { o.Namespace = "stock" })
	redistest.Await(t, "the channels", func() bool {
		names, err := redis.Strings(b.redis.Do("PUBSUB", "CHANNELS", "lockmigrate:sidecar:*"), nil)
		return err == nil && len(names) == 2
	})
}

// TestASidecarFollowsWhenItsCommandsDo: a command that a sidecar sent under the record as it was takes keys over by that record, and the server
// may run it until the sidecar's lease from then ends. Until that moment the sidecar does not count as one that follows a correction.
func TestASidecarFollowsWhenItsCommandsDo(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Bridge, "jedis-ms")
	const lease = 6 * time.Second
	s := b.sidecar("one", "", memberFor(lease))
	idle := b.sidecar("two", "", memberFor(lease))
	view, err := b.store.Show(t.Context())
	require.NoError(t, err)
	sent := time.Now()
	says(t, b.client(s), "1", "SETNX", "lock:a", ends(time.Minute))
	to := view.Record
	to.ClockLag = 3 * time.Second
	blockers, err := b.store.Set(t.Context(), view.Record.Epoch, view.Record, to, true)
	require.NoError(t, err)
	require.Empty(t, blockers)
	late := func() (names []string) {
		view, err := b.store.Show(t.Context())
		require.NoError(t, err)
		late, _ := view.ChangingOver()
		for _, m := range late {
			names = append(names, m.ID)
		}
		return names
	}
	for _, c := range []*started{s, idle} { // both act by the corrected record
		redistest.Within(t, "the correction", lease, func() bool { _, epoch, _ := c.Stage(); return epoch == view.Record.Epoch+1 })
	}
	redistest.Within(t, "the idle one", time.Second, func() bool { return len(late()) == 1 })
	if time.Since(sent) < lease*2/3 { // the lease lasts at least so long from any report
		assert.Contains(t, late()[0], "sidecar:one/")
	}
	redistest.Within(t, "the other one", 2*lease, func() bool { return len(late()) == 0 })
	assert.Greater(t, time.Since(sent), lease*2/3)
}
