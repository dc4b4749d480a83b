package verify_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
)

// fleet is members of a handover at stage both, which work on lock:1 all the time. The record is on New's server.
type fleet struct {
	t        *testing.T
	record   *redistest.Server
	old, new *endpoint.Endpoint
	opts     verify.Options
}

const ofFleet = "to-b"

// newFleet makes the record. A name stands for an Old without a mark.
func newFleet(t *testing.T, oldURL string, oldPool lockmigrate.Pool, name string) *fleet {
	t.Helper()
	f := &fleet{t: t, record: redistest.Real(t)}
	halves := &stages.Halves{Old: stages.Half{Name: name}, New: stages.Half{Name: "new"}}
	if name == "" {
		mark, err := stages.WriteMark(t.Context(), oldPool, ofFleet, time.Second)
		require.NoError(t, err)
		halves.Old.Mark = mark
	}
	store := &stages.Store{Pool: f.record.Pool(), Namespace: ofFleet, ReplyTimeout: 5 * time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Stage: stages.Both, Patterns: []string{"lock:*"}, Handover: halves}))
	f.old, f.new = at(t, oldURL), at(t, f.record.URL())
	f.opts = verify.Options{Namespace: ofFleet, OnlyMembers: true, Record: f.new, Look: 40 * time.Millisecond, Window: 350 * time.Millisecond}
	return f
}

// join starts a member that works on some keys until the test ends, or until it is told to leave.
func (f *fleet) join(old lockmigrate.Locker, change func(*handover.Options), keys ...string) (leave func()) {
	f.t.Helper()
	new, err := modern.New(f.record.Pool(), modern.Options{})
	require.NoError(f.t, err)
	o := handover.Options{Namespace: ofFleet, Old: old, New: new, NewName: "new", Lease: 3 * time.Second, Member: "m"}
	if change != nil {
		change(&o)
	}
	m, err := handover.New(f.record.Pool(), o)
	require.NoError(f.t, err)
	require.NoError(f.t, m.Ready(f.t.Context()))
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	var once sync.Once
	for _, key := range keys {
		working.Go(func() {
			for ctx.Err() == nil {
				if lock, err := m.Acquire(ctx, key); err == nil {
					time.Sleep(10 * time.Millisecond)
					_ = lock.Release(context.Background())
				}
			}
		})
	}
	leave = func() {
		once.Do(func() {
			stop()
			working.Wait()
			_, _, _ = m.Close(), old.Close(), new.Close()
		})
	}
	f.t.Cleanup(leave)
	return leave
}

// look is a run in which something happens.
func (f *fleet) look(happens func()) verify.Certificate {
	f.t.Helper()
	return within(f.t, f.old, f.opts, happens)
}

// modernOld is an Old of this module.
func modernOld(t *testing.T, pool lockmigrate.Pool) lockmigrate.Locker {
	t.Helper()
	old, err := modern.New(pool, modern.Options{})
	require.NoError(t, err)
	return old
}

// named returns a pool whose connections have a name, as those of one service often do. Newest is the last that it has made.
func named(s *redistest.Server, name string, newest *atomic.Pointer[net.TCPConn]) *redis.Pool {
	dial := redis.DialContextFunc(func(ctx context.Context, network, addr string) (net.Conn, error) {
		alone := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)} // an address whose ports no other program uses
		conn, err := (&net.Dialer{LocalAddr: alone}).DialContext(ctx, network, addr)
		if err == nil {
			newest.Store(conn.(*net.TCPConn))
		}
		return conn, err
	})
	return &redis.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redis.Conn, error) { // none is closed because others are idle
		return redis.DialContext(ctx, "tcp", s.Addr, dial, redis.DialClientName(name))
	}}
}

// watchful is a lock whose commands go over a pool's connections, one at a time.
func watchful(t *testing.T, pool lockmigrate.Pool) lockmigrate.Locker {
	t.Helper()
	old, err := legacy.New(pool, legacy.Options{Dialect: legacy.Dialect{Name: "servicestack"}, Lease: 10 * time.Second})
	require.NoError(t, err)
	return old
}

// clientsOf are the connections to a server that have a name.
func clientsOf(s *redistest.Server, name string) (found []map[string]string) {
	list, err := endpoint.Clients(context.Background(), s.Conn())
	if err != nil {
		return nil
	}
	for _, c := range list {
		if c["name"] == name {
			found = append(found, c)
		}
	}
	return found
}

