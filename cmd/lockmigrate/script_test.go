package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
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
// Each script has an embedded server of its own at $SERVER (host:port). A command line runs within the test, in its folder: a script names its
// own files by $WORK. "exec lockmigrate" runs it as a process, for what only a process has:
// signals, a PATH, a start, and its share of the processors where a fleet plays in real time. Besides testscript's own
// commands there are
//
//	exits CODE lockmigrate word...   runs a command line and wants exactly that exit code
//	exits CODE exec word...          the same of a process, in the script's folder
//	redis COMMAND word...            sends a command; its reply becomes stdout
//	server-says ERROR                makes the server answer every command with an error; nothing to undo it
//	server-wants PASSWORD            makes it ask for a password
//	await-commands N                 waits until it has been sent N more commands
//
// and $HELD_MS, $DEAD_MS, $OLD_MS and their like: an hour ahead, three minutes and a day ago, in the unit of the name; $GUARD and $FENCE:
// the keys that accompany the lock "orders".
//
// The race detector leaves out the scripts that compute in one goroutine; the packages that their commands call have raced tests of their own.
func TestScript(t *testing.T) {
	t.Parallel() // others wait for no script
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
			setTimes(env)
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

// setTimes gives a script expiries that lie ahead, and in the past.
func setTimes(env *testscript.Env) {
	for name, after := range map[string]time.Duration{"HELD": time.Hour, "DEAD": -3 * time.Minute, "OLD": -24 * time.Hour} {
		at := time.Now().Add(after)
		env.Setenv(name+"_MS", strconv.FormatInt(at.UnixMilli(), 10))
		env.Setenv(name+"_S", strconv.FormatInt(at.Unix(), 10))
		env.Setenv(name+"_NS", strconv.FormatInt(at.UnixNano(), 10))
		env.Setenv(name+"_FLOAT", fmt.Sprintf("%.3f", float64(at.UnixMilli())/1000))
	}
}

// exits runs a command line within the test and compares its exit code; stdout and stderr are then there to match.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || args[1] != "lockmigrate" && args[1] != "exec" {
		ts.Fatalf("usage: exits CODE lockmigrate word..., exits CODE exec word...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if args[1] == "exec" {
		var ended *exec.ExitError
		got := 0
		if err := ts.Exec(args[2], args[3:]...); errors.As(err, &ended) {
			got = ended.ExitCode()
		} else {
			ts.Check(err)
		}
		if got != want {
			ts.Fatalf("%q exits %d, want %d", args[2:], got, want)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), hung)
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
	reply, err := askRedis(ts.Getenv("SERVER"), args)
	ts.Check(err)
	_, err = fmt.Fprintln(ts.Stdout(), reply)
	ts.Check(err)
}

func askRedis(addr string, args []string) (reply any, err error) {
	conn, err := redis.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var words []any
	for _, a := range args[1:] {
		words = append(words, bytesOf(a))
	}
	reply, err = conn.Do(args[0], words...)
	if moved, ok := err.(redis.Error); ok && strings.HasPrefix(string(moved), "MOVED ") {
		return askRedis(strings.Fields(string(moved))[2], args)
	}
	switch v := reply.(type) {
	case []byte:
		return string(v), err
	case []any:
		return redis.Strings(v, err)
	}
	return reply, err
}

// bytesOf is a word in which \xXX stands for a byte.
func bytesOf(word string) string {
	if text, err := strconv.Unquote(`"` + word + `"`); err == nil {
		return text
	}
	return word
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
