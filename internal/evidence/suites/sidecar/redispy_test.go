// This file runs the test suite of a current redis-py, and Jedis' operations, through a sidecar.

package sidecar

import (
	"context"
	"encoding/xml"
	"fmt"
	"maps"
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
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// parts are run beside each other, each on servers of its own. Their files are those of the suite that speak to one server without modules
// or TLS. The asyncio client sends the same commands, so each file has RESP2 from one of the two clients.
var parts = []struct {
	name, protocol, folder string
	files                  []string
	least                  int // tests that are collected
}{
	{"RESP3", "3", "", append(slices.Clone(commands), rest...), 700},
	{"RESP2", "2", "", rest, 200}, {"RESP2, asyncio", "2", "test_asyncio", commands, 700},
}

var (
	commands = []string{"test_commands.py", "test_pipeline.py", "test_pubsub.py"}
	rest     = []string{
		"test_scripting.py", "test_lock.py", "test_monitor.py", "test_connection_pool.py", "test_encoding.py", "test_hash.py", "test_function.py", "test_cache.py",
	}
)

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

// pytest runs tests of redis-py's suite against an address.
func pytest(t *testing.T, addr, protocol string, tests []string) outcomes {
	t.Helper()
	dir := filepath.Join(holders.Root(t), "python", ".venv-suite")
	python, err := filepath.Abs(filepath.Join(dir, "bin", "python"))
	require.NoError(t, err)
	work := t.TempDir()
	ini, report := filepath.Join(work, "pytest.ini"), filepath.Join(work, "report.xml")
	require.NoError(t, os.WriteFile(ini, []byte(config), 0o600))
	args := append([]string{"-m", "pytest", "-q", "-c", ini, "--rootdir", ".", "-p", "no:cacheprovider", "--tb", "no", "--assert", "plain", "--timeout", "30", "--junitxml", report, "--deselect", hangs,
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
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, _ := command.CombinedOutput() // some tests fail directly as well
	text, err := os.ReadFile(report)
	require.NoError(t, err, "%s", out)
	require.NoError(t, xml.Unmarshal(text, &suites))
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
	store := &stages.Store{Pool: pool, Namespace: "orders", ReplyTimeout: 5 * time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: "orders", Stage: stage, Patterns: []string{"lock:*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second}))
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	member, err := fleet.StartSidecar(t.Context(), sidecar.Options{Pool: pool, Namespace: "orders", Name: "suite"}, end, "", sidecar.Listener{})
	require.NoError(t, err)
	t.Cleanup(member.Close)
	return member.Addr
}

// bothWays runs a suite at two addresses, at the same time.
func bothWays(direct, through string, suite func(addr string) outcomes) (want, got outcomes) {
	var running sync.WaitGroup
	running.Go(func() { want = suite(direct) })
	running.Go(func() { got = suite(through) })
	running.Wait()
	return want, got
}

// TestTheSameResultsAsDirect wants for each test of redis-py's suite the outcome that it has on a server without a sidecar. A test that
// differs is run again, both ways: some of them depend on time.
func TestTheSameResultsAsDirect(t *testing.T) {
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			var tests []string
			for _, f := range part.files {
				tests = append(tests, filepath.Join("tests", part.folder, f))
			}
			direct, through := redistest.Real(t, "--enable-debug-command", "yes").Addr, behind(t, stages.Bridge)
			want, got := bothWays(direct, through, func(addr string) outcomes { return pytest(t, addr, part.protocol, tests) })
			differ := func() []string { return want.differ(got) }
			require.Len(t, got, len(want))
			require.Greater(t, len(want), part.least)
			for round := 0; len(differ()) > 0 && round < 2; round++ {
				again := differ()
				t.Logf("run again: %s", strings.Join(again, ", "))
				maps.Copy(want, pytest(t, direct, part.protocol, again))
				maps.Copy(got, pytest(t, through, part.protocol, again))
			}
			fmt.Printf("redis-py's suite, %s, through a sidecar: %v\n", part.name, got)
			for _, id := range differ() {
				t.Errorf("%s: %s directly, %s through the sidecar", id, want[id], got[id])
			}
		})
	}
}

// TestJedis wants the same text of Jedis' operations directly and through a sidecar: of an old Jedis and of the newest one. Other keys
// than the namespace's are the same at each stage, and at stage legacy the namespace's too. LEFT_OUT
// and VARIES in Operations.java name the methods that are not called, and the replies of which only the kind is compared.
func TestJedis(t *testing.T) {
	for version, test := range map[string]struct {
		jars     []string
		protocol string
		stages   []stages.Stage
		replies  int // at least, that are no errors
	}{
		"2.9.0": {[]string{"operations/target/lib/*"}, "2", []stages.Stage{stages.Bridge, stages.Modern}, 900},
		"8.0.2": {[]string{"operations/target/lib/holders-operations-1.jar", "current/target/lib/*"}, "3", []stages.Stage{stages.Modern}, 1600},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			var jars []string
			for _, jar := range test.jars {
				jars = append(jars, filepath.Join(holders.Root(t), "java", jar))
			}
			out := t.TempDir()
			args := []string{"-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", strings.Join(jars, ":"), "lockmigrate.holders.operations.Operations"}
			run := func(name, addr, protocol, prefix string, database int) {
				args = append(args, fmt.Sprintf("%s,%s,%s,%s,%d", addr, protocol, prefix, filepath.Join(out, name), database))
			}
			run("direct", redistest.Real(t).Addr, test.protocol, "k:", 2)
			for _, stage := range test.stages {
				run(stage.String(), behind(t, stage), test.protocol, "k:", 2)
			}
			run("direct locks", redistest.Real(t).Addr, "2", "lock:", 0)
			run("locks", behind(t, stages.Legacy), "2", "lock:", 0)
			command := exec.Command("java", args...)
			command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			text, err := command.CombinedOutput()
			require.NoError(t, err, "%s", text)

			lines := func(name string) []string {
				text, err := os.ReadFile(filepath.Join(out, name))
				require.NoError(t, err)
				return strings.Split(strings.TrimSpace(string(text)), "\n")
			}
			direct := lines("direct")
			replies := len(direct) - strings.Count(strings.Join(direct, "\n"), "Exception: ")
			fmt.Printf("Jedis %s through a sidecar: %d operations, %d of them answered without an error\n", version, len(direct), replies)
			assert.Greater(t, replies, test.replies)
			same := func(want, got []string) {
				require.Len(t, got, len(want))
				for i := range want {
					if want[i] != got[i] {
						t.Errorf("directly:            %.500s\nthrough the sidecar: %.500s", want[i], got[i])
					}
				}
			}
			for _, stage := range test.stages {
				same(direct, lines(stage.String()))
			}
			same(lines("direct locks"), lines("locks"))
		})
	}
}
