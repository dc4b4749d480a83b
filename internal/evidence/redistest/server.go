package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// Server is a server of one test.
type Server struct {
	Addr     string
	Password string               // what its clients authenticate with; empty for none
	Mini     *miniredis.Miniredis // the embedded server; nil for a real one

	t        testing.TB
	shape    Shape
	program  string // what runs
	args     []string
	dir      string
	sentinel string // its configuration, for a sentinel
	bus      string // the port of the cluster bus
	mu       sync.Mutex
	cmd      *exec.Cmd
	log      Output
	runs     atomic.Int64  // of the embedded server
	virtual  *world.Server // set: the server of a world, in the bubble of its test
}

// Output is what a process prints. It may be read while the process writes.
type Output struct {
	mu   sync.Mutex
	text []byte
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

// String is what is of use of it: all, or its first and its last 8 KiB. A Go program begins with why it ends, others close with it.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	const kept = 8 << 10
	if over := len(o.text) - 2*kept; over > 0 {
		return fmt.Sprintf("%s\n... %d bytes ...\n%s", o.text[:kept], over, o.text[kept+over:])
	}
	return string(o.text)
}

// Reset forgets it.
func (o *Output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = nil
}

// Mini starts an embedded server. It is not evidence about Redis: its TTLs move only by FastForward,
// and it knows neither MONITOR nor client tracking.
func Mini(t testing.TB) *Server {
	t.Helper()
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatalf("start the embedded server: %v", err)
	}
	t.Cleanup(m.Close)
	s := &Server{Addr: m.Addr(), Mini: m, t: t}
	m.Server().SetPreHook(func(c *server.Peer, name string, args ...string) bool {
		asks := name == "INFO" && len(args) == 1 && strings.EqualFold(args[0], "server")
		if asks { // miniredis does not know this section
			c.WriteBulk(fmt.Sprint("run_id:run", s.runs.Load()))
		}
		return asks
	})
	return s
}

// Replaced makes the embedded server another process, as after a restart or a failover. Its keys stay.
func (s *Server) Replaced() {
	s.runs.Add(1)
	if s.virtual != nil {
		s.virtual.Replaced()
	}
}

// Real starts a redis-server on a free port of the loopback, without persistence unless args say
// otherwise, and ends it with the test. Args are as on its command line: "--maxmemory", "10mb".
func Real(t testing.TB, args ...string) *Server {
	t.Helper()
	return Of(t, "", args...)
}

// Of is Real of another version, see Shape.
func Of(t testing.TB, name string, args ...string) *Server {
	t.Helper()
	return Shape{Version: name}.Start(t, args...)
}

// Shape is what a server is beside its arguments. The zero value is Real's.
type Shape struct {
	Addr    string        // where it listens: 127.0.0.2:7000, [::1]:7000; empty: at a free port of the loopback
	Version string        // one of those that scripts/servers --list names, from the folder that LOCKMIGRATE_SERVERS names; empty: the one on the PATH
	Wrapper []string      // another program, which must replace itself with the one that it is given: "sh", "-c", `ulimit ...; exec "$@"`, "sh"
	Env     []string      // additional variables in its environment
	TLS     *Certificates // it takes nothing but TLS, and only clients with a certificate
}

// Start starts such a server, and ends it with the test.
func (shape Shape) Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := shape.server(t, args...)
	s.Start()
	return s
}

// server prepares one that is not started yet.
func (shape Shape) server(t testing.TB, args ...string) *Server {
	t.Helper()
	Need(t, Redis)
	if shape.TLS != nil {
		args = append(shape.TLS.args(), args...)
	}
	s := &Server{Addr: shape.Addr, t: t, shape: shape, program: "redis-server", args: args}
	if s.Addr == "" {
		s.Addr = FreeAddr(t)
	}
	if at := slices.Index(args, "--requirepass") + 1; at > 0 {
		s.Password = args[at]
	}
	if shape.Version != "" {
		Need(t, Servers)
		s.program = filepath.Join(serversDir(), shape.Version, "bin", s.program)
		if _, err := os.Stat(s.program); err != nil {
			t.Fatalf("%s (component %s of LOCKMIGRATE_SUITES): %v; scripts/servers builds it", shape.Version, Servers, err)
		}
	}
	var err error
	if s.dir, err = os.MkdirTemp("/dev/shm", "redis-server"); err != nil { // in memory: on a disk, whoever builds beside it holds each fsync up, for seconds
		s.dir = t.TempDir()
	}
	t.Cleanup(func() {
		s.endless()
		s.Kill()
		_ = os.RemoveAll(s.dir)
	})
	return s
}

