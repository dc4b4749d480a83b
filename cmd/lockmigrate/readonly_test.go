package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// reads are what a verb may send without --execute: nothing that changes a key, a user or a setting. EVAL
// is judged by the server: its count of changes must stand still.
var reads = strings.Fields(`PING SELECT AUTH CLIENT MONITOR INFO TIME SCAN GET GETRANGE STRLEN PTTL TYPE HLEN HGETALL HKEYS HVALS HGET HMGET DBSIZE ECHO CONFIG
	ACL COMMAND SLOWLOG ROLE EVAL EVALSHA EXISTS MGET HSCAN LLEN SCARD ZCARD XLEN CLUSTER OBJECT MEMORY`)

// changes are subcommands of these that change something.
var changes = []string{"CONFIG SET", "CONFIG RESETSTAT", "CONFIG REWRITE", "ACL SETUSER", "ACL DELUSER", "ACL LOAD", "ACL SAVE", "ACL LOG RESET", "SLOWLOG RESET",
	"CLIENT KILL", "CLIENT PAUSE", "CLUSTER RESET", "SCRIPT FLUSH"}

// TestNothingIsWrittenWithoutExecute runs all verbs that look at a server, with all their flags, through a
// proxy that records what they send.
func TestNothingIsWrittenWithoutExecute(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	s := redistest.Real(t)
	at := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }
	s.Do("SET", "lock:ghost", at(-48*time.Hour))
	s.Do("SET", "lock:live", at(time.Hour))
	s.Do("SET", "lock:token", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30")
	s.Do("HSET", "lock:hash", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30:41", "1")
	s.Do("ACL", "SETUSER", "old", "on", ">pw", "~*", "+@all")
	for _, args := range [][]string{{"init", "--match", "lock:*", "--dialect", "jedis-ms", "--shortest-lease", "30s"}, {"advance", "--to", "bridge"}} {
		code, _, stderr := lockmigrateIn(context.Background(), false, append(append([]string{"stage"}, args...), "--namespace", "orders", "--execute", "--redis", s.URL())...)
		require.Equal(t, exitDone, code, stderr)
	}
	proxy := redistest.NewProxy(t, s)
	var mu sync.Mutex
	var sent [][]string
	proxy.Before(func(words []string) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, slices.Clone(words))
	})
	dir := t.TempDir()
	verbs := [][]string{
		{"scan"}, {"scan", "--json", "--all", "--confidence", "low", "--match", "lock:*", "--ghost-after", "1m", "--rate", "10000"},
		{"observe", "--for", "200ms"},
		{"observe", "--for", "200ms", "--json", "--follow", "--group", "host", "--lease", "30s", "--match", "lock:*", "--profile", filepath.Join(dir, "p.json"), "--max-load", "20", "--max-buffer", "1", "--max-commands", "100000", "--snapshot", "100"},
		{"doctor", "--all"}, {"doctor", "--json", "--match", "lock:*", "--keys", "10"},
		{"verify", "--for", "300ms", "--burst", "0", "--no-census"},
		{"verify", "--for", "1s", "--json", "--longest-silence", "1s", "--match", "lock:*", "--burst", "100ms", "--every", "200ms", "--out", filepath.Join(dir, "c.json")},
		{"fence", "--user", "old", "--lock", "lock:x", "--keep", "cache:*"}, {"fence", "--remove", "testdata/fence.jsonl", "--user", "old", "--json"}, {"fence", "--watch", "250ms"},
		{"sweep"}, {"sweep", "--match", "lock:*", "--tokens", "--ttl", "1m", "--json", "--ghost-after", "2m", "--rate", "1", "--scan-rate", "100000", "--limit", "3", "--journal", filepath.Join(dir, "j")},
		{"stage", "--namespace", "orders"}, {"stage", "--namespace", "orders", "--json"},
		{"stage", "init", "--namespace", "other", "--match", "o:*", "--dialect", "jedis-ms", "--shortest-lease", "30s"},
		{"stage", "advance", "--namespace", "orders", "--force", "why", "--timeout", "1s"}, {"stage", "rollback", "--namespace", "orders"},
		{"verify", "--for", "300ms", "--burst", "0", "--namespace", "orders"}, {"verify", "--for", "300ms", "--monitor"},
		{"serve", "--listen", "127.0.0.1:0", "--namespace", "orders", "--burst", "100ms", "--every", "200ms", "--census-every", "100ms", "--match", "lock:*", "--group", "name", "--lease", "1s"},
	}
	before := stateOf(t, s)
	for _, args := range verbs {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if args[0] == "serve" {
			time.AfterFunc(time.Second, cancel) // it serves until it is interrupted
		}
		code, stdout, stderr := lockmigrateIn(ctx, false, append(slices.Clone(args), "--redis", proxy.URL())...)
		cancel()
		assert.Contains(t, []int{exitDone, exitUnsafe, exitInconclusive}, code, "%q: %s", args, stderr)
		assert.NotEmpty(t, stdout, "%q", args)
	}
	assert.Equal(t, before, stateOf(t, s))
	mu.Lock()
	defer mu.Unlock()
	assert.Greater(t, len(sent), 100)
	for _, words := range sent {
		assert.True(t, slices.Contains(reads, words[0]), "%q", words)
		line := strings.ToUpper(strings.Join(words, " "))
		for _, c := range changes {
			assert.False(t, strings.HasPrefix(line, c), "%q", words)
		}
	}
}

