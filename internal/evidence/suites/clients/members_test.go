package clients

import (
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

var handOvers = flag.Int("handovers", 3, "how many hand-overs to a member of each language TestHandOvers has; it measures them")

var javaClients = flag.String("java-clients", "", "builds clients/java with these clients, such as jedis=3.10.0,lettuce=6.0.0.RELEASE, and runs its tests with each")

// TestPythonMembers runs the tests of clients/python on a real server: members of a namespace that are threads and coroutines, whose stages
// the command line moves.
func TestPythonMembers(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Python)
	t.Parallel()
	root := holders.Root(t)
	out := ofAnotherLanguage(t, filepath.Join(root, "python/.venv-suite/bin/python"), "-B", filepath.Join(root, "../../clients/python/tests/test_members.py"), "-v")
	require.NotContains(t, out, "skipped")
}

// TestJavaMembers does the same with clients/java, once through Jedis and once through Lettuce.
func TestJavaMembers(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Java)
	t.Parallel()
	root := filepath.Join(holders.Root(t), "../../clients/java")
	run := func(lib, clients string) {
		ofAnotherLanguage(t, "java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Dclients="+clients, "-cp", root+"/tests/target/*:"+lib+"/*",
			"org.junit.runner.JUnitCore", "io.github.lockmigrate.MachinesTest", "io.github.lockmigrate.MembersTest")
	}
	if *javaClients == "" {
		run(root+"/tests/target/lib", "jedis,lettuce")
		return
	}
	for client := range strings.SplitSeq(*javaClients, ",") {
		lib := t.TempDir()
		name, version, _ := strings.Cut(client, "=")
		out, err := exec.Command("mvn", "-q", "-B", "-f", root, "package", "-D"+name+".version="+version, "-Dlib="+lib).CombinedOutput()
		require.NoError(t, err, "%s", out)
		run(lib, name)
		t.Logf("passed with %s", client)
	}
}

// ofAnotherLanguage runs the tests of a library against a server, and with a command line, of their own.
func ofAnotherLanguage(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx := redistest.Bounded(t, 5*time.Minute)
	tests := exec.CommandContext(ctx, name, args...)
	tests.Env = append(os.Environ(), "REDIS_URL="+redistest.Real(t).URL(), "LOCKMIGRATE="+redistest.Built(t, redistest.Operators))
	tests.WaitDelay = 10 * time.Second
	out, err := tests.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	return string(out)
}

// TestStagesOfTwoLanguages: two Java members, two Go members and two of the old jar take turns on one key while the stages go forth and back, and a
// holder of each is killed inside. The old ones take most turns: they do not wait in the queue. Nobody is ever inside beside another.
func TestStagesOfTwoLanguages(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Java)
	t.Parallel()
	const turns = 400
	s := redistest.Real(t)
	store := &stages.Store{Pool: s.Pool(), Namespace: "orders"}
	require.NoError(t, store.Init(t.Context(), stages.Record{Patterns: []string{"lock.*"}, Dialect: "jedis-ms", Shortest: lease, ClockLag: 100 * time.Millisecond, CommandDelay: 300 * time.Millisecond}))
	of := func(kind holders.Kind, args ...holders.Option) holders.Member {
		return func() *holders.Holder { return holders.Start(t, kind, s.URL(), args...) }
	}
	namespace, ttl := holders.Arg("namespace", "orders"), holders.Arg("lease", memberTTL)
	old, java, golang := of(holders.JedisLock, holders.Arg("lease", lease)), of(holders.JavaMember, namespace, ttl), ofGo(t, s, "compat", namespace)
	report := holders.Fleet{
		T: t, Server: s, Key: "lock.fleet", Turns: turns, Each: 5, Hold: 2 * time.Millisecond, Limit: 4 * time.Minute, Record: true, Kills: []int{0, 2, 4, 3},
		Members: []holders.Member{old, old, java, java, golang, golang},
		Beside: func(after func(int)) {
			mover := stages.Mover{Store: store, Look: 50 * time.Millisecond}
			for i, to := range []stages.Stage{stages.Bridge, stages.Legacy, stages.Bridge, stages.Modern, stages.Bridge} {
				after(turns * (i + 1) / 6)
				if !assert.NoError(t, mover.Run(t.Context(), to, func(stages.View, []stages.Blocker) {})) {
					return
				}
			}
		},
	}.Run()
	t.Log(report)
	assert.Zero(t, report.Overlaps, redistest.Violated)
	assert.Equal(t, 4, report.Kills)
	for _, e := range report.Errors {
		assert.True(t, strings.Contains(e.Message, "lost") || e.Lost, "a lock threw: %+v", e)
	}
}

// TestHandOvers: a Go member gives a lock back for which a member of each language waits in turn. Each is handed the lock by the release and
// hears so by its message: the server is asked by nobody between the release and its holder's start. -handovers measures how long that takes.
func TestHandOvers(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Java, redistest.Python)
	t.Parallel()
	const key = "lock.handed"
	s := redistest.Real(t)
	store := &stages.Store{Pool: s.Pool(), Namespace: "orders"}
	require.NoError(t, store.Init(t.Context(), stages.Record{Stage: stages.Modern, Patterns: []string{"lock.*"}, Dialect: "jedis-ms", Shortest: lease}))
	args := []holders.Option{holders.Arg("namespace", "orders"), holders.Arg("lease", 20*memberTTL)} // nobody renews within it
	golang := ofGo(t, s, "compat", args[0])
	giver, waiters := golang(), map[string]*holders.Holder{
		"Go": golang(), "Java": holders.Start(t, holders.JavaMember, s.URL(), args...), "Python": holders.Start(t, holders.PythonMember, s.URL(), args...),
	}
	monitor, took := s.Monitor(), map[string][]time.Duration{}
	for turn := range *handOvers + 1 { // at its first one a waiter asks again when it has begun to listen
		for name, waiter := range waiters {
			require.Equal(t, "acquired", giver.Do("acquire %s", key).Event)
			waiter.Send("acquire %s", key)
			redistest.Await(t, "a waiter in the queue that listens", func() bool {
				places, _ := redis.Strings(s.Do("ZRANGE", protocol.QueueKey(key), 0, -1), nil)
				if len(places) != 1 {
					return false
				}
				listening, err := redis.Int64Map(s.Do("PUBSUB", "NUMSUB", strings.Fields(places[0])[3]), nil)
				return err == nil && slices.Contains(slices.Collect(maps.Values(listening)), 1)
			})
			monitor.Everything()
			began := time.Now()
			require.Equal(t, "released", giver.Do("release %s", key).Event)
			require.Equal(t, "acquired", waiter.Next(time.Minute).Event, name)
			took[name] = append(took[name], time.Since(began))
			told := 0
			for _, c := range monitor.Everything() {
				switch c.Words[0] {
				case "EVAL", "EVALSHA": // the server may not know a script yet
					about := slices.Contains(c.Words, key)
					assert.True(t, !about || turn == 0 || strings.HasPrefix(c.Words[1], "-- bridge_release.lua:") || scripts.NameOf(c.Words[1]) == "bridge_release.lua", "%s asks whether it has the lock: %.200q", name, c.Words)
				case "PUBLISH":
					if c.Words[2] != "alive" { // Java's word to itself
						told++
					}
				}
			}
			assert.Equal(t, 1, told, "messages to %s", name)
			require.Equal(t, "released", waiter.Do("release %s", key).Event)
		}
	}
	for name, all := range took {
		slices.Sort(all)
		t.Logf("%s: %v, the fastest tenth below %v", name, all[len(all)/2], all[len(all)/10])
	}
}
