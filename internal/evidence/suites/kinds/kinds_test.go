// Package kinds holds what is tried on every kind of lock alike. A holder is told, whatever goes wrong between the acquisition and
// the end of the lock. Options at the edges are refused with a reason, or work. What an attacker puts on keys and into names does no harm.
package kinds

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "10") // most of the time goes by in waiting for deadlines; the command line still decides
	redistest.Main(redistest.Leakless{M: m}, redistest.Redis)
}

const (
	key = "lock.orders"
	// ttl is short, because most tests wait for a deadline; it is long beside a reply.
	ttl = 1500 * time.Millisecond
)

// terms are what a test wants of the options.
type terms struct {
	maxHold time.Duration        // legacy locks have none
	told    lockmigrate.Observer // of a scene: its counts
	reply   time.Duration        // of the replies; zero: half of ttl
	ttl     time.Duration        // zero: ttl
	wait    time.Duration        // of Acquire at most; zero: no bound
	args    []string             // words on the server's command line
	server  *redistest.Server
}

// kind is a way to lock.
type kind struct {
	name string
	old  bool // the key has no TTL, and what stands on it is no token
	open func(t *testing.T, pools []lockmigrate.Pool, c terms) lockmigrate.Locker
}

// kinds are all of them.
var kinds = []kind{
	{"legacy", true, openLegacy(legacy.ReleaseUnexpired)},
	{"legacy, compared", true, openLegacy(legacy.ReleaseCompare)},
	{"compat at stage legacy", true, openCompat(lockmigrate.StageLegacy)},
	{"compat at stage bridge", false, openCompat(lockmigrate.StageBridge)},
	{"compat at stage modern", false, openCompat(lockmigrate.StageModern)},
	{"modern", false, openModern(modern.Options{})},
	{"modern, fenced", false, openModern(modern.Options{FenceTTL: time.Hour})},
	{"modern, unfair", false, openModern(modern.Options{Unfair: true})},
	{"redisson", false, openRedisson},
	{"modern, an owner's", false, openOwned},
	{"quorum", false, openQuorum},
	{"handover at stage both", false, openHandover},
}

func openLegacy(release legacy.ReleasePolicy) func(*testing.T, []lockmigrate.Pool, terms) lockmigrate.Locker {
	return func(t *testing.T, pools []lockmigrate.Pool, c terms) lockmigrate.Locker {
		l, err := legacy.New(pools[0], legacy.Options{Lease: cmp.Or(c.ttl, ttl), Wait: c.wait, Release: release, ReplyTimeout: cmp.Or(c.reply, ttl/2), Observer: c.told})
		require.NoError(t, err)
		return l
	}
}

func openCompat(stage lockmigrate.Stage) func(*testing.T, []lockmigrate.Pool, terms) lockmigrate.Locker {
	return func(t *testing.T, pools []lockmigrate.Pool, c terms) lockmigrate.Locker {
		o := compat.Options{
			TTL: cmp.Or(c.ttl, ttl), Lease: cmp.Or(c.ttl, ttl), ShortestLease: cmp.Or(c.ttl, ttl), ClockLag: 50 * time.Millisecond,
			CommandDelay: 50 * time.Millisecond, MaxHold: c.maxHold, Wait: c.wait, ReplyTimeout: cmp.Or(c.reply, ttl/2), Observer: c.told,
		}
		if stage != lockmigrate.StageBridge {
			var err error
			o.Namespace, err = redistest.InStage(c.server.Pool(), stage, "", cmp.Or(c.ttl, ttl))
			require.NoError(t, err)
		}
		l, err := compat.New(pools[0], o)
		require.NoError(t, err)
		require.NoError(t, l.Ready(t.Context()))
		return l
	}
}

func openModern(o modern.Options) func(*testing.T, []lockmigrate.Pool, terms) lockmigrate.Locker {
	return func(t *testing.T, pools []lockmigrate.Pool, c terms) lockmigrate.Locker {
		o := o
		o.TTL, o.Wait, o.MaxHold, o.ReplyTimeout, o.Observer = cmp.Or(c.ttl, ttl), c.wait, c.maxHold, cmp.Or(c.reply, ttl/2), c.told
		l, err := modern.New(pools[0], o)
		require.NoError(t, err)
		return l
	}
}

