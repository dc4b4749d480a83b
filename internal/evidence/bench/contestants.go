package bench

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// client is one process's way to take locks.
type client interface {
	// Acquire waits for a lock and returns how to give it back.
	Acquire(ctx context.Context, key string) (release func() error, err error)
	// Pair takes a lock that is free and gives it back, without anything of the harness in between.
	Pair(ctx context.Context, key string) error
}

// contestant is a kind of lock.
type contestant struct {
	name   string
	about  string
	open   func(t testing.TB, addr string) client // ends with the test
	shares bool                                   // has one connection for all goroutines
	solo   bool                                   // makes sense without contention
	waits  bool                                   // makes sense with it
	held   bool                                   // renews what it holds, from few connections
	old    bool                                   // hears the DEL of an old client, or is what that is compared with
	list   bool                                   // passes a token in a list around: its key begins with one
	aside  bool                                   // only where it is asked for by name
}

// ttl is that of every lock that has one and where the library lets us say so.
const ttl = 30 * time.Second

var contestants = []contestant{
	{name: "raw", solo: true, open: rawOver(poolFor),
		about: "redigo's pool, SET NX PX and EVALSHA compare-and-delete; no renewal, no waiting"},
	{name: "raw-quiet", solo: true, open: rawOver(quietPool),
		about: "the same with connections of rawconn.DialContext"},
	{name: "raw-mux", solo: true, open: openMux,
		about: "the same two commands over redigo's own connections and this project's shared connection (internal/client/driver)"},
	{name: "blpop", waits: true, list: true, open: openBlpop,
		about: "a token in a list, BLPOP and LPUSH; no lease: the ideal for waiting"},
	{name: "bare", old: true, open: openBare,
		about: "no lock: two blocking sockets, one to hear of the DEL and one to send SET NX PX; the least that any client can do"},
	{name: "modern", shares: true, solo: true, waits: true, held: true, old: true, open: ofModern(quietPool, modern.Options{}),
		about: "package modern as it comes, over rawconn.DialContext as the README has it: renewal on, the fair queue on"},
	{name: "modern-plain", shares: true, solo: true, waits: true, old: true, open: ofModern(poolFor, modern.Options{}),
		about: "the same over redigo's own connections"},
	{name: "modern-unfair", aside: true, waits: true, old: true, open: ofModern(quietPool, modern.Options{Unfair: true}),
		about: "package modern with Options.Unfair: waiters are woken and compete"},
	{name: "compat", shares: true, solo: true, waits: true, old: true, open: of(quietPool, newCompat),
		about: "package compat, the bridge: a lock that old and new clients respect; renewal on; over rawconn.DialContext"},
	{name: "handover-old", aside: true, solo: true, waits: true, open: openHandover(lockmigrate.StageOld),
		about: "package handover from compat to modern, at stage old: beside compat"},
	{name: "handover-both", aside: true, solo: true, waits: true, open: openHandover(lockmigrate.StageBoth),
		about: "the same at stage both: beside the sum of compat and modern"},
	{name: "handover-new", aside: true, solo: true, waits: true, open: openHandover(lockmigrate.StageNew),
		about: "the same at stage new: beside modern"},
	{name: "legacy", solo: true, waits: true, open: of(poolFor, newLegacy),
		about: "package legacy, dialect jedis-ms, poll 100 ms as in the old clients"},
	{name: "redsync-5ms", solo: true, waits: true, open: openRedsync(5 * time.Millisecond),
		about: "redsync over redigo, retry every 5 ms; no renewal"},
	{name: "redsync", waits: true, open: openRedsync(0),
		about: "redsync over redigo, its default retry of 50 to 250 ms; no renewal"},
	{name: "redislock-5ms", solo: true, waits: true, open: openRedislock,
		about: "bsm/redislock over go-redis, linear backoff of 5 ms; no renewal"},
	{name: "rueidislock-tuned", solo: true, waits: true, open: openRueidislock(true),
		about: "rueidislock for one server: KeyMajority 1"},
	{name: "rueidislock", solo: true, waits: true, open: openRueidislock(false),
		about: "rueidislock as it comes: a majority of three keys"},
}

func dialer(addr string) func(context.Context) (redis.Conn, error) {
	return func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr) }
}

func poolFor(addr string) *redis.Pool {
	return &redis.Pool{MaxIdle: 256, DialContext: dialer(addr)}
}

// quietPool is a pool as the README has it.
func quietPool(addr string) *redis.Pool {
	return &redis.Pool{MaxIdle: 256, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialContextFunc(rawconn.DialContext))
	}}
}

// token stands for what a library would draw; raw shall not pay for randomness that is not its subject.
const token = "5123456789012345678"