// Names are the servers that scripts/servers builds, oldest first.
func Names() []string {
	return []string{
		"redis-2.8.19", "redis-3.2.6", "redis-5.0.6", "redis-6.0.16", "redis-6.2.11", "redis-8.10.2", "valkey-8.1.8", "valkey-9.0.0",
	}
}

// serversDir is where scripts/servers puts what it builds.
func serversDir() string {
	if dir := os.Getenv("LOCKMIGRATE_SERVERS"); dir != "" {
		return dir
	}
	cache, _ := os.UserCacheDir()
	return filepath.Join(cache, "lockmigrate", "servers")
}

// PID returns the server's process id, 0 when it is down.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Handmade says that the tests of this process write keys beside a lock's by hand.
var Handmade bool

// endless wants no key beside a lock's without a TTL at the end of a test: nobody would ever remove it.
func (s *Server) endless() {
	if Handmade || s.PID() == 0 || s.sentinel != "" {
		return
	}
	found, err := redis.Strings(s.Try("EVAL", `local all = {}
		for _, name in ipairs({'guard', 'queue', 'fence', 'yield', 'share', 'sidecar'}) do
			for _, key in ipairs(redis.call('KEYS', '*}:' .. name)) do
				if redis.call('PTTL', key) == -1 then all[#all + 1] = key end
			end
		end
		return all`, 0))
	if err == nil && len(found) > 0 { // else a test has taken it out of reach
		s.t.Errorf("keys beside a lock's without a TTL: %q", found)
	}
}

// Virtual runs a test in virtual time, on a server of a world. What a test of time that passes needs of a server, this one has: Kill,
// Start, Freeze and Replaced work as those of a real one. It has no address: connections come from Pool and Conn. Within, there is
// neither t.Run nor t.Parallel.
func Virtual(t *testing.T, test func(t *testing.T, s *Server)) {
	t.Helper()
	world.Run(t, 1, func(w *world.World) { test(w.T, &Server{Addr: "a world's", t: w.T, virtual: w.Server()}) })
}

// Route returns a new way to the server of a world, for a process to which something is to happen.
func (s *Server) Route(process string) *world.Route { return s.virtual.Route(process) }

// EachTCP is Each for a test that needs the server's address: the embedded server then has real time.
func EachTCP(t *testing.T, test func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { test(t, Mini(t)) })
	t.Run("real", func(t *testing.T) { test(t, Real(t)) })
}

// Each runs a test in virtual time and, where the run asks for it, on a real server.
func Each(t *testing.T, test func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run("virtual", func(t *testing.T) { Virtual(t, test) })
	t.Run("real", func(t *testing.T) { test(t, Real(t)) })
}

// EachVersion runs a test on the server on the PATH and, where the run asks for servers of other versions, on these.
func EachVersion(t *testing.T, names []string, test func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run("redis-server", func(t *testing.T) { test(t, Real(t)) })
	if Wanted(Servers) {
		for _, name := range names {
			t.Run(name, func(t *testing.T) { test(t, Of(t, name)) })
		}
	}
}

// Start starts a real server that is down, on the same address and folder, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	if s.virtual != nil {
		s.virtual.Start()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	host, port, _ := net.SplitHostPort(s.Addr)
	if s.sentinel != "" {
		s.startSentinel(port)
		return
	}
	listen := []string{"--port", port}
	if s.shape.TLS != nil {
		listen = []string{"--port", "0", "--tls-port", port}
	}
	args := append(listen, "--bind", host, "--dir", s.dir, "--save", "", "--appendonly", "no")
	s.launch(append(args, s.args...)...)
	s.await()
}

// launch runs redis-server. The caller holds mu.
func (s *Server) launch(args ...string) {
	s.t.Helper()
	s.log.Reset()
	line := slices.Concat(s.shape.Wrapper, []string{s.program}, args)
	s.cmd = exec.Command(line[0], line[1:]...)
	s.cmd.Env = append(os.Environ(), s.shape.Env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	// The server must not outlive a test binary that was killed.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("start redis-server (named in LOCKMIGRATE_SUITES): %v", err)
	}
}

// await asks until the server answers. The caller holds mu.
func (s *Server) await() {
	s.t.Helper()
	err := errors.New("not asked yet")
	defer func() {
		if err != nil {
			s.t.Logf("%v\n%s", err, s.log.String())
		}
	}()
	Await(s.t, "redis-server on "+s.Addr, func() bool { err = s.ping(); return err == nil })
}

