package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestEachRoundTripMayFail lets each round trip of each command fail in turn. What is printed is then true: a change that was
// made, or may be, is never told as a mere failure, and a failure is never told as done. Running it again finishes, or says what stands.
func TestEachRoundTripMayFail(t *testing.T) {
	t.Parallel()
	const broken = 30 * time.Millisecond // from a lost reply to the end of the connection
	faults := map[string]func(s *redistest.Server, l *redistest.Link){
		"no request": func(_ *redistest.Server, l *redistest.Link) { l.Cut() },
		"no reply": func(_ *redistest.Server, l *redistest.Link) {
			l.HalfOpen()
			time.AfterFunc(broken, func() { l.Cut(); l.Heal() })
		},
		"out of memory":  func(s *redistest.Server, _ *redistest.Link) { s.Do("CONFIG", "SET", "maxmemory", "1") },
		"rights are cut": func(s *redistest.Server, _ *redistest.Link) { s.Do("ACL", "SETUSER", "op", "-@scripting", "-acl") },
	}
	heal := func(s *redistest.Server) {
		s.Do("CONFIG", "SET", "maxmemory", "0")
		s.Do("ACL", "SETUSER", "op", "on", "nopass", "~*", "&*", "+@all")
	}
	record := func(s *redistest.Server, field string) string {
		text, _ := redis.String(s.Do("HGET", stages.RecordKey("orders"), field), nil)
		return text
	}
	stage := func(args ...string) []string {
		return append([]string{"stage"}, append(args, "--namespace", "orders", "--execute")...)
	}
	creation := stage("init", "--match", "lock:*", "--dialect", "jedis-ms", "--shortest-lease", "2s")
	const journal = "JOURNAL" // each subtest has a file of its own
	fence := []string{"fence", "--user", "old", "--lock", "lock:*", "--execute", "--journal"}
	const expired = "1600000000000"
	for name, c := range map[string]struct {
		before [][]string
		args   []string
		done   func(s *redistest.Server) bool
		stands string // what it says when it is run again after it was done
	}{
		"init":     {nil, creation, func(s *redistest.Server) bool { return record(s, "stage") == "0" }, "orders exists already: stage legacy, epoch 1, by"},
		"rollback": {[][]string{creation, stage("advance", "--to", "bridge")}, stage("rollback", "--to", "legacy"), func(s *redistest.Server) bool { return record(s, "stage") == "0" }, "orders is at legacy already, by"},
		"set":      {[][]string{creation}, stage("set", "--match", "lock:a*"), func(s *redistest.Server) bool { return record(s, "epoch") == "2" }, "orders is so already"},
		"delete":   {[][]string{creation}, stage("delete"), func(s *redistest.Server) bool { return record(s, "stage") == "" }, "no such namespace"},
		"fence":    {nil, append(slices.Clip(fence), journal), func(s *redistest.Server) bool { return !may(s, "SETNX") }, ""},
		"unfence":  {[][]string{append(slices.Clip(fence), journal)}, []string{"fence", "--remove", journal, "--execute"}, func(s *redistest.Server) bool { return may(s, "SETNX") }, ""},
		"sweep":    {nil, []string{"sweep", "--match", "lock:*", "--execute", "--journal", os.DevNull}, func(s *redistest.Server) bool { return s.Do("EXISTS", "lock:a") == int64(0) }, ""},
	} {
		for fault, arm := range faults {
			t.Run(name+"/"+fault, func(t *testing.T) {
				t.Parallel()
				s := redistest.Real(t)
				direct := operator{t, "redis://op:x@" + s.Addr}
				dir := t.TempDir()
				in := func(n int, args []string) []string { // a journal is never written over
					args = slices.Clone(args)
					if i := slices.Index(args, journal); i >= 0 {
						args[i] = filepath.Join(dir, strconv.Itoa(n))
					}
					return args
				}
				for n, met := 1, true; met; n++ {
					s.Do("FLUSHALL")
					heal(s)
					s.Do("ACL", "SETUSER", "old", "reset", "on", ">pw", "~*", "&*", "+@all")
					s.Do("SET", "lock:a", expired)
					for _, args := range c.before {
						direct.runs(exitDone, in(n, args)...)
					}
					link := redistest.NewProxy(t, s)
					var count atomic.Int64 // each connection counts in a goroutine of its own
					link.Before(func([]string) {
						if count.Add(1) == int64(n) {
							arm(s, link)
						}
					})
					code, stdout, stderr := lockmigrateIn(t.Context(), false, append(in(n, c.args), "--redis", "redis://op:x@"+link.Addr)...)
					met = count.Load() >= int64(n)
					heal(s)
					is := strconv.Itoa(n) + " " + fault + ": " + stdout + stderr
					said := "failed"
					switch {
					case code == exitDone:
						said = "done"
					case strings.Contains(stderr, "the change is made"):
						said = "done"
					case strings.Contains(stdout+stderr, "may be"), strings.Contains(stdout, "unsure"):
						said = "unsure"
					}
					if name == "set" || name == "rollback" {
						direct.runs(exitUnsafe, "stage", "init", "--namespace", "other", "--match", "lock:a1", "--dialect", "jedis-ms", "--shortest-lease", "2s") // nobody else gets the keys
					}
					done := c.done(s)
					if said != "unsure" {
						assert.Equal(t, done, said == "done", is)
					}
					for range 2 { // a command that was stopped keeps others out for a while
						if code, stdout, stderr = lockmigrateIn(t.Context(), false, append(in(n, c.args), "--redis", direct.url)...); code != exitInconclusive {
							break
						}
						require.Contains(t, stderr, "was stopped in the middle of it: run it again in", is)
						age(t, s)
					}
					assert.True(t, c.done(s), "%s\nagain: %s%s", is, stdout, stderr)
					if done && c.stands != "" && code != exitDone {
						assert.Contains(t, stderr, c.stands, is)
					}
				}
			})
		}
	}
}

// may tells whether user old may run a command on a lock's key.
func may(s *redistest.Server, command string) bool {
	return s.Do("ACL", "DRYRUN", "old", command, "lock:a", "1") == "OK"
}

// age makes all that is reserved older.
func age(t *testing.T, s *redistest.Server) {
	t.Helper()
	entries, err := redis.StringMap(s.Do("HGETALL", stages.ListKey), nil)
	require.NoError(t, err)
	for name, text := range entries {
		if name == "" {
			continue
		}
		var e map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &e))
		e["at"] = time.Now().Add(-time.Minute).UnixMilli()
		changed, err := json.Marshal(e)
		require.NoError(t, err)
		s.Do("HSET", stages.ListKey, name, changed)
	}
}
