package sidecar_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// bed is a server, a namespace "orders" on lock:*, and sidecars.
type bed struct {
	t     testing.TB
	redis *redistest.Server
	store *stages.Store
	addr  string // where sidecars listen, if not at an address of their own
}

func newBed(t testing.TB, stage stages.Stage, dialect string) *bed {
	b := &bed{t: t, redis: redistest.Real(t)}
	b.store = &stages.Store{Pool: b.redis.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	require.NoError(t, b.store.Init(t.Context(), stages.Record{Namespace: "orders", Stage: stage, Patterns: []string{"lock:*"}, Dialect: dialect, Shortest: time.Second}))
	return b
}

// started is a sidecar under way.
type started struct{ *fleet.Sidecar }

// counted is one of its counts.
func (s *started) counted(what string) (n int64) {
	page := httptest.NewRecorder()
	proxy.Handler(nil, s.Collect).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	_, after, _ := strings.Cut(page.Body.String(), "\nlockmigrate_sidecar_"+what+"_total ")
	if _, err := fmt.Sscan(after, &n); err != nil {
		return -1
	}
	return n
}

func (b *bed) sidecar(name, dialect string, change ...func(*sidecar.Options)) *started {
	b.t.Helper()
	opts := sidecar.Options{Pool: b.redis.Pool(), Namespace: "orders", Name: name, MemberLease: 20 * time.Second, Lease: 2 * time.Second}
	for _, f := range change {
		f(&opts)
	}
	return b.start(opts, b.redis.Addr, dialect)
}

// memberFor is a lease of its membership, for what waits for its end or for its reports. Elsewhere nothing may depend on it.
func memberFor(lease time.Duration) func(*sidecar.Options) {
	return func(o *sidecar.Options) { o.MemberLease = lease }
}

// start starts a sidecar of a service whose other keys are on the server at an address.
func (b *bed) start(opts sidecar.Options, data, dialect string) *started {
	b.t.Helper()
	end, err := endpoint.Parse("redis://"+data, endpoint.TLSFiles{})
	require.NoError(b.t, err)
	s, err := fleet.StartSidecar(b.t.Context(), opts, end, "", sidecar.Listener{Address: b.addr, Dialect: dialect})
	require.NoError(b.t, err)
	b.t.Cleanup(s.Close)
	return &started{s}
}

// moves moves the stage as soon as nobody is in the way, and waits until all sidecars follow.
func (b *bed) moves(to stages.Stage, all ...*started) {
	b.t.Helper()
	ctx := redistest.Bounded(b.t, 30*time.Second)
	mover := stages.Mover{Store: b.store, Look: 20 * time.Millisecond}
	require.NoError(b.t, mover.Run(ctx, to, func(stages.View, []stages.Blocker) {}))
	redistest.Await(b.t, "all to follow", func() bool {
		return !slices.ContainsFunc(all, func(s *started) bool {
			is, _, lives := s.Stage()
			return is != to || !lives
		})
	})
}

// poolOf is a pool of connections to an address.
func poolOf(t testing.TB, addr string, options ...redis.DialOption) *redis.Pool {
	pool := &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr, options...) }}
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// client is a connection of the service.
func (b *bed) client(s *started) redis.Conn {
	b.t.Helper()
	conn, err := redis.Dial("tcp", s.Addr)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// says sends a command and compares its reply, as text.
func says(t *testing.T, conn redis.Conn, want string, command string, args ...any) {
	t.Helper()
	reply, err := conn.Do(command, args...)
	got := fmt.Sprint(reply)
	switch v := reply.(type) {
	case []byte:
		got = string(v)
	case nil:
		got = "nil"
	}
	if err != nil {
		got = err.Error()
	}
	if want == "far" {
		n, err := strconv.ParseInt(got, 10, 64)
		require.NoError(t, err, "%s %v: %s", command, args, got)
		require.GreaterOrEqual(t, n, int64(protocol.BridgeLow))
		return
	}
	require.Equal(t, want, got, "%s %v", command, args)
}

// ends is what a Jedis client writes for a lease.
func ends(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixMilli()+1, 10) }