// stateOf is what a write would change: keys, users, settings, and the server's own count of changes.
func stateOf(t *testing.T, s *redistest.Server) string {
	t.Helper()
	info, err := redis.String(s.Do("INFO", "persistence"), nil)
	require.NoError(t, err)
	_, after, _ := strings.Cut(info, "rdb_changes_since_last_save:")
	dirty, _, _ := strings.Cut(after, "\r\n")
	users, err := redis.Strings(s.Do("ACL", "LIST"), nil)
	require.NoError(t, err)
	config, err := redis.Strings(s.Do("CONFIG", "GET", "*"), nil)
	require.NoError(t, err)
	return fmt.Sprint(dirty, users, config, s.Do("DBSIZE"), s.Value("lock:ghost"), s.Do("PTTL", "lock:ghost"), s.Do("PTTL", "lock:hash"))
}

// TestInterruptedTools interrupts each tool and wants it to end within a second, with what it knows, and
// with nothing of it left on the server.
func TestInterruptedTools(t *testing.T) {
	s := redistest.Real(t)
	s.Do("SET", "lock:a", fmt.Sprint(time.Now().Add(-48*time.Hour).UnixMilli()))
	for i := range 300 {
		s.Do("SET", fmt.Sprint("lock:g", i), fmt.Sprint(time.Now().Add(-48*time.Hour).UnixMilli()))
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"observe", "--for", "1h"}, "commands"},
		{[]string{"verify", "--for", "1h"}, "INCONCLUSIVE"},
		{[]string{"fence", "--watch", "1h"}, "denied"},
		{[]string{"sweep", "--match", "lock:*", "--execute", "--rate", "5", "--journal", filepath.Join(t.TempDir(), "j")}, "NOT ALL KEYS"},
		{[]string{"serve", "--listen", "127.0.0.1:0"}, "http://127.0.0.1:"},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		var at time.Time
		time.AfterFunc(700*time.Millisecond, func() { at = time.Now(); cancel() })
		_, stdout, stderr := lockmigrateIn(ctx, false, append(c.args, "--redis", s.URL())...)
		assert.Less(t, time.Since(at), time.Second, "%q", c.args)
		assert.False(t, at.IsZero(), "%q ended by itself: %s", c.args, stderr)
		assert.Contains(t, stdout, c.says, "%q", c.args)
		assert.Eventually(t, func() bool {
			list, _ := redis.String(s.Do("CLIENT", "LIST"), nil)
			return !strings.Contains(list, "name=lockmigrate")
		}, 5*time.Second, 10*time.Millisecond, "%q leaves a connection", c.args)
		cancel()
	}
}
