package scripts_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// Every script tells its keys, arguments and replies, and why it is one.
func TestEveryScriptHasItsHeader(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		text := string(source)
		assert.True(t, strings.HasPrefix(text, "-- "+file+":"), "%s begins with its name", file)
		if strings.Contains(strings.ReplaceAll(text, "\n-- ", " "), "It stands before each of them") {
			continue // a part of others, which tell
		}
		for _, word := range []string{"-- KEYS ", "-- Reply", "tomic"} {
			assert.True(t, strings.Contains(text, word), "%s says %s", file, word)
		}
	}
}

// Servers before Redis 5 take a write after TIME only where a script has asked for its effects to be replicated, and no HSET of
// several fields, ZPOPMIN or KEEPTTL.
func TestScriptsRunOnOldServers(t *testing.T) {
	several := regexp.MustCompile(`'HSET', [^,()]+(, [^,()]+){3}`)
	for _, s := range scripts.All() {
		code := regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(s.Source, "")
		clock, asks := strings.Index(code, "'TIME'"), strings.Index(code, "redis.replicate_commands()")
		reads := s.Name == "stage_show.lua" || s.Name == "stage_list.lua" // they write nothing
		assert.True(t, clock < 0 || reads || asks >= 0 && asks < clock, "%s reads the clock before it asks for replication of its effects", s.Name)
		for _, newer := range []string{"ZPOPMIN", "KEEPTTL", "'UNLINK'", "'GETEX'"} {
			assert.NotContains(t, code, newer, "%s", s.Name)
		}
		assert.NotRegexp(t, several, code, "%s: HMSET is on every server", s.Name)
	}
}

var updateClients = flag.Bool("update", false, "write the scripts into the clients of other languages")

// TestTheClientsHaveTheseScripts: the libraries for other languages send the very bytes that the Go library sends, so a server keeps each script once.
func TestTheClientsHaveTheseScripts(t *testing.T) {
	folders, err := filepath.Glob("../../../clients/*/src/**/lua")
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	of := map[string]string{}
	for _, s := range scripts.All() {
		of[s.Name] = s.Source
	}
	for _, folder := range folders {
		files, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			require.True(t, strings.HasSuffix(file.Name(), ".lua") && of[file.Name()] != "", "%s is no script", file.Name())
			redistest.Document(t, filepath.Join(folder, file.Name()), of[file.Name()], *updateClients)
		}
	}
}

// TestNames: what a header declares is what the script uses. Every name is used, none is used that nothing declares, none is hidden by
// a local of the script or of a part that it includes, and none is written as a number.
func TestNames(t *testing.T) {
	locals := regexp.MustCompile(`(?m)^(?:local (?:function )?)([a-z_][\w, ]*)`)
	for _, s := range scripts.All() {
		code := regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(s.Source, "")
		declared := map[string]bool{}
		for table, list := range map[string][]scripts.Argument{"KEYS": s.Keys, "ARGV": s.Args} {
			optional := false
			for i, a := range list {
				assert.False(t, declared[a.Name], "%s: %s is declared twice", s.Name, a.Name)
				declared[a.Name] = true
				assert.False(t, optional && !a.Optional, "%s: %s can be left out only with all that follow it", s.Name, list[max(i-1, 0)].Name)
				optional = a.Optional
				if !a.Rest {
					assert.Greater(t, len(regexp.MustCompile(`\b`+a.Name+`\b`).FindAllString(code, 2)), 1, "%s does not use %s", s.Name, a.Name)
				}
			}
			places := regexp.MustCompile(table+`\[\d+\]`).FindAllString(code, -1)
			slices.Sort(places)
			assert.Equal(t, places, slices.Compact(slices.Clone(places)), "%s writes a place as a number", s.Name)
		}
		bound := map[string]bool{}
		for _, m := range locals.FindAllStringSubmatch(code, -1) {
			for _, name := range strings.Split(m[1], ",") {
				name = strings.TrimSpace(name)
				assert.False(t, declared[name] && bound[name], "%s hides %s", s.Name, name)
				bound[name] = true
			}
		}
		for name := range globals(t, s) {
			assert.Contains(t, []string{"KEYS", "ARGV", "redis", "cjson", "string", "math", "table", "tonumber", "type", "pcall", "ipairs", "unpack"}, name,
				"%s uses a name that nothing declares", s.Name)
		}
	}
}