// TestOnlyMembers: none-seen while members alone touch the keys, however their connections come and go; and whoever else does is named.
func TestOnlyMembers(t *testing.T) {
	a := redistest.Real(t, "--protected-mode", "no") // that lets in 127.0.0.1 alone
	f := newFleet(t, a.URL(), a.Pool(), "")
	var newest atomic.Pointer[net.TCPConn]
	pool := named(a, "orders", &newest)
	t.Cleanup(func() { _ = pool.Close() })
	f.join(modernOld(t, pool), nil, "lock:1", "lock:2")
	f.join(watchful(t, a.Pool()), nil, "lock:3")
	mark := a.Value(stages.MarkKey(ofFleet))
	token := func(conn redis.Conn, key string) {
		_, err := conn.Do("SET", key, "x", "NX", "PX", 5000)
		assert.NoError(t, err)
	}
	for name, happens := range map[string]func(){
		"nothing": func() {},
		"a reader": func() {
			a.Do("GET", "lock:1")
			a.Do("EVAL", "return redis.call('GET', KEYS[1])", 1, "lock:1")
		},
		"another key": func() { a.Do("SETNX", "cache:1", "1") },
		"a member reconnects": func() {
			for _, c := range clientsOf(a, "orders") {
				_, _ = a.Try("CLIENT", "KILL", "ID", c["id"])
			}
		},
		"a lock ends under a waiter": func() {},
		"a member comes and goes": func() {
			leave := f.join(modernOld(t, a.Pool()), nil, "lock:1")
			time.AfterFunc(700*time.Millisecond, leave) // many looks later
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := *f
			switch name {
			case "a member comes and goes":
				f.opts.Window = 1500 * time.Millisecond
			case "a lock ends under a waiter": // who takes it over the connection by which it hears of the key
				f.opts.Window = 2 * time.Second
				a.Do("SET", "lock:ends", "x", "PX", 2000)
				old := modernOld(t, a.Pool())
				ctx := redistest.Bounded(t, 200*time.Millisecond)
				_, err := old.Acquire(ctx, "lock:ends") // it listens before it is a member's
				require.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
				f.join(old, nil, "lock:ends")
			}
			cert := f.look(happens)
			assert.Equal(t, verify.NoneSeen, cert.Verdict, "%s\n%v", cert.Why, cert.Evidence.Unexplained)
			assert.Positive(t, cert.Evidence.Masters[0].Members)
		})
	}

	var its redis.Conn
	for name, c := range map[string]struct {
		key     string
		says    string
		happens func()
	}{
		"a client of the same lock": {"lock:stranger", "no member has said", func() {
			other := modernOld(t, a.Pool())
			t.Cleanup(func() { _ = other.Close() })
			_, err := other.TryAcquire(t.Context(), "lock:stranger")
			assert.NoError(t, err)
		}},
		"one of the same name": {"lock:name", "no member has said", func() {
			its = a.Conn()
			_, _ = its.Do("CLIENT", "SETNAME", "orders")
			token(its, "lock:name")
		}},
		"one that goes at once": {"lock:gone", "SET (1)", func() {
			conn, err := a.Dial(t.Context())
			assert.NoError(t, err)
			token(conn, "lock:gone")
			_ = conn.Close()
		}},
		"in a script":     {"lock:script", "SET in a script", func() { a.Do("EVAL", "return redis.call('SET', KEYS[1], 'x', 'NX', 'PX', 5000)", 1, "lock:script") }},
		"every key":       {"every key", "FLUSHDB", func() { its = a.Conn(); _, _ = its.Do("FLUSHDB", "ASYNC") }},
		"what is no lock": {"lock:list", "LPUSH", func() { a.Do("LPUSH", "lock:list", "1") }},
		"that is refused": {"lock:1", "SETNX", func() { a.Do("SETNX", "lock:1", "1") }},
	} {
		t.Run("stranger/"+name, func(t *testing.T) {
			cert := f.look(c.happens)
			if name == "every key" { // the mark is gone
				a.Do("SET", stages.MarkKey(ofFleet), mark)
			}
			assert.Equal(t, verify.Inconclusive, cert.Verdict)
			assert.Equal(t, []string{"commands"}, open(cert))
			require.Len(t, cert.Evidence.Unexplained, 1)
			s := cert.Evidence.Unexplained[0]
			assert.True(t, slices.Contains(s.Keys, c.key) && strings.Contains(s.Evidence, c.says) && s.Addr != "", s)
			if name == "one of the same name" {
				assert.Equal(t, "orders", s.Name)
			}
			assert.Contains(t, cert.Why, "a process that is no member touched a lock key")
		})
	}
	t.Run("another database", func(t *testing.T) {
		cert := f.look(func() {
			conn := a.Conn()
			_, _ = conn.Do("SELECT", 5)
			token(conn, "lock:1")
		})
		assert.Equal(t, verify.Inconclusive, cert.Verdict)
		assert.Contains(t, cert.Why, "--ignore-db 5")
	})
	t.Run("a gap of MONITOR", func(t *testing.T) {
		cert := f.look(func() {
			clients, err := endpoint.Clients(t.Context(), a.Conn())
			require.NoError(t, err)
			for _, c := range clients {
				if c["cmd"] == "monitor" {
					_, _ = a.Try("CLIENT", "KILL", "ID", c["id"])
				}
			}
			token(a.Conn(), "lock:gap")
		})
		assert.Equal(t, verify.Inconclusive, cert.Verdict)
		assert.Contains(t, open(cert), "commands")
	})
	t.Run("without a fleet", func(t *testing.T) {
		quiet := f.opts
		quiet.Match = []string{"lock:nobody:*"}
		assert.Contains(t, open(within(t, f.old, quiet, func() { a.Do("SET", "cache:1", "1") })), "keys")
	})
	t.Run("two at one place", func(t *testing.T) { // the last: what comes in the place of a member's connection is a stranger until it is reported
		cert := f.look(func() { token(inPlaceOf(t, a, newest.Load()), "lock:port") })
		assert.Equal(t, verify.Inconclusive, cert.Verdict)
		assert.True(t, slices.ContainsFunc(cert.Evidence.Unexplained, func(c verify.Client) bool { return slices.Contains(c.Keys, "lock:port") }), cert.Evidence.Unexplained)
	})
}

