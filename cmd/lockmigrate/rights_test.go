package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
)

// furnishRights puts on a server what every command has something to do with.
func furnishRights(s *redistest.Server) {
	s.Do("FLUSHALL")
	s.Do("SCRIPT", "FLUSH")
	s.Do("SET", "lock:ghost", fmt.Sprint(time.Now().Add(-48*time.Hour).UnixMilli()))
	s.Do("SET", "lock:token", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30")
	s.Do("SET", "lock:live", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()))
	s.Do("SET", "lock:bridge", "7000000000000000001", "PX", 60000)
	s.Do("HSET", "lock:redisson", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30:41", "1")
	s.Do("ACL", "SETUSER", "old", "reset", "on", ">pw", "~*", "&*", "+@all")
}

// furnishNamespace puts a namespace on a server, at the stage that a command moves away from, with a member that lives
// and one that has run out. A namespace that is to be deleted has no member; one that is to be made is not there.
func furnishNamespace(s *redistest.Server, line []string) {
	stage := 0
	if len(line) > 1 && line[1] == "init" {
		return
	}
	if len(line) > 1 && (line[1] == "advance" || line[1] == "rollback") {
		stage = 1
	}
	now := time.Now().UnixMilli()
	s.Do("HSET", "lockmigrate:{orders}:stage", "epoch", 1, "stage", stage, "since", now, "patterns", `["lock:*"]`, "clients", `{"dialect":"jedis-ms","shortest_ms":2000}`)
	if len(line) > 1 && line[1] == "delete" {
		return
	}
	member := `{"seq":1,"epoch":1,"stage":%d,"lo":%d,"hi":%d,"seen":%d,"ends":%d,"longest":1000,"skew":0,"info":"{\"user\":\"old\"}","why":""}`
	s.Do("HSET", "lockmigrate:{orders}:members", "live", fmt.Sprintf(member, stage, stage, stage, now, now+60_000),
		"gone", fmt.Sprintf(member, stage, stage, stage, 1, 2))
}

// commandLines are how the test runs the commands of the table, by their names there.
func commandLines(t *testing.T) map[string][]string {
	dir, lines := t.TempDir(), map[string][]string{}
	for _, row := range redistest.Rows(t, "testdata/rights.txt") {
		name, flags, _ := strings.Cut(strings.Join(row, " "), " | ")
		lines["lockmigrate "+name] = strings.Fields(name + " " + strings.ReplaceAll(flags, "DIR", dir))
	}
	return lines
}

// runFew runs a command as a user with the rights of a use, but one, and returns what the server refused.
func runFew(t *testing.T, s *redistest.Server, use doctor.Use, line []string, without *doctor.Right) (code int, said string, refused []string) {
	t.Helper()
	furnishRights(s)
	if line[0] == "stage" {
		furnishNamespace(s, line)
	}
	pattern := "lock:*"
	if line[0] == "demo" {
		pattern = "lockmigrate-demo:*"
	}
	s.Grant("few", use.Rules([]string{pattern}, without)...)
	s.Do("ACL", "LOG", "RESET")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var stdout, stderr string
	if url := s.URLOf("few"); line[0] == "serve" { // what it says is on its page
		stdout = pageOf(t, ctx, url, without)
	} else {
		code, stdout, stderr = lockmigrateIn(ctx, false, append(slices.Clone(line), "--redis", url)...)
	}
	entries, _ := redis.Values(s.Do("ACL", "LOG"), nil)
	for _, e := range entries {
		row, _ := redis.Values(e, nil)
		refused = append(refused, fmt.Sprintf("%s", row[5:8]))
	}
	return code, stdout + stderr, refused
}

// pageOf is what the page of serve says of itself after a second; where a right is needed and taken away, as soon as
// the page names it, or after five.
func pageOf(t *testing.T, ctx context.Context, url string, without *doctor.Right) string {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c := serve.NewCollector(end, serve.Options{Match: []string{"lock:*"}, Burst: 200 * time.Millisecond, Every: 300 * time.Millisecond, CensusEvery: 200 * time.Millisecond, Look: 100 * time.Millisecond})
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	says := func() string {
		s := c.State()
		text, err := json.Marshal([]any{s.Error, s.Monitor, s.Refused, s.Locks.Error, s.Locks.Lacks})
		require.NoError(t, err)
		return string(text)
	}
	began := time.Now()
	for ctx.Err() == nil {
		if without == nil || without.Without != "" {
			if time.Since(began) > time.Second {
				break
			}
		} else if saysWhich(says(), *without) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	running.Wait()
	return says()
}

// saysWhich tells that an output names a right.
func saysWhich(said string, r doctor.Right) bool {
	said = strings.ToLower(said)
	if r.Kind != doctor.Command {
		return strings.Contains(said, "key")
	}
	command, sub, _ := strings.Cut(r.Name, "|")
	return regexp.MustCompile(`\b`+regexp.QuoteMeta(command)+`\b`).MatchString(said) && strings.Contains(said, sub)
}

// TestLeastRightsOfCommands runs each command as a user with exactly the rights that the table gives, and wants
// nothing refused; and with each single one taken away: it must then name that right, or go on where the
// table says what is lost.
func TestLeastRightsOfCommands(t *testing.T) {
	t.Parallel()
	redistest.Need(t, redistest.Redis)
	lines := commandLines(t)
	for _, use := range doctor.Commands {
		t.Run(use.Name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			line := lines[use.Name]
			require.NotEmpty(t, line)
			code, said, refused := runFew(t, s, use, line, nil)
			require.Contains(t, []int{exitDone, exitUnsafe, exitInconclusive}, code, "%s\nrefused: %v", said, refused)
			require.Empty(t, refused, "with all of them: %s", said)
			for _, r := range use.Rights {
				if line[0] == "demo" && !slices.Contains([]string{doctor.Lock, ":queue", doctor.Namespaces, "del", "eval", "hmset", "scan"}, r.Name) {
					continue // TestLeastRights takes each of them away; a story takes seconds
				}
				code, said, refused := runFew(t, s, use, line, &r)
				t.Logf("%s without %s %s: %d, refused %v: %s", use.Name, r.Kind, r.Name, code, refused, strings.TrimSpace(said[strings.LastIndexByte(strings.TrimSpace(said), '\n')+1:]))
				if !saysWhich(said, r) {
					assert.NotEmpty(t, r.Without, "%s without %s %s: exit code %d, and nothing names it: %s", use.Name, r.Kind, r.Name, code, said)
				}
			}
		})
	}
}