// A client of redis-doc reads its service's text when that is over by its clock, and sends a GETSET. The key has gone meanwhile, and a
// client of that dialect that is told of nothing has won.
func TestAGetSetThatPlantsNothingIsNeverWon(t *testing.T) {
	b := newBed(t, stages.Bridge, "redis-doc")
	c := b.client(b.sidecar("one", "redis-doc"))
	end := time.Now().Add(2 * time.Second).Truncate(time.Second)
	text := strconv.FormatInt(end.Unix(), 10)
	says(t, c, "1", "SETNX", "lock:a", text)
	says(t, c, text, "GET", "lock:a")
	time.Sleep(time.Until(end) + 20*time.Millisecond)
	redistest.Await(t, "the end of the lock", func() bool { return b.redis.Do("EXISTS", "lock:a") == int64(0) })
	says(t, c, "far", "GETSET", "lock:a", strconv.FormatInt(end.Unix()+10, 10))
	assert.EqualValues(t, 0, b.redis.Do("EXISTS", "lock:a"))
}

// A service that writes no expiry crashes and is back at once: its lock ends, though the service is connected and tries for it. One whose process lives
// keeps its lock when the connection is closed on which it took it.
func TestOrphan(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Modern, "jedis-ms")
	crashed := b.sidecar("one", sidecar.DialectNone, func(o *sidecar.Options) { o.Lease, o.KeepFor = 4*time.Second, 3*time.Second })
	lives := b.sidecar("two", sidecar.DialectNone, func(o *sidecar.Options) { o.Lease, o.KeepFor = 4*time.Second, 3*time.Second })
	before, others := b.client(crashed), b.client(lives)
	says(t, others, "PONG", "PING")
	one := b.client(lives)
	says(t, before, "1", "SETNX", "lock:a", "uuid 1")
	says(t, one, "1", "SETNX", "lock:b", "uuid 2")
	_, _ = before.Close(), one.Close()
	after := b.client(crashed)
	time.Sleep(4500 * time.Millisecond) // more than a lease: it is renewed as yet, the process may live
	says(t, after, "uuid 1", "GET", "lock:a")
	redistest.Await(t, "the end of the lock", func() bool {
		taken, err := redis.Int(after.Do("SETNX", "lock:a", "uuid 3"))
		require.NoError(t, err)
		return taken == 1
	})
	says(t, others, "uuid 2", "GET", "lock:b")
	assert.Equal(t, []int64{1, 0}, []int64{crashed.counted("orphaned"), lives.counted("orphaned")})
	time.Sleep(5 * time.Second) // more than a lease: the next lock is the new process's own
	says(t, after, "uuid 3", "GET", "lock:a")
	says(t, others, "uuid 2", "GET", "lock:b")
	says(t, after, "1", "DEL", "lock:a")
	says(t, others, "1", "DEL", "lock:b")
}

// While others want the key, each attempt waits for its turn, and none is refused: a client that is refused sleeps, and the key with it. Two services
// pass a lock to and fro for longer than a sidecar remembers a wait.
func TestEachAttemptWaits(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Bridge, "jedis-ms")
	patient := func(o *sidecar.Options) { o.Hold = 10 * time.Second }
	holds, wants := b.client(b.sidecar("one", "", patient)), b.client(b.sidecar("two", "", patient))
	says(t, holds, "1", "SETNX", "lock:w", ends(time.Minute))
	for began, known := time.Now(), false; time.Since(began) < 3*time.Second; holds, wants = wants, holds {
		reply := make(chan any, 1)
		go func() {
			got, err := wants.Do("SETNX", "lock:w", ends(time.Minute))
			for !known && err == nil && got == int64(0) { // nobody knows yet that it is wanted
				got, err = wants.Do("SETNX", "lock:w", ends(time.Minute))
			}
			reply <- got
		}()
		redistest.Await(t, "the waiter", func() bool { return b.redis.Do("ZCARD", protocol.QueueKey("lock:w")) == int64(1) })
		says(t, holds, "1", "DEL", "lock:w")
		freed := time.Now()
		got := <-reply
		for got == int64(0) && time.Since(freed) > 200*time.Millisecond { // on a busy machine: the claim of what was handed over is 300 ms
			freed = time.Now()
			got, _ = wants.Do("SETNX", "lock:w", ends(time.Minute))
		}
		require.EqualValues(t, 1, got, "after %v", time.Since(began))
		known = time.Since(began) > 500*time.Millisecond // both know by then
	}
}