// inPlaceOf ends a connection and takes its port over, as a process on the same host may by chance.
func inPlaceOf(t *testing.T, s *redistest.Server, victim *net.TCPConn) redis.Conn {
	local := victim.LocalAddr()
	require.NoError(t, victim.SetLinger(0)) // else the port is not free for a minute
	require.NoError(t, victim.Close())
	var raw net.Conn
	redistest.Await(t, "the port, as soon as nobody reads from the connection any more", func() (free bool) {
		var err error
		raw, err = (&net.Dialer{LocalAddr: local}).DialContext(t.Context(), "tcp", s.Addr)
		return err == nil
	})
	conn := redis.NewConn(raw, time.Second, time.Second)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestOnlyMembersOfALibrary: an Old of another library on Redis has no mark. Its connections are known when it tells them.
func TestOnlyMembersOfALibrary(t *testing.T) {
	a := redistest.Real(t)
	f := newFleet(t, a.URL(), nil, "library at a")
	library := func(pool *redis.Pool) lockmigrate.Locker {
		return handover.Wrap("library at a", handover.Funcs[string]{
			Acquire: func(ctx context.Context, key string) (string, error) {
				for {
					conn := pool.Get()
					_, err := redis.String(conn.Do("SET", key, "t", "NX", "PX", 5000))
					_ = conn.Close()
					if err == nil || lifetime.Sleep(ctx, 5*time.Millisecond) != nil {
						return key, context.Cause(ctx)
					}
				}
			},
			Release: func(_ context.Context, key string) error {
				conn := pool.Get()
				defer conn.Close()
				_, err := conn.Do("DEL", key)
				return err
			},
			TTL: 5 * time.Second,
		})
	}
	var conns handover.Connections
	telling := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
		conn, err := a.Dial(ctx)
		if err != nil {
			return nil, err
		}
		id, _ := redis.Int64(conn.Do("CLIENT", "ID"))
		info, _ := redis.String(conn.Do("INFO", "server"))
		conns.Opened(id, info)
		return conn, nil
	}}
	t.Cleanup(func() { _ = telling.Close() })
	f.opts.Match = []string{"lock:*"}
	cert := f.look(func() { a.Do("SET", "cache:1", "1") })
	assert.Contains(t, open(cert), "handover")
	leave := f.join(library(telling), func(o *handover.Options) { o.OldConnections = &conns }, "lock:1")
	cert = f.look(func() {})
	assert.Equal(t, verify.NoneSeen, cert.Verdict, "%s %v", cert.Why, cert.Evidence.Unexplained)
	leave()
	f.join(library(a.Pool()), nil, "lock:1")
	cert = f.look(func() {})
	assert.Equal(t, verify.Inconclusive, cert.Verdict, "a library that tells nothing")
	assert.NotEmpty(t, cert.Evidence.Unexplained)
}

