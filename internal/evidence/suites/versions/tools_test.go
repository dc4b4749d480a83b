package versions

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// command runs the operator's command.
func command(t *testing.T, server *redistest.Server, args ...string) (code int, out, stderr string) {
	t.Helper()
	return server.Command(t.Context(), redistest.Built(t, redistest.Operators), args...)
}

// What the exit codes mean.
const (
	done         = 0
	failed       = 1
	unsafe       = 3
	inconclusive = 4
)

// jedis writes one value of the old scheme that expires in d.
func jedis(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }

// trials try the rows of the table that are no kinds of lock: TestLocks and TestWaiting have those. Each fails the test where
// the feature does not go as far as the cell says, or goes further.
var trials = map[string]func(t *testing.T, on site, cell servers.Cell){
	servers.Namespace: func(t *testing.T, on site, cell servers.Cell) {
		server := on.start(t)
		code, out, stderr := command(t, server, append(initStage, "--execute")...)
		if cell.How.Usable() {
			assert.Equal(t, done, code, "%s%s", out, stderr)
			return
		}
		assert.Equal(t, failed, code, "%s%s", out, stderr)
		refusedWell(t, server, stderr)
		code, _, stderr = command(t, server, initStage...)
		assert.Equal(t, failed, code, "a plan that cannot be executed: %s", stderr)
		refusedWell(t, server, stderr)
		locker, err := memberOf(server)
		require.NoError(t, err)
		defer locker.Close()
		bounded := redistest.Bounded(t, 30*time.Second)
		err = locker.Ready(bounded)
		require.Error(t, err)
		require.NoError(t, bounded.Err(), "Ready waits for what will never come")
		refusedWell(t, server, err.Error())
		_, err = locker.Acquire(bounded, key)
		require.Error(t, err)
		require.NoError(t, bounded.Err(), "Acquire waits for what will never come")
		refusedWell(t, server, err.Error())
	},
	servers.Doctor: func(t *testing.T, on site, _ servers.Cell) {
		server := on.start(t)
		code, out, stderr := command(t, server, "doctor", "--json")
		var found struct {
			Verdict string
		}
		require.NoError(t, json.Unmarshal([]byte(out), &found), stderr)
		want := "fit"
		if !on.cell(t, servers.Bridge).How.Usable() {
			want = "unfit"
		}
		assert.Equal(t, want, found.Verdict, out)
		assert.Equal(t, map[string]int{"fit": done, "unfit": unsafe}[want], code)
		_, out, _ = command(t, server, "doctor", "--all")
		assert.Contains(t, out, serverOf(server).String())
	},
	servers.Scan: func(t *testing.T, on site, _ servers.Cell) {
		server := on.start(t)
		server.Do("SET", "lock.live", jedis(time.Minute))
		server.Do("SET", "lock.token", "5123456789012345678", "PX", 60_000)
		code, out, stderr := command(t, server, "scan", "--all")
		assert.Equal(t, done, code, stderr)
		assert.Contains(t, out, "lock.live")
		assert.Contains(t, out, "lock.token")
	},
	servers.Sweep: func(t *testing.T, on site, _ servers.Cell) {
		server := on.start(t)
		server.Do("SET", "lock.ghost", jedis(-time.Hour))
		server.Do("SET", "lock.live", jedis(time.Hour))
		code, out, stderr := command(t, server, "sweep", "--match", "lock.*", "--execute", "--journal", filepath.Join(t.TempDir(), "journal"))
		assert.Equal(t, done, code, "%s%s", out, stderr)
		assert.EqualValues(t, 0, server.Do("EXISTS", "lock.ghost"), out)
		assert.EqualValues(t, 1, server.Do("EXISTS", "lock.live"))
	},
	servers.Observe: func(t *testing.T, on site, _ servers.Cell) {
		server := on.start(t)
		stop := workers(t, server, "worker-a", "worker-b")
		code, out, stderr := command(t, server, "observe", "--for", "1500ms", "--group", "name", "--json")
		stop()
		assert.NotEqual(t, failed, code, stderr)
		var report struct {
			Clients []struct {
				Name, Kind string
				Acquired   int64
			}
			Cost struct {
				Commands int64
			}
		}
		require.NoError(t, json.Unmarshal([]byte(out), &report), "%s%s", out, stderr)
		seen := map[string]int64{}
		for _, c := range report.Clients {
			if c.Kind == "legacy" {
				seen[c.Name] += c.Acquired
			}
		}
		assert.Positive(t, seen["worker-a"], out)
		assert.Positive(t, seen["worker-b"], out)
		assert.Len(t, report.Clients, 2, "observe takes its own connections for clients: %s", out)
	},
	servers.Verify: func(t *testing.T, on site, _ servers.Cell) {
		for _, c := range verifications {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if c.acl && !on.cell(t, servers.Fence).How.Usable() {
					t.Skip("the case is about ACL users: this server has none (before Redis 6), and its cell says so")
				}
				server := on.start(t)
				server.Do("SET", "lock.kept", "0f0e0d0c-0b0a-4908-8706-050403020100", "PX", 60_000) // a pattern that matches nothing says nothing
				type result struct{ out, stderr string }
				over := make(chan result, 1)
				go func() {
					_, out, stderr := command(t, server, append([]string{"verify", "--json", "--match", "lock.*", "--for", "1500ms", "--longest-silence", "1s"}, c.args...)...)
					over <- result{out, stderr}
				}()
				watched := func() bool { // until verify has begun: it has run commands that no server has otherwise
					stats, _ := redis.String(server.Do("INFO", "commandstats"), nil)
					return strings.Contains(stats, "cmdstat_echo:")
				}
				redistest.Await(t, "verify's first look", watched)
				if c.act != nil {
					time.Sleep(300 * time.Millisecond) // into the window, which begins behind the first look
					c.act(t, server)
				}
				r := <-over
				var v struct {
					Verdict, Why string
				}
				require.NoError(t, json.Unmarshal([]byte(r.out), &v), "%s%s", r.out, r.stderr)
				assert.Contains(t, c.want, v.Verdict, v.Why)
				t.Logf("%s: %s", v.Verdict, v.Why)
			})
		}
	},
	servers.Fence: func(t *testing.T, on site, cell servers.Cell) {
		server := on.start(t)
		journal := filepath.Join(t.TempDir(), "fence.jsonl")
		fence := []string{"fence", "--user", "old", "--lock", "lock.*", "--journal", journal}
		if cell.How == servers.Absent {
			code, _, stderr := command(t, server, append(fence, "--execute")...)
			assert.Equal(t, failed, code, stderr)
			assert.Contains(t, stderr, "older than 6.0")
			return
		}
		server.Do("ACL", "SETUSER", "old", "on", ">secret", "~*", "+@all", "-@dangerous", "-@admin")
		code, out, stderr := command(t, server, append(fence, "--keep", "cache.*", "--execute")...)
		if cell.How == servers.Partly {
			assert.NotEqual(t, done, code, out)
			assert.Contains(t, out+stderr, "7.0")
			code, out, stderr = command(t, server, append(fence, "--execute")...)
		}
		assert.Equal(t, done, code, "%s%s", out, stderr)
		conn := server.Conn()
		_, err := conn.Do("AUTH", "old", "secret")
		require.NoError(t, err)
		_, err = conn.Do("SETNX", "lock.1", "1")
		assert.ErrorContains(t, err, "NOPERM")
		_, err = conn.Do("SETNX", "cache.1", "1")
		if cell.How == servers.Works {
			assert.NoError(t, err)
		}
		code, out, stderr = command(t, server, "fence", "--remove", journal, "--execute")
		assert.Equal(t, done, code, "%s%s", out, stderr)
		_, err = conn.Do("SETNX", "lock.1", "1")
		assert.NoError(t, err)
	},
}

