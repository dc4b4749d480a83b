package builds

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

var update = flag.Bool("update", false, "write the scripts of earlier builds down")

const (
	key   = "lock.orders"
	lease = 3 * time.Second
	hold  = 10 * time.Millisecond // less costs processor time and shows no more
)

func (b build) initiates(t *testing.T, server *redistest.Server, more ...string) {
	t.Helper()
	b.does(t, server, append([]string{"stage", "init", "--namespace", "orders", "--match", key, "--dialect", "jedis-ms", "--shortest-lease", lease.String(), "--execute"}, more...)...)
}

// moves takes the namespace one stage on or back, and returns when every member runs it.
func (b build) moves(t *testing.T, server *redistest.Server, direction, to string, more ...string) {
	t.Helper()
	b.does(t, server, append([]string{"stage", direction, "--namespace", "orders", "--to", to, "--wait", "--execute"}, more...)...)
}

func (b build) joins(t *testing.T, server *redistest.Server, kind string) *holders.Holder {
	return holders.StartProgram(t, b.member(), kind, server.URL(), holders.Arg("lease", lease), holders.Arg("book", server.Addr))
}

// sidecar starts a sidecar of this build, and returns an old client behind it.
func (b build) sidecar(t *testing.T, server *redistest.Server, service build, name string) *holders.Holder {
	t.Helper()
	p := holders.StartSidecar(t, func(address string) *exec.Cmd {
		return exec.Command(b.lockmigrate(), "sidecar", "--redis", server.URL(), "--namespace", "orders", "--name", name, "--listen", address)
	})
	return holders.StartProgram(t, service.member(), "client", p.URL(), holders.Arg("lease", lease), holders.Arg("book", server.Addr))
}

// agree waits until the tools of both builds see the same members, all at one stage.
func agree(t *testing.T, server *redistest.Server, stage string, members int, tools ...build) {
	t.Helper()
	for _, tool := range tools {
		said := ""
		redistest.Await(t, fmt.Sprintf("%d members at stage %s, as %s sees them", members, stage, tool.name), func() bool {
			var told struct {
				Stage   string
				Members []struct{ Stage, Misfit string }
			}
			said = tool.does(t, server, "stage", "--namespace", "orders", "--json")
			require.NoError(t, json.Unmarshal([]byte(said), &told))
			other := 0
			for _, m := range told.Members {
				require.Empty(t, m.Misfit, tool.name)
				if m.Stage != stage {
					other++
				}
			}
			return told.Stage == stage && len(told.Members) == members && other == 0
		})
	}
}

// late are the errors of a machine that is busy, and of old clients among themselves: those that both find an expired value clobber each
// other, and the loser of a takeover is told.
const late = "lock lost|outcome unknown|no reply within"

// judged fails the test where two were inside at once, or one did not understand what another had written.
func judged(t *testing.T, c *holders.Crew, began time.Time) {
	t.Helper()
	report := c.Found()
	t.Logf("%v in %v", report, time.Since(began).Round(time.Millisecond))
	assert.Zero(t, report.Overlaps, redistest.Violated)
	for _, e := range report.Errors {
		assert.Regexp(t, late, e.Message, e.Op)
	}
}

// refuses tells that a build does not take a certificate, and says what is missing. What a certificate has to show has changed since the baseline:
// all writes are accounted for.
func refuses(t *testing.T, b build, server *redistest.Server, certificate string) {
	t.Helper()
	code, out, stderr := b.run(t, server, "stage", "advance", "--namespace", "orders", "--to", "modern", "--certificate", certificate)
	require.Equal(t, 3, code, "%s%s", out, stderr)
	require.Regexp(t, `obligation "\w+" is not discharged`, out+stderr)
}

// certifies has a build look for old clients for a while.
func (b build) certifies(t *testing.T, server *redistest.Server) (file string) {
	t.Helper()
	longest := "--longest-silence"
	if b.name == name(baseline) {
		longest = "--longest"
	}
	file = filepath.Join(t.TempDir(), b.name+".json")
	for range 3 {
		code, out, stderr := b.run(t, server, "verify", "--namespace", "orders", "--for", "3500ms", longest, lease.String(), "--monitor", "--out", file)
		if code == 0 {
			return file
		}
		require.Equal(t, 4, code, "%s: %s%s", b.name, out, stderr)
		t.Log(out) // inconclusive: the machine did not let it look
	}
	t.Fatal("no verdict in three windows")
	return ""
}

