// Package versions runs every kind of lock on the servers that old and new fleets run on, from Redis 2.8 to 8 and Valkey: on
// each either two processes take turns and never meet, or the first use says what the server lacks and leaves no key.
package versions

import (
	"cmp"
	"context"
	"flag"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

const (
	key = "lock.orders"
	ttl = time.Second // also what a killed holder costs the other one
)

// patient is the TTL of a lock where it is not the subject: no busy machine makes it late.
const patient = 30 * time.Second

// lock is a kind of lock: how a process opens it, and its row in the table.
type lock struct {
	name    string
	feature string
	open    func(pool lockmigrate.Pool, ttl time.Duration, told lockmigrate.Observer) (lockmigrate.Locker, error)
}

var locks = []lock{
	{"legacy-as-dialect", servers.Legacy, old(legacy.Options{Release: legacy.ReleaseAsDialect})},
	{"legacy-unexpired", servers.Legacy, old(legacy.Options{Release: legacy.ReleaseUnexpired})},
	{"legacy-compare", servers.Legacy, old(legacy.Options{Release: legacy.ReleaseCompare})},
	{"bridge", servers.Bridge, func(pool lockmigrate.Pool, ttl time.Duration, told lockmigrate.Observer) (lockmigrate.Locker, error) {
		return compat.New(pool, compat.Options{TTL: ttl, Lease: ttl, ShortestLease: ttl, Observer: told})
	}},
	{"modern", servers.Modern, token(modern.Options{})},
	{"modern-yield", servers.Modern, token(modern.Options{Yield: 20 * time.Millisecond})},
	{"modern-fencing", servers.Fencing, token(modern.Options{FenceTTL: time.Hour})},
	{"modern-unfair-fencing", servers.Fencing, token(modern.Options{Unfair: true, FenceTTL: time.Hour})},
	{"modern-unfair", servers.Unfair, token(modern.Options{Unfair: true})},
	{"redisson", servers.Redisson, func(pool lockmigrate.Pool, ttl time.Duration, told lockmigrate.Observer) (lockmigrate.Locker, error) {
		return redisson.New(pool, modern.Options{TTL: ttl, Observer: told})
	}},
}

// of are the kinds with the names.
func of(names ...string) []lock {
	return slices.DeleteFunc(slices.Clone(locks), func(l lock) bool { return !slices.Contains(names, l.name) })
}

func old(o legacy.Options) func(lockmigrate.Pool, time.Duration, lockmigrate.Observer) (lockmigrate.Locker, error) {
	return func(pool lockmigrate.Pool, ttl time.Duration, _ lockmigrate.Observer) (lockmigrate.Locker, error) {
		o := o // makers run side by side
		o.Lease, o.Poll = ttl, 5*time.Millisecond
		return legacy.New(pool, o)
	}
}

func token(o modern.Options) func(lockmigrate.Pool, time.Duration, lockmigrate.Observer) (lockmigrate.Locker, error) {
	return func(pool lockmigrate.Pool, ttl time.Duration, told lockmigrate.Observer) (lockmigrate.Locker, error) {
		o := o
		o.TTL, o.Observer = ttl, told
		return modern.New(pool, o)
	}
}

// maker makes a process of the kind.
func (l lock) maker(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
	return holders.Of(l.open(pool, holders.Millis(args, "ttl", ttl), nil))
}

// process opens the lock as a process of its own would, until the test ends.
func (l lock) process(t *testing.T, pool lockmigrate.Pool, ttl time.Duration, told lockmigrate.Observer) lockmigrate.Locker {
	t.Helper()
	locker, err := l.open(pool, ttl, told)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

func TestMain(m *testing.M) {
	makers := map[string]holders.Maker{"legacy-named": named, "member": member}
	for _, l := range locks {
		makers[l.name] = l.maker
	}
	holders.ServeIfAsked(makers)
	_ = flag.Set("test.parallel", "6") // a test waits for a killed holder's lease most of the time
	redistest.Main(m, redistest.Redis, redistest.Servers)
}

// named is an old client whose connections have the name that it is started with.
func named(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
	dial := pool.DialContext
	pool.DialContext = func(ctx context.Context) (redis.Conn, error) {
		conn, err := dial(ctx)
		if err == nil {
			_, err = conn.Do("CLIENT", "SETNAME", args["name"])
		}
		return conn, err
	}
	return locks[0].maker(pool, args)
}

// each runs a test on every server side by side.
func each(t *testing.T, test func(t *testing.T, on site)) {
	for _, name := range append([]string{""}, redistest.Names()...) {
		t.Run(cmp.Or(name, "redis-server"), func(t *testing.T) {
			t.Parallel()
			test(t, site{name, sync.OnceValue(func() int { return columnOf(t, redistest.Of(t, name)) })})
		})
	}
}

// site is one kind of server.
type site struct {
	name   string // empty for redis-server on the PATH
	column func() int
}

func (s site) start(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	return redistest.Of(t, s.name, args...)
}

// cell is what the table says of a feature there.
func (s site) cell(t *testing.T, feature string) servers.Cell {
	t.Helper()
	f, found := servers.Find(feature)
	require.True(t, found, "no row %q", feature)
	return f.At(s.column())
}

func columnOf(t *testing.T, server *redistest.Server) int {
	column, known := serverOf(server).RangeOf()
	assert.True(t, known, "no column for %v", serverOf(server))
	return column
}

func serverOf(server *redistest.Server) servers.Server {
	text, _ := redis.String(server.Do("INFO", "server"), nil)
	info := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	return servers.Of(info)
}

// Two processes take turns and never meet; where the server cannot run the lock, its first use says so, and no key stays.
func TestLocks(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, on site) {
		for _, l := range locks {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				server := on.start(t)
				if !on.cell(t, l.feature).How.Usable() {
					refused(t, server, l)
					return
				}
				member := func() *holders.Holder { return holders.StartGo(t, l.name, server.URL()) }
				report := holders.Fleet{
					T: t, Server: server, Key: key, Members: []holders.Member{member, member}, Turns: 60, Each: 1,
					Kills: []int{0}, Hold: time.Millisecond, Limit: 2 * time.Minute, Record: true,
				}.Run()
				assert.Zero(t, report.Overlaps, redistest.Violated)
				assert.Empty(t, report.Thrown(ttl), "a lock threw")
				t.Log(report)
			})
		}
	})
}