// What was taken in one stage is given back in another, and never more than that.
func TestStageChanges(t *testing.T) {
	b := newBed(t, stages.Legacy, "jedis-ms")
	s := b.sidecar("one", "", memberFor(6*time.Second))
	c := b.client(s)
	text := ends(30 * time.Second)
	says(t, c, "1", "SETNX", "lock:s", text)
	assert.Equal(t, text, b.redis.Value("lock:s"), "stage legacy: as it always was")
	says(t, c, text, "GETSET", "lock:s", text)
	b.moves(stages.Bridge, s)
	says(t, c, text, "GET", "lock:s")
	says(t, c, "1", "DEL", "lock:s")
	assert.EqualValues(t, 0, b.redis.Do("EXISTS", "lock:s"))

	// The same, and another's lock stands there by then.
	b.redis.Do("SET", "lock:s", "5000000000000000001", "PX", 60000)
	says(t, c, "0", "DEL", "lock:s")
	assert.EqualValues(t, 1, b.redis.Do("EXISTS", "lock:s"))
	b.redis.Do("DEL", "lock:s")

	says(t, c, "1", "SETNX", "lock:s", ends(30*time.Second))
	b.moves(stages.Modern, s)
	says(t, c, "1", "DEL", "lock:s")
	says(t, c, "1", "SETNX", "lock:s", ends(30*time.Second))
	b.moves(stages.Bridge, s)
	b.moves(stages.Legacy, s)
	says(t, c, "1", "DEL", "lock:s")
	assert.EqualValues(t, 0, b.redis.Do("EXISTS", "lock:s", protocol.GuardKey("lock:s")))
}

// Attempts after the end of the member's lease are refused without an error, until it is a member again.
func TestLate(t *testing.T) {
	b := newBed(t, stages.Bridge, "jedis-ms")
	s := b.sidecar("one", "", memberFor(2*time.Second))
	c := b.client(s)
	says(t, c, "1", "SETNX", "lock:l", ends(20*time.Second))
	b.redis.Do("RENAME", stages.RecordKey("orders"), "away")
	time.Sleep(2200 * time.Millisecond)
	_, _, member := s.Stage()
	assert.False(t, member)
	says(t, c, "0", "SETNX", "lock:other", ends(20*time.Second))
	says(t, c, "1", "DEL", "lock:l") // giving back is always allowed
	b.redis.Do("RENAME", "away", stages.RecordKey("orders"))
	require.NoError(t, s.Joined(t.Context()))
	says(t, c, "1", "SETNX", "lock:other", ends(20*time.Second))
}

func TestBeforeAuth(t *testing.T) {
	b := newBed(t, stages.Bridge, "jedis-ms")
	s := b.sidecar("one", "")
	b.redis.Do("CONFIG", "SET", "requirepass", "secret")
	c := b.client(s)
	for _, args := range [][]any{{"SETNX", "lock:p", ends(time.Second)}, {"GET", "lock:p"}, {"DEL", "lock:p"}} {
		_, err := c.Do(args[0].(string), args[1:]...)
		require.ErrorContains(t, err, "NOAUTH")
	}
	says(t, c, "OK", "AUTH", "secret")
	says(t, c, "1", "SETNX", "lock:p", ends(time.Second))
}
