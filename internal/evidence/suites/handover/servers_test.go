// Package handover is the evidence for package handover on real servers: the examples of Wrap, and fleets of processes that move from one lock to
// another while they are killed, stopped and cut off.
package handover

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/examples/locks"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// daemon starts a program that serves until the test has ended, as the user, and waits until it answers.
func daemon(t testing.TB, as *syscall.Credential, answers func(context.Context) error, program string, args ...string) *exec.Cmd {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		_ = cmd.Wait()
		_ = log.Close()
	})
	for end := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := answers(ctx)
		cancel()
		if err == nil {
			return cmd
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s does not answer: %v\n%s", program, err, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// startPostgres starts a PostgreSQL of Debian's package, in a folder of its own. It refuses to run as root, so then it is the user postgres.
func startPostgres(t testing.TB) (addr string) {
	t.Helper()
	redistest.Need(t, redistest.Postgres)
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	require.NotEmpty(t, bins, "Debian's package postgresql (named in LOCKMIGRATE_SUITES)")
	slices.Sort(bins)
	bin := bins[len(bins)-1]
	dir, err := os.MkdirTemp("", "postgres")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var as *syscall.Credential
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		require.NoError(t, err)
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		require.NoError(t, os.Chown(dir, uid, gid))
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "locks", "-A", "trust", "--no-sync", "--no-locale")
	initdb.SysProcAttr, initdb.Dir = &syscall.SysProcAttr{Credential: as}, dir
	out, err := initdb.CombinedOutput()
	require.NoError(t, err, string(out))
	addr = redistest.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	daemon(t, as, func(ctx context.Context) error {
		conn, err := pgx.ConnectConfig(ctx, postgresConfig(addr))
		if err == nil {
			_ = conn.Close(ctx)
		}
		return err
	}, filepath.Join(bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p", port, "-k", dir, "-F", "-c", "shared_buffers=1MB", "-c", "autovacuum=off")
	return addr
}

func postgresConfig(addr string) *pgx.ConnConfig {
	config, err := pgx.ParseConfig(fmt.Sprintf("postgres://locks@%s/postgres?sslmode=disable", addr))
	if err != nil {
		panic(err)
	}
	return config
}

// startEtcd starts an etcd of Debian's package etcd-server.
func startEtcd(t testing.TB) (addr string) {
	t.Helper()
	redistest.Need(t, redistest.Etcd)
	addr, peers := redistest.FreeAddr(t), redistest.FreeAddr(t)
	client := etcdClient(addr)
	t.Cleanup(func() { _ = client.Close() })
	daemon(t, nil, func(ctx context.Context) error { _, err := client.Get(ctx, "k"); return err },
		"etcd", "--data-dir", t.TempDir(), "--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
		"--listen-peer-urls", "http://"+peers, "--initial-advertise-peer-urls", "http://"+peers, "--initial-cluster", "default=http://"+peers, "--unsafe-no-fsync")
	return addr
}

func etcdClient(addr string) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		panic(err)
	}
	return client
}

// half makes a lock on the server of an address, as one process has it, and says how it ends.
type half func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error)

// poll is how often those ask that nobody wakes.
const poll = 10 * time.Millisecond

var halves = map[string]half{
	"legacy": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return legacy.New(pool, legacy.Options{Lease: ttl, Poll: poll, ReplyTimeout: ttl / 3})
	}),
	"compat": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return compat.New(pool, compat.Options{TTL: ttl, FenceTTL: time.Hour, ReplyTimeout: ttl / 3})
	}),
	"modern": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return modern.New(pool, modern.Options{TTL: ttl, FenceTTL: time.Hour, ReplyTimeout: ttl / 3})
	}),
	"redisson": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return redisson.New(pool, modern.Options{TTL: ttl, ReplyTimeout: ttl / 3})
	}),
	"redsync": ours(func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error) {
		return locks.Redsync("redsync", redsync.New(redsyncredigo.NewPool(pool)), ttl, redsync.WithRetryDelay(poll)), nil
	}),
	"redislock": func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		client := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
		return locks.Redislock("redislock", redislock.New(client), ttl, poll), func() { _ = client.Close() }, nil
	},
	"rueidislock": func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyPrefix: "rl", KeyMajority: 1, FallbackSETPX: true, KeyValidity: ttl, ExtendInterval: ttl / 4,
		})
		if err != nil {
			return nil, nil, err
		}
		return locks.Rueidislock("rueidislock", locker, "rl", ttl), locker.Close, nil
	},
	"postgres": func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		return locks.Postgres("postgres", postgresConfig(addr), ttl), func() {}, nil
	},
	"etcd": func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		client := etcdClient(addr)
		return locks.Etcd("etcd", client, ttl), func() { _ = client.Close() }, nil
	},
}

func ours(make func(pool *redis.Pool, ttl time.Duration) (lockmigrate.Locker, error)) half {
	return func(addr string, ttl time.Duration) (lockmigrate.Locker, func(), error) {
		pool := poolOf(addr, ttl/3)
		l, err := make(pool, ttl)
		return l, func() { _ = pool.Close() }, err
	}
}

// poolOf has a bound on every reply: redsync's adapter for redigo has none.
func poolOf(addr string, reply time.Duration) *redis.Pool {
	return &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialConnectTimeout(reply), redis.DialReadTimeout(reply), redis.DialWriteTimeout(reply))
	}}
}

// newMember makes the lock of a member's process.
func newMember(_ *redis.Pool, args map[string]string) (holders.Taker, error) {
	old, _, err := halves[args["old"]](args["old-addr"], ttl)
	if err != nil {
		return nil, err
	}
	new, _, err := halves["modern"](args["new-addr"], ttl)
	if err != nil {
		return nil, err
	}
	return holders.Of(handover.New(poolOf(args["record"], lease/4), handover.Options{Namespace: namespace, Old: old, New: new, Lease: lease, Member: args["id"]}))
}

func TestMain(m *testing.M) {
	holders.ServeIfAsked(map[string]holders.Maker{"member": newMember})
	redistest.Main(m, redistest.Redis)
}