// refused tries a lock that the table says is refused: the error names the server's version and what works there.
func refused(t *testing.T, server *redistest.Server, l lock) {
	lock, err := l.process(t, server.Pool(), patient, nil).Acquire(t.Context(), key)
	if !assert.Error(t, err, "an acquisition that cannot be contended") {
		assert.NoError(t, lock.Release(t.Context()))
		return
	}
	refusedWell(t, server, err.Error())
}

func refusedWell(t *testing.T, server *redistest.Server, text string) {
	t.Helper()
	for _, part := range []string{"needs Redis 3.2 or later", "this is " + serverOf(server).String(), "package modern with Unfair and without FenceTTL", "lockmigrate scan"} {
		assert.Contains(t, text, part)
	}
	assert.NotContains(t, text, "namespaces: members, stage init, advance, rollback;", "what does not work there is no way out")
	assert.EqualValues(t, 0, server.Do("DBSIZE"), "keys left behind")
}

// takeTurns has a process wait for a lock that another one holds, until it listens for the release, and get it then.
func takeTurns(t *testing.T, l lock, server *redistest.Server, listens func(mode string) bool) {
	t.Helper()
	mode := new(redistest.Mode)
	lock, err := l.process(t, server.Pool(), patient, nil).Acquire(t.Context(), key)
	require.NoError(t, err, l.name)
	over := redistest.BeginTurn(context.Background(), l.process(t, server.Pool(), patient, mode.Observe).Acquire, key)
	redistest.Await(t, "a waiter that listens", func() bool { return listens(mode.Is()) })
	require.NoError(t, lock.Release(t.Context()), l.name)
	require.NoError(t, <-over, l.name)
}

// A waiter hears of a release the way that the table says: by client tracking, or by polling and messages. An old client polls.
func TestWaiting(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, on site) {
		for _, l := range locks {
			t.Run(l.name, func(t *testing.T) {
				cell := on.cell(t, l.feature)
				if !cell.How.Usable() {
					return // TestLocks
				}
				takeTurns(t, l, on.start(t), func(mode string) bool {
					if cell.How == servers.Works && l.feature != servers.Legacy {
						return mode == "tracking"
					}
					return l.feature == servers.Legacy || mode != "idle" && mode != "tracking"
				})
			})
		}
	})
}

// beforeSET does something before a SET is sent.
type beforeSET struct {
	redis.ConnWithTimeout
	do func()
}

func (c beforeSET) Send(name string, args ...any) error {
	if name == "SET" {
		c.do()
	}
	return c.ConnWithTimeout.Send(name, args...)
}

// TestBusyBehindMulti: a script that goes on and on begins between a take-over's MULTI and its SET. Redis 5 keeps the transaction whose EXEC it refuses:
// the next attempt needs another connection. From 6.0 on it needs none.
func TestBusyBehindMulti(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, on site) {
		server := on.start(t, "--lua-time-limit", "1")
		server.Do("SET", key, "1600000000000") // long expired
		pool, dialed := server.Pool(), 0
		dial, busy := pool.DialContext, sync.OnceFunc(func() {
			go func() { _, _ = server.Try("EVAL", "while true do end", 0) }()
			redistest.Await(t, "a busy server", func() bool { _, err := server.Try("PING"); return err != nil && strings.HasPrefix(err.Error(), "BUSY") })
		})
		pool.DialContext = func(ctx context.Context) (redis.Conn, error) {
			conn, err := dial(ctx)
			dialed++
			return beforeSET{conn.(redis.ConnWithTimeout), busy}, err
		}
		locker, err := legacy.New(pool, legacy.Options{Dialect: legacy.Dialect{Name: "servicestack"}, Lease: patient})
		require.NoError(t, err)
		defer locker.Close()
		_, err = locker.TryAcquire(t.Context(), key)
		require.ErrorContains(t, err, "BUSY")
		server.Do("SCRIPT", "KILL")
		lock, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, lock.Token(), server.Value(key))
		connections := map[bool]int{true: 2, false: 1}[serverOf(server).Version < "6"]
		assert.Equal(t, connections, dialed)
	})
}

// TestVerbatimReplication has Redis 6.2 with a setting that older configurations may carry: scripts are replicated as text unless
// they ask otherwise, and may then not write after TIME.
func TestVerbatimReplication(t *testing.T) {
	t.Parallel()
	server := redistest.Of(t, "redis-6.2.11", "--lua-replicate-commands", "no")
	_, err := server.Try("EVAL", "redis.call('TIME'); return redis.call('SET', KEYS[1], 1)", 1, "other")
	require.ErrorContains(t, err, "non deterministic", "the setting is on")
	for _, l := range locks {
		takeTurns(t, l, server, func(string) bool { return true })
	}
	code, out, stderr := command(t, server, append(initStage, "--execute")...)
	assert.Equal(t, done, code, "%s%s", out, stderr)
	code, out, stderr = command(t, server, "doctor")
	assert.Equal(t, done, code, "%s%s", out, stderr)
}