// TestFleets: services of two builds and an old client take turns on one key, while the tools of both move the stage there and back. Both
// read the certificate of this build.
func TestFleets(t *testing.T) {
	beside(t, func(t *testing.T, a, b build) {
		began := time.Now()
		server := redistest.Real(t)
		a.initiates(t, server)
		c := &holders.Crew{T: t, Key: key, Record: server, Hold: hold}
		var services []*holders.Holder
		for _, of := range []build{a, b} {
			services = append(services, c.Enlist(of.joins(t, server, "member")))
		}
		old := c.Enlist(b.joins(t, server, "client"))
		c.More(5)
		agree(t, server, "legacy", 2, a, b)
		b.moves(t, server, "advance", "bridge")
		agree(t, server, "bridge", 2, a, b)
		c.Progress(1, append(services, old)...)
		c.Stop(old)
		certificate := thisBuild(t).certifies(t, server) // an earlier build does not know the scripts of a later one
		by := b
		if b.name == name(baseline) {
			refuses(t, b, server, certificate)
			by = a
		}
		by.moves(t, server, "advance", "modern", "--certificate", certificate)
		agree(t, server, "modern", 2, a, b)
		c.Progress(5, services...)
		a.moves(t, server, "rollback", "bridge")
		old = c.Enlist(a.joins(t, server, "client"))
		c.Progress(1, append(services, old)...)
		b.moves(t, server, "rollback", "legacy")
		c.More(5)
		c.Stop(append(services, old)...)
		judged(t, c, began)
	})
}

// TestEarlierCertificate: this build judges the evidence that an earlier one gathered. Where the earlier one did not look at what none-seen
// needs today, that is said.
func TestEarlierCertificate(t *testing.T) {
	beside(t, func(t *testing.T, a, b build) {
		if b.name != "now" {
			return
		}
		server := redistest.Real(t)
		a.initiates(t, server, "--stage", "bridge")
		a.joins(t, server, "member").Send("turns %s %s:referee 1000000 25", key, key)
		certificate := a.certifies(t, server)
		if a.name == name(baseline) {
			refuses(t, b, server, certificate)
			return
		}
		b.does(t, server, "stage", "advance", "--namespace", "orders", "--to", "modern", "--certificate", certificate)
	})
}

// TestEarlierScripts: verify knows the scripts of every earlier build, so that it takes no member of one for a legacy client. With -update
// it writes them down.
func TestEarlierScripts(t *testing.T) {
	var mu sync.Mutex
	var known []string
	beside(t, func(t *testing.T, a, b build) {
		if b.name != "now" {
			return
		}
		out, err := exec.Command(a.member(), "scripts").Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(out)) {
			sum, script, _ := strings.Cut(strings.TrimSpace(line), " ")
			if scripts.NameOf(sum) != "" {
				continue
			}
			mu.Lock()
			known = append(known, sum+" "+script+"\n")
			mu.Unlock()
			if !*update {
				require.Equal(t, script, scripts.Earlier(sum), "run this test with -update")
			}
		}
		require.Empty(t, scripts.Earlier(strings.Repeat("0", 40)))
	})
	t.Cleanup(func() {
		if *update {
			slices.Sort(known)
			require.NoError(t, os.WriteFile("../../../scripts/earlier.txt", []byte(strings.Join(slices.Compact(known), "")), 0o644))
		}
	})
}

// TestSidecars: old clients behind the sidecars of two builds, beside services of both, through a move of the stage.
func TestSidecars(t *testing.T) {
	beside(t, func(t *testing.T, a, b build) {
		began := time.Now()
		server := redistest.Real(t)
		a.initiates(t, server, "--stage", "bridge")
		from, direction, to, force := "bridge", "advance", "modern", "--force=no other client"
		if b.name == "now" { // the sidecars of one pair go forward, those of the other pair back
			a.moves(t, server, direction, to, force)
			from, direction, to, force = to, "rollback", from, "--epoch=2"
		}
		c := &holders.Crew{T: t, Key: key, Record: server, Hold: hold}
		all := []*holders.Holder{c.Enlist(a.joins(t, server, "member")), c.Enlist(b.joins(t, server, "member")),
			c.Enlist(a.sidecar(t, server, b, "billing")), c.Enlist(b.sidecar(t, server, b, "stock"))}
		c.Progress(3, all...)
		agree(t, server, from, 4, a, b)
		b.moves(t, server, direction, to, force)
		agree(t, server, to, 4, a, b)
		c.Progress(3, all...)
		c.Stop(all...)
		judged(t, c, began)
	})
}