var errHeld = errors.New("held by another")

var compareDel = redis.NewScript(1, `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

type rawLock struct {
	pool *redis.Pool
	key  string
}

func (l rawLock) Release(context.Context) error {
	conn := l.pool.Get()
	defer conn.Close()
	n, err := redis.Int(compareDel.Do(conn, l.key, token))
	if err == nil && n != 1 {
		return errors.New("not ours any more")
	}
	return err
}

func rawOver(poolOf func(addr string) *redis.Pool) func(testing.TB, string) client {
	return func(t testing.TB, addr string) client {
		pool := poolOf(addr)
		return clientOf(t, func(_ context.Context, key string) (rawLock, error) {
			conn := pool.Get()
			defer conn.Close()
			reply, err := conn.Do("SET", key, token, "NX", "PX", ttl.Milliseconds())
			if err == nil && reply == nil {
				err = errHeld
			}
			return rawLock{pool, key}, err
		}, pool.Close)
	}
}

type muxLock struct {
	line *driver.Shared
	key  string
}

func (l muxLock) Release(ctx context.Context) error {
	_, err := l.line.Do(ctx, protocol.Command{Op: protocol.CompareDel, Key: l.key, Value: token})
	return err
}

func openMux(t testing.TB, addr string) client {
	now := func() protocol.Instant { return protocol.InstantOf(time.Now()) }
	line := driver.NewShared(driver.SharedOptions{Dial: dialer(addr), Now: now})
	return clientOf(t, func(ctx context.Context, key string) (muxLock, error) {
		reply, err := line.Do(ctx, protocol.Command{Op: protocol.SetToken, Key: key, Value: token, TTL: ttl})
		if err == nil && reply.Kind == protocol.Nil {
			err = errHeld
		}
		return muxLock{line, key}, err
	}, func() error { line.Close(); line.Wait(); return nil })
}

// release is how a lock that is no library's is given back.
type release func() error

func (r release) Release(context.Context) error { return r() }

// openBlpop passes a token around. The list must have been given its token once.
func openBlpop(t testing.TB, addr string) client {
	pool := poolFor(addr)
	return clientOf(t, func(ctx context.Context, key string) (release, error) {
		conn := pool.Get()
		defer conn.Close()
		patience := time.Hour
		if end, ok := ctx.Deadline(); ok {
			patience = max(time.Until(end), time.Millisecond)
		}
		seconds := strconv.FormatFloat(patience.Seconds(), 'f', 3, 64)
		reply, err := redis.DoWithTimeout(conn, 0, "BLPOP", key, seconds)
		if err == nil && reply == nil {
			err = context.DeadlineExceeded
		}
		return func() error {
			conn := pool.Get()
			defer conn.Close()
			_, err := conn.Do("LPUSH", key, "token")
			return err
		}, err
	}, pool.Close)
}

// releaser is a lock of a library.
type releaser interface{ Release(context.Context) error }

// lockClient is the way in which a library acquires.
type lockClient[L releaser] func(ctx context.Context, key string) (L, error)

// clientOf makes a client of it, and ends what it is made of with the test.
func clientOf[L releaser](t testing.TB, acquire lockClient[L], ends ...func() error) client {
	t.Cleanup(func() {
		for _, end := range ends {
			_ = end()
		}
	})
	return acquire
}

func (acquire lockClient[L]) Pair(ctx context.Context, key string) error {
	lock, err := acquire(ctx, key)
	if err != nil {
		return err
	}
	return lock.Release(ctx)
}

func (acquire lockClient[L]) Acquire(ctx context.Context, key string) (func() error, error) {
	lock, err := acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return func() error { return lock.Release(context.WithoutCancel(ctx)) }, nil
}

// of is a Locker of this module over a pool of its own.
func of[L lockmigrate.Locker](poolOf func(addr string) *redis.Pool, open func(pool lockmigrate.Pool) (L, error)) func(testing.TB, string) client {
	return func(t testing.TB, addr string) client {
		pool := poolOf(addr)
		locker, err := open(pool)
		check(t, err)
		return clientOf(t, locker.Acquire, locker.Close, pool.Close)
	}
}

func ofModern(poolOf func(addr string) *redis.Pool, o modern.Options) func(testing.TB, string) client {
	o.TTL = ttl
	return of(poolOf, func(pool lockmigrate.Pool) (lockmigrate.Locker, error) { return modern.New(pool, o) })
}

func newLegacy(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
	return legacy.New(pool, legacy.Options{Lease: time.Minute})
}

func newCompat(pool lockmigrate.Pool) (compat.Locker, error) {
	return compat.New(pool, compat.Options{TTL: ttl, Lease: time.Minute, ShortestLease: time.Minute})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