// TestOnlyMembersBehindAProxy: a proxy that sends everybody's commands over one connection would make all of them members.
func TestOnlyMembersBehindAProxy(t *testing.T) {
	a := redistest.Real(t)
	f := newFleet(t, a.URL(), a.Pool(), "")
	pool := &redis.Pool{MaxActive: 1, MaxIdle: 1, Wait: true, DialContext: a.Dial}
	t.Cleanup(func() { _ = pool.Close() })
	for range 2 {
		f.join(watchful(t, pool), nil, "lock:1")
	}
	cert := f.look(func() {})
	assert.Equal(t, verify.Inconclusive, cert.Verdict)
	assert.Contains(t, fmt.Sprint(cert.Evidence.Unexplained), "two members say that it is their own")
}

// TestOnlyMembersByAUnixSocket: MONITOR shows all clients of a unix socket under one address, so nobody's commands over it are known to be a member's.
func TestOnlyMembersByAUnixSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	a := redistest.Real(t, "--unixsocket", socket)
	f := newFleet(t, a.URL(), a.Pool(), "")
	pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "unix", socket) }}
	t.Cleanup(func() { _ = pool.Close() })
	f.join(modernOld(t, pool), nil, "lock:1")
	cert := f.look(func() {})
	assert.Equal(t, verify.Inconclusive, cert.Verdict)
	assert.Contains(t, fmt.Sprint(cert.Evidence.Unexplained), "unix socket")
}

// TestOnlyMembersOfACluster: each node gives ids of its own, so one that a member has on one node is nobody's on another.
func TestOnlyMembersOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 0)
	pool, err := cluster.New(cluster.Options{Addrs: c.Addrs()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	f := newFleet(t, c.URL(), pool, "")
	f.join(modernOld(t, pool), nil, "lock:1", "lock:2", "lock:3", "lock:4")
	f.opts.Window = time.Second
	cert := f.look(func() {})
	assert.Equal(t, verify.NoneSeen, cert.Verdict, "%s %v", cert.Why, cert.Evidence.Unexplained)
	for _, node := range c.Masters {
		cert = f.look(func() {
			for _, key := range []string{"lock:1", "lock:2", "lock:3", "lock:4", "lock:5", "lock:6"} {
				_, _ = node.Try("SET", key, "x", "NX", "PX", 1) // of another node's key it is sent there, and does not go
			}
		})
		assert.Equal(t, verify.Inconclusive, cert.Verdict)
		assert.NotEmpty(t, cert.Evidence.Unexplained)
	}
	f.old = at(t, c.Masters[0].URL())
	_, err = verify.Run(t.Context(), f.old, f.opts)
	if err == nil { // the mark is on this node
		assert.Contains(t, open(f.look(func() {})), "masters")
	}
}

// TestOnlyMembersElsewhere: neither another server nor another kind of namespace is judged.
func TestOnlyMembersElsewhere(t *testing.T) {
	a, elsewhere := redistest.Real(t), redistest.Real(t)
	f := newFleet(t, elsewhere.URL(), a.Pool(), "")
	_, err := verify.Run(t.Context(), f.old, f.opts)
	assert.ErrorContains(t, err, "not the server of the record's Old")
	_, err = stages.WriteMark(t.Context(), elsewhere.Pool(), ofFleet, time.Second)
	require.NoError(t, err)
	_, err = verify.Run(t.Context(), f.old, f.opts)
	assert.ErrorContains(t, err, "not the server of the record's Old")
	o := f.opts
	o.OnlyMembers = false
	_, err = verify.Run(t.Context(), f.old, o)
	assert.ErrorContains(t, err, "is a handover from one lock to another")
	store := &stages.Store{Pool: f.record.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Patterns: []string{"order:*"}, Dialect: "jedis-ms", Shortest: time.Second}))
	o = f.opts
	o.Namespace = "orders"
	_, err = verify.Run(t.Context(), f.old, o)
	assert.ErrorContains(t, err, "--only-members is about a handover")
}
