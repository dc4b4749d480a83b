package handover

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// example is a lock to move from, and what its administrator can do to all that is held.
type example struct {
	old   string
	ttl   time.Duration
	start func(t testing.TB) (addr string, takeAway func())
}

func onRedis(t testing.TB) (string, func()) {
	s := redistest.Real(t)
	return s.Addr, func() { s.Do("FLUSHALL") }
}

var examples = []example{
	{"redsync", 3 * time.Second, onRedis},
	{"redislock", 3 * time.Second, onRedis},
	{"rueidislock", 3 * time.Second, onRedis},
	{"redisson", 3 * time.Second, onRedis},
	{"postgres", 6 * time.Second, func(t testing.TB) (string, func()) {
		addr := startPostgres(t)
		admin, err := pgx.ConnectConfig(t.Context(), postgresConfig(addr))
		require.NoError(t, err)
		const others = " FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> 'watch'"
		t.Cleanup(func() {
			redistest.Await(t, "the end of all sessions", func() bool {
				sessions := 0
				assert.NoError(t, admin.QueryRow(context.Background(), "SELECT count(*)"+others).Scan(&sessions))
				return sessions == 0
			})
			_ = admin.Close(context.Background())
		})
		return addr, func() {
			_, err := admin.Exec(context.Background(), "SELECT pg_terminate_backend(pid, 60000)"+others) // it waits for their end
			assert.NoError(t, err)
		}
	}},
	{"etcd", 3 * time.Second, func(t testing.TB) (string, func()) {
		addr := startEtcd(t)
		client := etcdClient(addr)
		t.Cleanup(func() { _ = client.Close() })
		return addr, func() {
			leases, err := client.Leases(context.Background())
			require.NoError(t, err)
			for _, l := range leases.Leases {
				_, _ = client.Revoke(context.Background(), clientv3.LeaseID(l.ID))
			}
		}
	}},
}

// TestExamples: each lock of examples/locks keeps others out, lets a waiter in when it is released, lasts longer than its TTL, and tells its holder of a
// loss: when it is taken away, and when the holder is cut off, before another can have it. Then it is left behind for package modern.
func TestExamples(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, e := range examples {
		all.Go(func() { t.Run(e.old, e.try) })
	}
}