// verifications are windows with what verify may say of them, as the command says it. None may be none-seen in which a legacy client worked:
// TestEveryWrite and TestWindows in internal/operate/verify have every command that writes, and what resets the counters.
var verifications = []struct {
	name string
	acl  bool
	args []string
	act  func(t *testing.T, server *redistest.Server)
	want []string
}{
	{"quiet", false, nil, nil, []string{"none-seen"}},
	{"quiet beside MONITOR", false, []string{"--monitor"}, nil, []string{"none-seen"}},
	{"traffic", false, []string{"--monitor"}, func(t *testing.T, server *redistest.Server) {
		server.Do("SETNX", "lock.1", jedis(time.Second))
		server.Do("GETSET", "lock.1", jedis(time.Second))
		server.Do("DEL", "lock.1")
	}, []string{"seen"}},
	{"denied by a rule", true, nil, func(t *testing.T, server *redistest.Server) {
		server.Do("ACL", "SETUSER", "old", "on", ">secret", "~*", "+@all", "-setnx")
		conn := server.Conn()
		_, err := conn.Do("AUTH", "old", "secret")
		require.NoError(t, err)
		for range 6 {
			_, err := conn.Do("SETNX", "lock.1", "1")
			require.ErrorContains(t, err, "NOPERM")
		}
	}, []string{"inconclusive", "seen"}},
	{"denied for want of memory", false, nil, func(t *testing.T, server *redistest.Server) {
		server.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
		server.Do("CONFIG", "SET", "maxmemory", "1")
		conn := server.Conn()
		for range 6 {
			_, err := conn.Do("SETNX", "lock.1", "1")
			require.ErrorContains(t, err, "OOM")
		}
	}, []string{"inconclusive", "seen"}},
}

// workers let two legacy holders with names of their own take turns until they are stopped.
func workers(t *testing.T, server *redistest.Server, names ...string) (stop func()) {
	t.Helper()
	var all []*holders.Holder
	for _, name := range names {
		h := holders.StartGo(t, "legacy-named", server.URL(), holders.Arg("name", name))
		h.Send("turns %s %s %d %d", key, key+":referee", 1_000_000, 1)
		go func() {
			for range h.Events() { // what it says is of no interest
			}
		}()
		all = append(all, h)
	}
	return func() {
		for _, h := range all {
			h.Send("stop")
		}
	}
}

// TestTable tries each cell of the table that is no lock's. Every row has a trial.
func TestTable(t *testing.T) {
	t.Parallel()
	lockRows := map[string]bool{}
	for _, l := range locks {
		lockRows[l.feature] = true
	}
	for _, f := range servers.Features {
		assert.True(t, lockRows[f.ID] != (trials[f.ID] != nil), "%s is tried once", f.ID)
	}
	each(t, func(t *testing.T, on site) {
		for _, f := range servers.Features {
			trial := trials[f.ID]
			if trial == nil {
				continue
			}
			t.Run(f.ID, func(t *testing.T) {
				t.Parallel()
				trial(t, on, on.cell(t, f.ID))
			})
		}
	})
}