// Kill ends the server at once, as kill -9 does.
func (s *Server) Kill() {
	if s.virtual != nil {
		s.virtual.Kill()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_, _ = s.cmd.Process.Kill(), s.cmd.Wait()
	s.cmd = nil
}

// Signal sends a signal to a real server: SIGSTOP and SIGCONT freeze and thaw it.
func (s *Server) Signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(sig)
	}
}

func (s *Server) ping() error {
	_, err := s.Try("PING")
	if refused := redis.Error(""); errors.As(err, &refused) && strings.Contains(string(refused), "unknown command") {
		return nil // renamed away by the test
	}
	return err
}

// URL names the server as lockmigrate's --redis does.
func (s *Server) URL() string {
	scheme := "redis"
	if s.shape.TLS != nil {
		scheme = "rediss"
	}
	if s.Password != "" {
		return fmt.Sprintf("%s://:%s@%s/0", scheme, s.Password, s.Addr)
	}
	return fmt.Sprintf("%s://%s/0", scheme, s.Addr)
}

// Pool returns a pool of connections, closed with the test.
func (s *Server) Pool() *redis.Pool {
	pool := &redis.Pool{MaxIdle: 16, DialContext: s.Dial}
	s.t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// Untracked returns a pool of a user without the right to client tracking. Neither miniredis nor a world has tracking anyway.
func (s *Server) Untracked() *redis.Pool {
	if s.Mini != nil || s.virtual != nil {
		return s.Pool()
	}
	s.Grant("untracked", "~*", "&*", "+@all", "-client|tracking")
	return s.As("untracked")
}

// InStage makes a namespace of all keys for old clients of a dialect (empty: jedis-ms), and returns its name. It is named after
// the stage that it is in. It writes the record itself: `stage init` compares the namespace with every other one.
func InStage(pool *redis.Pool, stage lockmigrate.Stage, dialect string, shortest time.Duration) (name string, err error) {
	if dialect == "" {
		dialect = "jedis-ms"
	}
	conn := pool.Get()
	defer conn.Close()
	_, err = conn.Do("HMSET", "lockmigrate:{"+stage.String()+"}:stage", "epoch", 1, "stage", int(stage), "since", time.Now().UnixMilli(),
		"patterns", `["*"]`, "clients", fmt.Sprintf(`{"dialect":%q,"shortest_ms":%d}`, dialect, shortest.Milliseconds()))
	return stage.String(), err
}

// Conn returns a connection of the test's own, closed with the test.
func (s *Server) Conn() redis.Conn {
	s.t.Helper()
	conn, err := s.Dial(context.Background())
	if err != nil {
		s.t.Fatalf("connect to %s: %v", s.Addr, err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Do runs one command on a fresh connection and fails the test on an error.
func (s *Server) Do(name string, args ...any) any {
	s.t.Helper()
	reply, err := s.ask(time.Hour, name, args...)
	if err != nil {
		s.t.Fatalf("%s %v: %v", name, args, err)
	}
	return reply
}

// Value returns a key's text, empty for an absent one.
func (s *Server) Value(key string) string {
	s.t.Helper()
	return text(s.Do("GET", key))
}

// Wire makes a connection as bytes.
func (s *Server) Wire(ctx context.Context) (net.Conn, error) {
	if s.virtual != nil {
		return s.virtual.Wire(ctx)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
}

// Idle leaves nine idle connections in a pool; those that it had come last.
func Idle(t testing.TB, pool *redis.Pool) {
	var conns [9]redis.Conn
	for i := range conns {
		conns[i] = pool.Get()
		if err := conns[i].Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
}

// Dialer makes connections to an address.
func Dialer(addr string) func(ctx context.Context) (redis.Conn, error) {
	return func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr) }
}

// Dial makes a connection.
func (s *Server) Dial(ctx context.Context) (redis.Conn, error) {
	if s.virtual != nil {
		return s.virtual.Dial(ctx)
	}
	options := []redis.DialOption{redis.DialContextFunc(rawconn.DialContext), redis.DialPassword(s.Password)}
	if s.shape.TLS != nil {
		options = append(options, redis.DialUseTLS(true), redis.DialTLSConfig(s.shape.TLS.Client))
	}
	return redis.DialContext(ctx, "tcp", s.Addr, options...)
}
