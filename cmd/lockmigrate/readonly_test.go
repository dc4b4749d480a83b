package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// reads are what a verb may send without --execute: nothing that changes a key, a user or a setting. EVAL
// is judged by the server: its count of changes must stand still.
var reads = strings.Fields(`PING SELECT AUTH CLIENT MONITOR INFO TIME SCAN GET GETRANGE STRLEN PTTL TYPE HLEN HGETALL HKEYS HVALS HGET HMGET DBSIZE ECHO CONFIG
	ACL COMMAND SLOWLOG ROLE EVAL EVALSHA EXISTS MGET HSCAN LLEN SCARD ZCARD XLEN CLUSTER OBJECT MEMORY`)

// changes are subcommands of these that change something.
var changes = []string{"CONFIG SET", "CONFIG RESETSTAT", "CONFIG REWRITE", "ACL SETUSER", "ACL DELUSER", "ACL LOAD", "ACL SAVE", "ACL LOG RESET", "SLOWLOG RESET",
	"CLIENT KILL", "CLIENT PAUSE", "CLUSTER RESET", "SCRIPT FLUSH"}

// TestNothingIsWrittenWithoutExecute: every command, with all its flags, leaves every key as it is, to the byte and the TTL, also where it could
// tidy up, and sends no command that writes, also from its scripts.
func TestNothingIsWrittenWithoutExecute(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t, "--enable-debug-command", "yes")
	o := operator{t, s.URL()}
	at := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }
	s.Do("ACL", "SETUSER", "old", "on", ">pw", "~*", "+@all")
	o.creates("orders", "lock.order.*")
	o.bridges("bills", "lock.bill.*")
	s.Do("SET", "lock.order.ghost", at(-48*time.Hour))
	s.Do("SET", "lock.bill.ghost", at(-48*time.Hour))
	s.Do("SET", "lock.bill.live", at(time.Hour))
	s.Do("HSET", "lock.order.hash", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30:41", "1")
	s.Do("SET", "lock.order.token", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30")
	for _, namespace := range []string{"orders", "bills"} { // members that have run out, have left, and live
		for id, entry := range map[string]string{
			"dead/1": `{"seq":1,"epoch":1,"stage":0,"lo":0,"hi":0,"seen":1,"ends":2,"longest":3,"skew":0,"info":"{}","why":""}`,
			"left/1": `{"seq":1,"left":5}`,
			"live/1": `{"seq":1,"epoch":1,"stage":0,"lo":0,"hi":0,"seen":` + at(0) + `,"ends":` + at(time.Hour) + `,"longest":3,"skew":0,"info":"{\"user\":\"old\"}","why":""}`,
		} {
			s.Do("HSET", stages.MembersKey(namespace), id, entry)
		}
	}
	dir := t.TempDir()
	monitor := s.Monitor()
	before := dumpOf(t, s)
	monitor.Everything()
	for _, args := range redistest.Rows(t, "testdata/readonly.txt") {
		for i, word := range args {
			args[i] = strings.Replace(word, "DIR", dir, 1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), hung)
		if args[0] == "serve" {
			time.AfterFunc(time.Second, cancel) // it serves until it is interrupted
		}
		code, stdout, stderr := lockmigrateIn(ctx, false, append(slices.Clone(args), "--redis", s.URL())...)
		cancel()
		assert.NotEqual(t, exitUsage, code, "%q: %s", args, stderr)
		assert.NotEmpty(t, stdout+stderr, "%q", args)
		sent := monitor.Everything()
		assert.NotEmpty(t, sent, "%q", args)
		for _, c := range sent {
			word := strings.ToUpper(c.Words[0])
			assert.True(t, slices.Contains(reads, word), "%q sends %q", args, c.Words)
			for _, change := range changes {
				assert.False(t, strings.HasPrefix(strings.ToUpper(strings.Join(c.Words, " ")), change), "%q sends %q", args, c.Words)
			}
		}
		assert.Equal(t, before, dumpOf(t, s), "%q changes the data", args)
		monitor.Everything() // what the look itself has sent
	}
}

// dumpOf is every key with its value and TTL, the digest of the whole, and the users.
func dumpOf(t *testing.T, s *redistest.Server) map[string]string {
	t.Helper()
	all := map[string]string{"digest": fmt.Sprint(s.Do("DEBUG", "DIGEST")), "users": fmt.Sprintf("%s", s.Do("ACL", "LIST")), "settings": fmt.Sprintf("%s", s.Do("CONFIG", "GET", "*"))}
	keys, err := redis.Strings(s.Do("KEYS", "*"), nil)
	require.NoError(t, err)
	for _, key := range keys {
		all[key] = fmt.Sprintf("%q %v", s.Do("DUMP", key), s.Do("PEXPIRETIME", key))
	}
	return all
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
		{[]string{"demo", "--act", "1h"}, "(not played to the end)"},
		{[]string{"scan", "--rate", "1"}, "NOT ALL OF THEM"},
		{[]string{"observe", "--for", "1h"}, "commands"},
		{[]string{"verify", "--for", "1h"}, "INCONCLUSIVE"},
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
		}, time.Minute, 10*time.Millisecond, "%q leaves a connection", c.args)
		cancel()
	}
}