func (e example) try(t *testing.T) {
	addr, takeAway := e.start(t)
	b := redistest.Real(t)
	ctx := redistest.Bounded(t, 2*time.Minute)
	store := &stages.Store{Pool: b.Pool(), Namespace: namespace, ReplyTimeout: 5 * time.Second, By: "test"}
	require.NoError(t, store.Init(ctx, stages.Record{Patterns: []string{"lock.*"}, Handover: record(t, e.old, addr, b)}))
	link := redistest.NewLink(t, addr)
	open := func(addr string) handover.Locker {
		old, end, err := halves[e.old](addr, e.ttl)
		require.NoError(t, err)
		new, endNew, err := halves["modern"](b.Addr, e.ttl)
		require.NoError(t, err)
		l, err := handover.New(b.Pool(), handover.Options{Namespace: namespace, Old: old, New: new, Lease: 3 * time.Second})
		require.NoError(t, err)
		t.Cleanup(func() { _, _, _ = l.Close(), old.Close(), new.Close(); end(); endNew() })
		require.NoError(t, l.Ready(ctx))
		return l
	}
	one, two := open(link.Addr), open(addr)
	var prompt []func()
	if e.old == "postgres" { // each of its processes is a scheduling group, which a busy kernel keeps waiting for seconds
		watch := postgresConfig(addr)
		watch.RuntimeParams["application_name"] = "watch"
		conn, err := pgx.ConnectConfig(ctx, watch)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		prompt = append(prompt, func() { _ = conn.Ping(ctx) })
	}
	late, answers := redistest.NewLateness(t), redistest.NewLateness(t, prompt...)
	// Extended after a third of a TTL, a lock or a waiter's session is lost within two more: on a machine where half of that went by in waking up, or an
	// answer of the server took all of it, that says nothing. A Lateness is twice what it measured.
	punctual := func(since time.Time) bool {
		slept := late.Since(since)
		return slept < e.ttl/3 && answers.Since(since)-slept < 2*e.ttl/3
	}
	sessionOver := func(err error) bool {
		var told *pgconn.PgError
		return errors.Is(err, lockmigrate.ErrLost) || errors.Is(err, concurrency.ErrSessionExpired) || errors.Is(err, rpctypes.ErrLeaseNotFound) || errors.As(err, &told) && told.Code == "57P05"
	}
	const key = "lock.order.17"
	waits := func() <-chan lockmigrate.Lock {
		got := make(chan lockmigrate.Lock, 1)
		go func() {
			defer close(got)
			for began := time.Now(); ; {
				lock, err := two.Acquire(ctx, key)
				if t.Log("who waited was told:", err); !sessionOver(err) || punctual(began) {
					got <- lock
					return
				}
			}
		}()
		return got
	}
	lostTo := func(lock lockmigrate.Lock) {
		t.Helper()
		redistest.Await(t, "the holder to be told", func() bool { return lock.Context().Err() != nil })
		assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrLost)
		bounded, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		assert.ErrorIs(t, lock.Release(bounded), lockmigrate.ErrLost)
	}

	var held, second lockmigrate.Lock
	var err error
	answered := func() bool { // rueidislock has a deadline of its own for one try
		var late net.Error
		return e.old != "rueidislock" || !errors.As(err, &late) || !late.Timeout()
	}
	for again := true; again; {
		held, err = one.Acquire(ctx, key)
		require.NoError(t, err)
		redistest.Await(t, "an attempt", func() bool { _, err = two.TryAcquire(ctx, key); return answered() })
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired, "TryAcquire of what another holds")
		next, began := waits(), time.Now()
		time.Sleep(e.ttl + e.ttl/2)
		waited := len(next) == 0
		err = held.Release(ctx)
		second = <-next
		require.NotNil(t, second, "handed over")
		if again = err != nil && !punctual(began); again {
			_ = second.Release(ctx)
			continue
		}
		require.NoError(t, err, "it lasts longer than its TTL")
		assert.True(t, waited)
	}
	assert.NoError(t, second.Context().Err(), "a long wait is no loss")
	require.NoError(t, second.Release(ctx))
	assert.ErrorIs(t, context.Cause(second.Context()), lockmigrate.ErrReleased)

	redistest.Await(t, "an attempt", func() bool { held, err = one.TryAcquire(ctx, key); return answered() })
	require.NoError(t, err)
	takeAway()
	lostTo(held)

	held, err = one.Acquire(ctx, key)
	require.NoError(t, err)
	link.Partition()
	second = <-waits()
	require.NotNil(t, second, "a holder that is cut off does not keep it for ever")
	select {
	case <-held.Context().Done():
	case <-time.After(20*time.Millisecond + late.Most()):
		t.Error(redistest.Violated, "another holds it, and one who is cut off has not been told")
	}
	lostTo(held)
	link.Cut()
	link.Heal()
	require.NoError(t, second.Release(ctx))

	for _, to := range []lockmigrate.Stage{lockmigrate.StageBoth, lockmigrate.StageNew} {
		move(t, store, to)
		redistest.Await(t, "the stage", func() bool { stage, _, _ := one.Stage(); return stage == to })
		held, err = one.Acquire(ctx, key)
		require.NoError(t, err)
		assert.Equal(t, to, held.Stage())
		require.NoError(t, held.Release(ctx))
	}
}

// TestExamplesStandAlone: examples/locks compiles in a module that is not ours, so with nothing but what a service can import.
func TestExamplesStandAlone(t *testing.T) {
	t.Parallel()
	top, err := filepath.Abs("../../../..")
	require.NoError(t, err)
	dir := t.TempDir()
	files, _ := filepath.Glob(filepath.Join(top, "examples", "locks", "*.go"))
	require.NotEmpty(t, files)
	for _, name := range append(files, filepath.Join(top, "examples", "go.mod"), filepath.Join(top, "examples", "go.sum")) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		text = []byte(strings.NewReplacer("module github.com/lockmigrate/lockmigrate/examples", "module example.com/service", "=> ..\n", "=> "+top+"\n").Replace(string(text)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o600))
	}
	build := exec.CommandContext(t.Context(), "go", "build", "./...")
	build.Dir, build.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
}
