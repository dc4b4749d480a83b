package sidecar

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

var withGoRedis = flag.Bool("go-redis", false, "run go-redis' own test suite too: a minute of processor time to build it")

const goRedis = "github.com/redis/go-redis/v9@v9.23.0"

// goRedisFiles are those of the suite that speak to one server without modules.
var goRedisFiles = []string{"commands", "redis", "tx", "pipeline", "pubsub", "iterator", "monitor", "pool"}

// ginkgo runs the suite against an address. Its own name for a server that somebody else has started is an Enterprise cluster.
func ginkgo(t *testing.T, source, program, addr string) outcomes {
	t.Helper()
	work := t.TempDir()
	config, report := filepath.Join(work, "endpoints.json"), filepath.Join(work, "report.xml")
	require.NoError(t, os.WriteFile(config, []byte(`{"db": {"endpoints": ["redis://`+addr+`"]}}`), 0o600))
	args := []string{"-test.run", "TestGinkgoSuite", "-ginkgo.no-color", "-ginkgo.succinct", "-ginkgo.seed", "1", "-ginkgo.junit-report", report,
		"-ginkgo.skip", "[Cc]luster|Ring|[Ss]entinel"}
	for _, f := range goRedisFiles {
		args = append(args, "-ginkgo.focus-file", "/"+f+"_test.go")
	}
	command := exec.Command(program, args...)
	command.Dir = source
	command.Env = append(os.Environ(), "RE_CLUSTER=true", "REDIS_ENDPOINTS_CONFIG_PATH="+config, "REDIS_VERSION=7.0")
	var suites struct {
		Cases []struct {
			Name   string `xml:"name,attr"`
			Status string `xml:"status,attr"`
		} `xml:"testsuite>testcase"`
	}
	runSuite(t, command, report, &suites)
	all := outcomes{}
	for _, c := range suites.Cases {
		if c.Status != "skipped" { // those of the other files are among them
			id := c.Name
			for n := 2; all[id] != ""; n++ { // a name may stand for several
				id = fmt.Sprintf("%s (%d)", c.Name, n)
			}
			all[id] = c.Status
		}
	}
	return all
}

// TestGoRedis wants for each test of go-redis' suite the outcome that it has on a server without a sidecar. It asks for -go-redis.
func TestGoRedis(t *testing.T) {
	if !*withGoRedis {
		t.Skip("left out: it downloads go-redis and runs its whole suite twice; -go-redis asks for it")
	}
	out, err := exec.Command("go", "mod", "download", "-json", goRedis).Output()
	require.NoError(t, err, "%s", out)
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &module))
	source, program := filepath.Join(t.TempDir(), "source"), filepath.Join(t.TempDir(), "suite")
	require.NoError(t, os.CopyFS(source, os.DirFS(module.Dir)))
	build := exec.Command("go", "test", "-c", "-o", program, ".")
	build.Dir = source
	out, err = build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	direct, through := redistest.Real(t, "--enable-debug-command", "yes").Addr, behind(t, stages.Bridge)
	var want, got outcomes
	var running sync.WaitGroup
	running.Go(func() { want = ginkgo(t, source, program, direct) })
	running.Go(func() { got = ginkgo(t, source, program, through) })
	running.Wait()
	require.Greater(t, len(want), 300)
	for round := 0; len(want.differ(got)) > 0 && round < 2; round++ { // some depend on time
		t.Logf("run again: %s", strings.Join(want.differ(got), ", "))
		want, got = ginkgo(t, source, program, direct), ginkgo(t, source, program, through)
	}
	fmt.Printf("go-redis' suite through a sidecar: %v\n", got)
	assert.Len(t, got, len(want))
	for _, id := range want.differ(got) {
		t.Errorf("%s: %s directly, %s through the sidecar", id, want[id], got[id])
	}
}
