// This file runs the test suites of a current redis-py and a current go-redis through a sidecar.

package sidecar

import (
	"context"
	"encoding/xml"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// files are those of the suite that speak to one server without modules or TLS. The asyncio client sends the same commands: RESP2 is enough.
var files = map[string][]string{"2": append(blocking, "test_asyncio/test_commands.py", "test_asyncio/test_pubsub.py", "test_asyncio/test_pipeline.py"), "3": blocking}

var blocking = []string{
	"test_commands.py", "test_pipeline.py", "test_pubsub.py", "test_scripting.py", "test_lock.py", "test_monitor.py", "test_connection_pool.py",
	"test_encoding.py", "test_hash.py", "test_function.py", "test_cache.py",
}

// hangs is left out: its reader sleeps for 10 ms "to give main thread chance to get lock", and then waits for the server with that lock. On a
// busy machine the main thread comes too late, and both wait for ever.
const hangs = "tests/test_pubsub.py::TestPubSubAutoReconnect"

const config = "[pytest]\nasyncio_mode = auto\nfilterwarnings = ignore\n"

// outcomes are "passed", "failed" or "skipped", by test.
type outcomes map[string]string

// String counts them.
func (o outcomes) String() string {
	count := map[string]int{}
	for _, outcome := range o {
		count[outcome]++
	}
	return fmt.Sprintf("%d tests, %d passed, %d failed (as direct), %d skipped (as direct)", len(o), count["passed"], count["failed"], count["skipped"])
}

// differ lists the tests with another outcome.
func (o outcomes) differ(other outcomes) (ids []string) {
	for id := range o {
		if o[id] != other[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// runSuite runs another project's tests and reads the report that they leave, in JUnit's form.
func runSuite(t *testing.T, command *exec.Cmd, report string, suites any) {
	t.Helper()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, _ := command.CombinedOutput() // some tests fail directly as well
	text, err := os.ReadFile(report)
	require.NoError(t, err, "%s", out)
	require.NoError(t, xml.Unmarshal(text, suites))
}

// pytest runs tests of redis-py's suite against an address.
func pytest(t *testing.T, addr, protocol string, tests []string) outcomes {
	t.Helper()
	dir := filepath.Join(holders.Root(t), "python", ".venv-suite")
	python, err := filepath.Abs(filepath.Join(dir, "bin", "python"))
	require.NoError(t, err)
	work := t.TempDir()
	ini, report := filepath.Join(work, "pytest.ini"), filepath.Join(work, "report.xml")
	require.NoError(t, os.WriteFile(ini, []byte(config), 0o600))
	args := append([]string{"-m", "pytest", "-q", "-c", ini, "--rootdir", ".", "-p", "no:cacheprovider", "--timeout", "30", "--junitxml", report, "--deselect", hangs,
		"--redis-url", "redis://" + addr + "/9", "--protocol", protocol, "-m", "not onlycluster and not redismod and not ssl"}, tests...)
	command := exec.Command(python, args...)
	command.Dir = filepath.Join(dir, "source")
	command.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	var suites struct {
		Cases []struct {
			Class   string    `xml:"classname,attr"`
			Name    string    `xml:"name,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	runSuite(t, command, report, &suites)
	all := outcomes{}
	for _, c := range suites.Cases {
		outcome := "passed"
		switch {
		case c.Failure != nil || c.Error != nil:
			outcome = "failed"
		case c.Skipped != nil:
			outcome = "skipped"
		}
		// tests.test_commands.TestX and test_y[z] are tests/test_commands.py::TestX::test_y[z]
		module, class, _ := strings.Cut(c.Class, ".Test")
		id := strings.ReplaceAll(module, ".", "/") + ".py::"
		if class != "" {
			id += "Test" + class + "::"
		}
		all[id+c.Name] = outcome
	}
	return all
}

// behind starts a server and a sidecar before it, of a namespace in database 1, and returns the sidecar's address.
func behind(t *testing.T, stage stages.Stage) string {
	t.Helper()
	s := redistest.Real(t, "--enable-debug-command", "yes")
	pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.Addr, redis.DialDatabase(1)) // the suites flush others
	}}
	t.Cleanup(func() { _ = pool.Close() })
	store := &stages.Store{Pool: pool, Namespace: "orders", ReplyTimeout: time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: "orders", Stage: stage, Patterns: []string{"lock:*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second}))
	member, err := sidecar.New(t.Context(), sidecar.Options{Pool: pool, Namespace: "orders", Name: "suite"})
	require.NoError(t, err)
	dialect, err := member.ParseDialect("")
	require.NoError(t, err)
	server := proxy.New(proxy.Options{
		Listeners: []proxy.Listener{{Address: "127.0.0.1:0", Rewriter: member.Rewriter(dialect)}}, Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", s.Addr) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = member.Run(ctx) })
	running.Go(func() { assert.NoError(t, server.Run(ctx)) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	require.NoError(t, member.Joined(t.Context()))
	require.Eventually(t, func() bool { return server.Ready() == nil }, 10*time.Second, time.Millisecond)
	return server.Addresses()[0]
}

// TestTheSameResultsAsDirect wants for each test of redis-py's suite the outcome that it has on a server without a sidecar. A test that
// differs is run again, both ways: some of them depend on time.
func TestTheSameResultsAsDirect(t *testing.T) {
	for protocol, names := range files {
		t.Run("RESP"+protocol, func(t *testing.T) {
			t.Parallel()
			var tests []string
			for _, f := range names {
				tests = append(tests, "tests/"+f)
			}
			direct, through := redistest.Real(t, "--enable-debug-command", "yes").Addr, behind(t, stages.Bridge)
			var want, got outcomes
			var running sync.WaitGroup
			running.Go(func() { want = pytest(t, direct, protocol, tests) })
			running.Go(func() { got = pytest(t, through, protocol, tests) })
			running.Wait()
			differ := func() []string { return want.differ(got) }
			require.Len(t, got, len(want))
			require.Greater(t, len(want), 700)
			for round := 0; len(differ()) > 0 && round < 2; round++ {
				again := differ()
				t.Logf("run again: %s", strings.Join(again, ", "))
				for id, outcome := range pytest(t, direct, protocol, again) {
					want[id] = outcome
				}
				for id, outcome := range pytest(t, through, protocol, again) {
					got[id] = outcome
				}
			}
			fmt.Printf("redis-py's suite, RESP%s, through a sidecar: %v\n", protocol, got)
			for _, id := range differ() {
				t.Errorf("%s: %s directly, %s through the sidecar", id, want[id], got[id])
			}
		})
	}
}