func openRedisson(t *testing.T, pools []lockmigrate.Pool, c terms) lockmigrate.Locker {
	l, err := redisson.New(pools[0], c.modern())
	require.NoError(t, err)
	return l
}

func openOwned(t *testing.T, pools []lockmigrate.Pool, c terms) lockmigrate.Locker {
	return owned{openModern(modern.Options{})(t, pools, c)}
}

// owned gives the second Lock of an owner's hold: the first is released before.
type owned struct{ lockmigrate.Locker }

func (o owned) TryAcquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	return o.Acquire(ctx, key)
}

func (o owned) Acquire(ctx context.Context, key string) (lockmigrate.Lock, error) {
	ctx = modern.WithOwner(ctx, "me")
	outer, err := o.Locker.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	second, err := o.Locker.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return second, outer.Release(ctx)
}

// Do returns what the inner one says.
func (o owned) Do(ctx context.Context, key string, work func(context.Context) error) (inside error) {
	ctx = modern.WithOwner(ctx, "me")
	_ = o.Locker.Do(ctx, key, func(ctx context.Context) error {
		inside = o.Locker.Do(ctx, key, work)
		return nil
	})
	return inside
}

func openHandover(t *testing.T, pools []lockmigrate.Pool, c terms) lockmigrate.Locker {
	h, ctx := halves{}, context.Background()
	store := &stages.Store{Pool: c.server.Pool(), Namespace: lockmigrate.StageBoth.String(), ReplyTimeout: 5 * time.Second}
	var marks [2]stages.Half
	for i := range h.of {
		of := c.modern()
		of.Wait = 0
		var err error
		h.of[i], err = modern.New(pools[i], of)
		require.NoError(t, err)
		redistest.Within(t, "a connection", late, func() bool { // some are from before a restart
			marks[i].Mark, err = stages.WriteMark(ctx, pools[i], store.Namespace, store.ReplyTimeout)
			return err == nil
		})
	}
	if view, err := store.Show(ctx); err != nil || view.Record.Epoch == 0 {
		require.NoError(t, store.Init(ctx, stages.Record{Patterns: []string{"lock.*", "another", "order*", "0", "1", "2", "3"}, Handover: &stages.Halves{Old: marks[0], New: marks[1]}}))
		_, err := store.Move(ctx, 1, lockmigrate.StageBoth, true)
		require.NoError(t, err)
	}
	var err error
	h.Locker, err = handover.New(pools[0], handover.Options{Namespace: store.Namespace, Old: h.of[0], New: h.of[1], Wait: c.wait, ReplyTimeout: cmp.Or(c.reply, ttl/2), Observer: c.told})
	require.NoError(t, err)
	require.NoError(t, h.Ready(ctx))
	return h
}

// halves are those of a handover, which end with it.
type halves struct {
	handover.Locker
	of [2]lockmigrate.Locker
}

func (h halves) Close() error { return errors.Join(h.Locker.Close(), h.of[0].Close(), h.of[1].Close()) }

func openQuorum(t *testing.T, pools []lockmigrate.Pool, c terms) lockmigrate.Locker {
	q, err := quorum.New(pools, c.modern())
	require.NoError(t, err)
	return q
}

func (c terms) modern() modern.Options {
	return modern.Options{TTL: cmp.Or(c.ttl, ttl), Wait: c.wait, MaxHold: c.maxHold, ReplyTimeout: cmp.Or(c.reply, ttl/2), Observer: c.told}
}

// counts counts what an observer is told of.
type counts struct {
	mu   sync.Mutex
	told map[lockmigrate.EventKind]int
}

// observe is a lockmigrate.Observer.
func (c *counts) observe(e lockmigrate.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[e.Kind]++
}

func (c *counts) of(kind lockmigrate.EventKind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[kind]
}