// TestQueue: those who wait for a key get it in the order of their coming, whichever build they are of, from the hand of the one before
// them.
func TestQueue(t *testing.T) {
	beside(t, func(t *testing.T, a, b build) {
		server := redistest.Real(t)
		a.initiates(t, server, "--stage", "bridge")
		for _, kind := range []string{"member", "modern"} {
			lock := map[string]string{"member": key, "modern": "token.orders"}[kind]
			all := []*holders.Holder{}
			for i := range 5 {
				h := []build{a, b}[i%2].joins(t, server, kind)
				h.Send("acquire %s", lock)
				if i == 0 {
					require.Equal(t, "acquired", h.Next(time.Minute).Event)
				} else {
					redistest.Await(t, "a place in the queue", func() bool {
						n, _ := redis.Int(server.Do("ZCARD", fmt.Sprintf("{%s}:queue", lock)), nil)
						return n == i
					})
				}
				all = append(all, h)
			}
			for i, h := range all {
				require.Equal(t, "released", h.Do("release %s", lock).Event)
				for _, later := range all[min(i+2, len(all)):] {
					select {
					case e := <-later.Events():
						t.Fatalf("%v has overtaken: %v", later, e)
					default:
					}
				}
				if i+1 < len(all) {
					require.Equal(t, "acquired", all[i+1].Next(time.Minute).Event)
				}
			}
		}
	})
}

// TestProfiles: a profile that an earlier build measured is read; one of another format is refused by its number, and never misread.
func TestProfiles(t *testing.T) {
	beside(t, func(t *testing.T, a, b build) {
		server := redistest.Real(t)
		a.joins(t, server, "client").Send("turns %s %s:referee 1000000 2", key, key)
		profile := filepath.Join(t.TempDir(), "profile.json")
		a.does(t, server, "observe", "--match", key, "--for", "1500ms", "--profile", profile)
		code, out, stderr := b.run(t, server, "stage", "init", "--namespace", "orders", "--profile", profile, "--shortest-lease", lease.String())
		if code != 0 {
			// The format was another before the promise began, and a later one is refused by its number.
			require.True(t, a.name == name(baseline) || b.name != "now", "%s%s", out, stderr)
			require.Regexp(t, `profile: version \d+, this program reads version \d+`, stderr)
			return
		}
		require.Contains(t, out, "jedis-ms")
		code, out, stderr = b.run(t, server, "forecast", "--profile", profile, "--json")
		require.Contains(t, []int{0, 4}, code, "%s%s", out, stderr) // 4: two seconds do not tell all
	})
}

// TestNewerProtocol: where the record is of a protocol that this build does not know, its tools change nothing (TestANewerProtocol in
// internal/stages has all that they do), and its sidecar and the Python library acquire nothing; each names the build to use.
func TestNewerProtocol(t *testing.T) {
	t.Parallel()
	b := thisBuild(t)
	server := redistest.Real(t)
	b.initiates(t, server, "--stage", "bridge")
	service := b.sidecar(t, server, b, "billing")
	require.Equal(t, "acquired", service.Do("acquire %s", key).Event)
	require.Equal(t, "released", service.Do("release %s", key).Event)
	record := "lockmigrate:{orders}:stage"
	server.Do("HSET", record, "protocol", "2 lockmigrate v0.7.0")
	contents := func() string { all, _ := redis.StringMap(server.Do("HGETALL", record), nil); return fmt.Sprint(all) }
	before := contents()
	code, out, stderr := b.run(t, server, "stage", "advance", "--namespace", "orders", "--to", "modern", "--force", "why", "--execute")
	assert.Equal(t, 1, code, "%s%s", out, stderr)
	assert.Contains(t, stderr, "use lockmigrate v0.7.0")
	redistest.Await(t, "a sidecar that grants nothing", func() bool {
		granted := service.Do("try %s", key).Event == "acquired"
		if granted {
			service.Do("release %s", key)
		}
		return !granted
	})
	assert.Empty(t, server.Value(key))
	if redistest.Wanted(redistest.Python) {
		python := exec.Command(filepath.Join(holders.Root(t), "python/.venv-suite/bin/python"), "-B", "-c", `
import sys
sys.path.insert(0, sys.argv[1])
import lockmigrate, redis
locker = lockmigrate.Locker(redis.Redis.from_url(sys.argv[2], socket_timeout=5), "orders")
try:
    locker.ready(timeout=30)
except lockmigrate.StageError as refused:
    print("refused:", refused)
`, filepath.Join(holders.Root(t), "../../clients/python/src"), server.URL())
		out, err := python.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Regexp(t, "refused: .*use lockmigrate v0.7.0", string(out))
	}
	assert.Equal(t, before, contents())
}
