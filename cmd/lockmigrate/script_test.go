package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they wait more than they work; the command line still decides
	testscript.Main(m, map[string]func(){"lockmigrate": main})
}

// TestScript runs testdata/script/*.txtar: the command line as a user meets it.
//
// Each script has an embedded server of its own at $SERVER (host:port). A command line runs within the test, in its folder: a script names its
// own files by $WORK. "exec lockmigrate" runs it as a process, for what only a process has: signals, a PATH, a start. Besides testscript's own
// commands there are
//
//	exits CODE lockmigrate word...   runs a command line and wants exactly that exit code
//	redis COMMAND word...            sends a command; its reply becomes stdout
//	server-says ERROR                makes the server answer every command with an error; nothing to undo it
//	server-wants PASSWORD            makes it ask for a password
//	await-commands N                 waits until it has been sent N more commands
//
// and $HELD_MS, $OLD_MS and their like: an hour ahead, a day ago, in the unit of the name; $GUARD and $FENCE:
// the keys that accompany the lock "orders".
//
// The race detector leaves out the scripts that compute in one goroutine; the packages that their commands call have raced tests of their own.
func TestScript(t *testing.T) {
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	require.NoError(t, err)
	if redistest.Raced {
		scripts = slices.DeleteFunc(scripts, func(path string) bool {
			return slices.Contains([]string{"explore", "forecast", "simulate"}, strings.TrimSuffix(filepath.Base(path), ".txtar"))
		})
	}
	testscript.Run(t, testscript.Params{
		Files: scripts,
		Setup: func(env *testscript.Env) error {
			server := miniredis.NewMiniRedis()
			if err := server.Start(); err != nil {
				return err
			}
			env.Defer(server.Close)
			env.Values[serverKey{}] = server
			env.Setenv("SERVER", server.Addr())
			env.Setenv("LOCKMIGRATE_REDIS", "")
			env.Setenv("GUARD", protocol.GuardKey("orders"))
			env.Setenv("FENCE", protocol.FenceKey("orders"))
			for name, at := range map[string]time.Time{"HELD": time.Now().Add(time.Hour), "OLD": time.Now().Add(-24 * time.Hour)} {
				env.Setenv(name+"_MS", strconv.FormatInt(at.UnixMilli(), 10))
				env.Setenv(name+"_S", strconv.FormatInt(at.Unix(), 10))
				env.Setenv(name+"_NS", strconv.FormatInt(at.UnixNano(), 10))
				env.Setenv(name+"_FLOAT", fmt.Sprintf("%.3f", float64(at.UnixMilli())/1000))
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":          exits,
			"redis":          sendRedis,
			"server-says":    serverSays,
			"server-wants":   serverWants,
			"await-commands": awaitCommands,
		},
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
	})
}

// TestScriptOnARealServer runs testdata/real/*.txtar: what the embedded server cannot show. Each has a Redis server of its own, which is
// also the one of its command lines. These run within the test, in its folder: a script names its own by $WORK. Beside exits and redis there are
//
//	member NAMESPACE USER NAME TTL   starts a Go member, and waits until it may act
//	locks NAME KEY                   it takes a lock and gives it back
//	works NAMESPACE KEY              starts a Go member that locks a key again and again
//	reported N                       waits until the namespace orders has so many members, which all run its record
func TestScriptOnARealServer(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/real",
		Setup: func(env *testscript.Env) error {
			server := redistest.Real(env.T().(testing.TB))
			env.Values[stageKey{}] = &realStage{operator{env.T().(testing.TB), server.URL()}, server.Addr, map[string]compat.Locker{}}
			env.Setenv("SERVER", server.Addr)
			env.Setenv("LOCKMIGRATE_REDIS", server.URL())
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "redis": sendRedis,
			"member": func(ts *testscript.TestScript, _ bool, args []string) {
				on := stageOf(ts)
				ttl, err := time.ParseDuration(args[3])
				ts.Check(err)
				on.members[args[2]] = service(on.t, as(on.t, on.addr, args[1]), func(o *compat.Options) { o.Namespace, o.Member, o.TTL = args[0], args[2], ttl })
			},
			"locks": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(stageOf(ts).members[args[0]].Do(context.Background(), args[1], func(context.Context) error { return nil }))
			},
			"works": func(ts *testscript.TestScript, _ bool, args []string) {
				on := stageOf(ts)
				working(on.t, as(on.t, on.addr, "default"), args[0], args[1])
			},
			"reported": func(ts *testscript.TestScript, _ bool, args []string) {
				members, err := strconv.Atoi(args[0])
				ts.Check(err)
				stageOf(ts).reported(members)
			},
		},
	})
}

type stageKey struct{}

// realStage is what a script on a real server works with.
type realStage struct {
	operator
	addr    string
	members map[string]compat.Locker
}

func stageOf(ts *testscript.TestScript) *realStage { return ts.Value(stageKey{}).(*realStage) }

// exits runs a command line within the test and compares its exit code; stdout and stderr are then there to match.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || args[1] != "lockmigrate" {
		ts.Fatalf("usage: exits CODE lockmigrate word...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var stdout, stderr buffer
	env := surroundings(&stdout, &stderr, false)
	env.getenv = ts.Getenv
	got := run(ctx, env, args[2:])
	_, err = fmt.Fprint(ts.Stdout(), stdout.String())
	ts.Check(err)
	_, err = fmt.Fprint(ts.Stderr(), stderr.String())
	ts.Check(err)
	if got != want {
		ts.Fatalf("%q exits %d, want %d", args[1:], got, want)
	}
}

type serverKey struct{}

func serverOf(ts *testscript.TestScript) *miniredis.Miniredis {
	return ts.Value(serverKey{}).(*miniredis.Miniredis)
}

// sendRedis sends one command to the script's server. In its words \xXX stands for a byte.
func sendRedis(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: redis COMMAND word...")
	}
	conn, err := redis.Dial("tcp", ts.Getenv("SERVER"))
	ts.Check(err)
	defer conn.Close()
	var words []any
	for _, a := range args[1:] {
		if strings.Contains(a, `\x`) {
			a, err = strconv.Unquote(`"` + a + `"`)
			ts.Check(err)
		}
		words = append(words, a)
	}
	reply, err := conn.Do(args[0], words...)
	ts.Check(err)
	switch v := reply.(type) {
	case []byte:
		reply = string(v)
	case []any:
		reply, err = redis.Strings(v, nil)
		ts.Check(err)
	}
	_, err = fmt.Fprintln(ts.Stdout(), reply)
	ts.Check(err)
}

func serverSays(ts *testscript.TestScript, neg bool, args []string) {
	serverOf(ts).SetError(strings.Join(args, " "))
}

func serverWants(ts *testscript.TestScript, neg bool, args []string) {
	serverOf(ts).RequireAuth(args[0])
}

func awaitCommands(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	server := serverOf(ts)
	until := server.CommandCount() + n
	for began := time.Now(); server.CommandCount() < until; {
		if time.Since(began) > 10*time.Second {
			ts.Fatalf("only %d commands arrived", server.CommandCount()-until+n)
		}
		time.Sleep(time.Millisecond) // the server is not told to tell
	}
}