// scene is one server and a Locker of one kind behind that.
type scene struct {
	*testing.T
	kind   kind
	server *redistest.Server
	link   interface {
		Partition()
		HalfOpen()
		Heal()
		Cut()
	} // the way to it
	counts *counts
	again  func() lockmigrate.Locker // another one, of another process
	lockmigrate.Locker
}

// user is whom the Lockers are to the server, so that a test can take rights from them.
const user = "holder"

// each runs a test for every kind that it is about, all at once: mostly they wait.
func each(t *testing.T, wanted func(kind) bool, c terms, test func(s *scene)) {
	t.Helper()
	for _, k := range kinds {
		if wanted != nil && !wanted(k) {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t, c.args...)
			server.Do("ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all")
			link := redistest.NewLink(t, server.Addr)
			dial := func(ctx context.Context, db int) (redis.Conn, error) {
				return redis.DialContext(ctx, "tcp", link.Addr, redis.DialUsername(user), redis.DialPassword("secret"), redis.DialDatabase(db))
			}
			test(newScene(&scene{T: t, kind: k, server: server, link: link}, c, dial))
		})
	}
}

// virtually is each in virtual time.
func virtually(t *testing.T, wanted func(kind) bool, c terms, test func(s *scene)) {
	t.Helper()
	for _, k := range kinds {
		if wanted != nil && !wanted(k) {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			redistest.Virtual(t, func(t *testing.T, server *redistest.Server) {
				link := server.Route(user)
				test(newScene(&scene{T: t, kind: k, server: server, link: link}, c, func(ctx context.Context, db int) (redis.Conn, error) {
					return redis.DialContext(ctx, "tcp", "", redis.DialContextFunc(link.Dial), redis.DialDatabase(db))
				}))
			})
		})
	}
}

func newScene(s *scene, c terms, dial func(ctx context.Context, db int) (redis.Conn, error)) *scene {
	s.Helper()
	t := s.T
	s.counts = &counts{told: map[lockmigrate.EventKind]int{}}
	c.told, c.server = s.counts.observe, s.server
	var pools []lockmigrate.Pool
	for db := range 3 { // as good as three servers to a quorum
		pool := &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) { return dial(ctx, db) }}
		t.Cleanup(func() { _ = pool.Close() })
		pools = append(pools, pool)
	}
	s.again = func() lockmigrate.Locker { return s.kind.open(t, pools, c) }
	s.Locker = s.again()
	t.Cleanup(func() { _ = s.Close() })
	first := s.hold() // the server knows the scripts from now on
	require.NoError(t, first.Renew(t.Context()))
	require.NoError(t, first.Release(t.Context()))
	return s
}

// hold acquires.
func (s *scene) hold() lockmigrate.Lock {
	s.Helper()
	k, err := s.TryAcquire(s.Context(), key)
	require.NoError(s, err)
	return k
}

// free tells whether nothing is on the key.
func (s *scene) free() bool { return s.left() == 0 }

// given tells whether a release has run: for a quorum, on most servers, and for a handover, on New's. On the last one it may have to wait for the
// acquisition's own reply, and Old's comes behind New's.
func (s *scene) given() bool {
	if s.kind.name == "quorum" || s.kind.name == "handover at stage both" {
		return s.left() <= 1
	}
	return s.free()
}

// leavesNothing wants the key free now. A quorum has released when most servers have; the last one may follow.
func (s *scene) leavesNothing(t *testing.T) {
	if s.kind.name == "quorum" {
		assert.Eventually(t, s.free, late, time.Millisecond, "nothing is left")
		return
	}
	assert.True(t, s.free(), "nothing is left")
}

// left counts the servers on which the key is.
func (s *scene) left() (n int) {
	for db := range 3 {
		conn := s.server.Conn()
		_, err := conn.Do("SELECT", db)
		require.NoError(s, err)
		there, err := redis.Int(conn.Do("EXISTS", key))
		require.NoError(s, err)
		_ = conn.Close()
		n += there
	}
	return n
}