// globals compiles a script and returns the names that it does not declare.
func globals(t *testing.T, s *scripts.Script) map[string]bool {
	chunk, err := parse.Parse(strings.NewReader(s.Source), s.Name)
	require.NoError(t, err)
	proto, err := lua.Compile(chunk, s.Name)
	require.NoError(t, err)
	names := map[string]bool{}
	for todo := []*lua.FunctionProto{proto}; len(todo) > 0; todo = todo[1:] {
		todo = append(todo, todo[0].FunctionPrototypes...)
		for _, code := range todo[0].Code {
			if op := int(code >> 26); op == lua.OP_GETGLOBAL || op == lua.OP_SETGLOBAL {
				names[todo[0].Constants[code&0x3ffff].String()] = true
			}
		}
	}
	return names
}

// TestAReplicaSaysNoToNobody: a connection outlives the change of its master to a replica, which may be behind the new master. What
// it does not have may be there. A no, after which a holder gives a lock up that is its own, is a refusal there.
func TestAReplicaSaysNoToNobody(t *testing.T) {
	const ours, theirs, later = "5123456789012345678", "6123456789012345678", "9000000000000"
	const guard, queue = "{lock}:guard", "{lock}:queue"
	b := newObstacleBench(t)
	replica := obstacle{put: [][]string{{"REPLICAOF", "127.0.0.1", "1"}}, back: [][]string{{"REPLICAOF", "NO", "ONE"}}}
	for _, s := range []struct {
		script *scripts.Script
		keys   []string
		args   []any
		no     []string // what it says at a master
	}{
		{scripts.CompareDel, []string{"lock"}, []any{ours}, []string{"0"}},
		{scripts.CompareSet, []string{"lock"}, []any{ours, later}, []string{"0"}},
		{scripts.GatedCompareSet, []string{"lock"}, []any{ours, later, later}, []string{"0"}},
		{scripts.ModernExtend, []string{"lock", "lock"}, []any{ours, 10_000, 0}, []string{"0"}},
		{scripts.ModernRelease, []string{"lock", queue, guard}, []any{ours}, []string{"0"}},
		{scripts.ModernRelease, []string{"lock", queue, guard, "lock", "lock"}, []any{ours, 0, "1000 0 0 heard " + ours, 0}, []string{"0"}},
		{scripts.RedissonExtend, []string{"lock"}, []any{10_000, ours}, []string{"0", "WRONGTYPE"}},
		{scripts.RedissonRelease, []string{"lock"}, []any{ours, "redisson_lock__channel:{lock}"}, []string{"0", "WRONGTYPE"}},
		{scripts.BridgeSettle, []string{"lock", guard}, []any{ours, 10_000, "1000 ms plain 0", 0}, []string{"0"}},
		{scripts.BridgeRenew, []string{"lock", guard, "lock"}, []any{ours, 10_000, 0, 0}, []string{"0", "-1"}},
		{scripts.BridgeRelease, []string{"lock", guard, "lock", "lock"}, []any{ours, 0, 1}, []string{"0", "-1"}},
		{scripts.BridgeRelease, []string{"lock", guard, "lock", queue}, []any{ours, 0, 1}, []string{"0", "-1"}},
		{scripts.SidecarKeep, []string{"lock", guard, "{lock}:sidecar"}, []any{"me 10000 0"}, []string{"0", "3"}},
		{scripts.SidecarDel, []string{"lock", guard, "{lock}:sidecar", queue, "{lock}:yield"}, []any{"me 0 100"}, []string{"0"}},
	} {
		for name, before := range map[string]string{
			"nothing is there": "",
			"another's":        "SET lock " + theirs + " PX 20000",
			"another's too":    "SET lock " + theirs + " PX 20000 ; SET " + guard + " " + theirs + " PX 20000",
			"another's hash":   "HSET lock " + theirs + " 1 ; PEXPIRE lock 20000",
			"displaced":        "SET lock " + theirs + " ; SET " + guard + " " + ours + " PX 20000",
		} {
			if s.script == scripts.BridgeSettle && name == "displaced" || s.script == scripts.SidecarDel && (name == "displaced" || name == "another's hash") {
				continue // the guard is ours there; a DEL deletes what is no token
			}
			t.Run(s.script.Name+"/"+name, func(t *testing.T) {
				call := situation{script: s.script, before: commandsOf(nil, before, time.Now()), keys: s.keys, args: s.args, locks: 1, ours: ours}
				master := b.run(t, call, nil)
				assert.Contains(t, s.no, master.code, "%v", master.err)
				got := b.run(t, call, []obstacle{replica})
				if master.code != "WRONGTYPE" { // as Redisson's own does
					assert.Equal(t, "READONLY", got.code, "%v", got.err)
				}
				for _, all := range []outcome{master, got} {
					for key, was := range all.before {
						assert.Equal(t, was.value, all.after[key].value, key)
						assert.Equal(t, was.ttl < 0, all.after[key].ttl < 0, "the TTL of %s", key)
					}
					assert.Len(t, all.after, len(all.before))
				}
			})
		}
	}
}
