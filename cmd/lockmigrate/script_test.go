package main

import (
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

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they wait more than they work; the command line still decides
	testscript.Main(m, map[string]func(){"lockmigrate": main})
}

// TestScript runs testdata/script/*.txtar: the command line as a user meets it.
//
// Each script has an embedded server of its own at $SERVER (host:port). Besides testscript's own commands
// there are
//
//	exits CODE command...    runs the command and wants exactly that exit code
//	redis COMMAND word...    sends a command; its reply becomes stdout
//	server-says ERROR        makes the server answer every command with an error; nothing to undo it
//	server-wants PASSWORD    makes it ask for a password
//	await-commands N         waits until it has been sent N more commands
//
// and $HELD_MS, $OLD_MS and their like: an hour ahead, a day ago, in the unit of the name; $GUARD and $FENCE:
// the keys that accompany the lock "orders".
//
// The race detector makes the start of each of their 350 commands slow, and sees one goroutine in most of them. It watches the scripts
// whose commands work on several; the packages that the others call have raced tests of their own.
func TestScript(t *testing.T) {
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	require.NoError(t, err)
	if redistest.Raced {
		scripts = slices.DeleteFunc(scripts, func(path string) bool {
			return !slices.Contains([]string{"conformance", "demo", "demo-server", "interrupt", "sidecar"}, strings.TrimSuffix(filepath.Base(path), ".txtar"))
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

// exits runs a command and compares its exit code; stdout and stderr are then there to match.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		status, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("run %q: %v", args[1:], err)
		}
		got = status.ExitCode()
	}
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
	conn, err := redis.Dial("tcp", serverOf(ts).Addr())
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
