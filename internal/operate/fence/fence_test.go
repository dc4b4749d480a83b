package fence_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

// rules are the rules of a user, without the word sanitize-payload: it is the default, and the server writes
// it or not.
func rules(t *testing.T, s *redistest.Server, user string) string {
	t.Helper()
	list, err := redis.Strings(s.Do("ACL", "LIST"), nil)
	require.NoError(t, err)
	for _, r := range list {
		if strings.HasPrefix(r, "user "+user+" ") {
			return strings.Replace(r, "sanitize-payload ", "", 1)
		}
	}
	return ""
}

// gate puts fences up and takes them away, with a journal as the command has one.
type gate struct {
	t       *testing.T
	s       *redistest.Server
	conn    redis.Conn
	journal string
	lines   []byte // of it
}

func newGate(t *testing.T, s *redistest.Server) *gate {
	t.Helper()
	return &gate{t: t, s: s, conn: s.Conn(), journal: filepath.Join(t.TempDir(), "journal")}
}

// plan plans a fence for user old on lock:*, where the options do not say otherwise.
func (g *gate) plan(o fence.Options) *fence.Plan {
	g.t.Helper()
	if o.Users == nil {
		o.Users = []string{"old"}
	}
	if o.Locks == nil {
		o.Locks = []string{"lock:*"}
	}
	plans, err := fence.Make(g.t.Context(), g.conn, g.s.Addr, o)
	require.NoError(g.t, err)
	return &plans[0]
}

func (g *gate) execute(p *fence.Plan) error {
	return p.Execute(g.t.Context(), g.conn, g.record)
}

// record writes a line of the journal.
func (g *gate) record(e fence.Entry) error {
	line, err := json.Marshal(e)
	require.NoError(g.t, err)
	g.lines = append(append(g.lines, line...), '\n')
	return os.WriteFile(g.journal, g.lines, 0o600)
}

func (g *gate) up(o fence.Options) *fence.Plan {
	g.t.Helper()
	p := g.plan(o)
	require.Empty(g.t, p.Error)
	require.NoError(g.t, g.execute(p))
	return p
}

// back plans the way back.
func (g *gate) back() *fence.Plan {
	g.t.Helper()
	entries, err := fence.ReadJournal(g.journal)
	require.NoError(g.t, err)
	plans, err := fence.Back(g.t.Context(), g.conn, g.s.Addr, []string{"old"}, entries)
	require.NoError(g.t, err)
	return &plans[0]
}

func (g *gate) down() *fence.Plan {
	g.t.Helper()
	p := g.back()
	require.Empty(g.t, p.Error)
	require.NoError(g.t, g.execute(p))
	return p
}

// polled is what was denied since the last look.
func polled(t *testing.T, log *fence.Log, conn redis.Conn) []fence.Hit {
	t.Helper()
	hits, err := log.Poll(t.Context(), conn)
	require.NoError(t, err)
	return hits
}

// TestFence puts a fence up and takes it away, and wants every other right as it was.
func TestFence(t *testing.T) { onEach(t, upAndDown) }

func upAndDown(t *testing.T, s *redistest.Server) {
	s.Grant("old", "~*", "&*", "+@all", "-flushall", "(+get ~extra:*)")
	before := rules(t, s, "old")
	g := newGate(t, s)
	preview := g.plan(fence.Options{Keep: []string{"cache:*"}})
	assert.NotContains(t, preview.Now, "#", "no password hash is shown")
	assert.Equal(t, before, rules(t, s, "old"), "a preview changes nothing")
	require.NoError(t, g.execute(preview))

	legacy := s.ConnAs("old")
	log := fence.Log{}
	polled(t, &log, g.conn)
	_, err := legacy.Do("SETNX", "lock:orders", "1")
	assert.ErrorContains(t, err, "NOPERM")
	_, err = legacy.Do("EVAL", "return redis.call('GETSET', KEYS[1], '1')", 1, "lock:orders")
	assert.Error(t, err)
	_, err = legacy.Do("SETNX", "cache:x", "1")
	assert.NoError(t, err, "kept")
	_, err = legacy.Do("DEL", "lock:orders")
	assert.NoError(t, err, "what a fence cannot do")
	hits := polled(t, &log, g.conn)
	require.Len(t, hits, 2)
	for _, h := range hits {
		assert.Equal(t, "old", h.User)
		assert.Equal(t, redistest.AddrOf(t, legacy), h.Addr)
		assert.EqualValues(t, 1, h.Count)
	}
	assert.Empty(t, polled(t, &log, g.conn), "none counts twice")
	for range 3 {
		_, _ = legacy.Do("SETNX", "lock:orders", "1")
	}
	hits = polled(t, &log, g.conn)
	require.Len(t, hits, 1)
	assert.EqualValues(t, 3, hits[0].Count)

	assert.Contains(t, g.plan(fence.Options{Keep: []string{"tmp:*"}}).Error, "take an earlier fence away first")
	g.down()
	assert.Equal(t, before, rules(t, s, "old"), "every right is as it was")
	_, err = legacy.Do("SETNX", "lock:orders", "1")
	assert.NoError(t, err)
	assert.Contains(t, g.back().Note, "the rules are those of before the fence")

	_, err = fence.Make(t.Context(), g.conn, s.Addr, fence.Options{Users: []string{"nobody"}, Locks: []string{"lock:*"}})
	assert.ErrorContains(t, err, "nobody")
}

// TestAFullLog has a client be denied that the full log has already, with as many of others in between as keep the server from joining the two: the
// log then looks as before. A log whose entries are all new may have lost some.
func TestAFullLog(t *testing.T) { onEach(t, aFullLog) }

func aFullLog(t *testing.T, s *redistest.Server) {
	t.Parallel()
	s.Grant("old", "~lock:*", "+@all", "-setnx")
	old, conn, log := s.ConnAs("old"), s.Conn(), fence.Log{}
	for _, look := range []struct {
		words                string
		rounds, others, hits int
		forgot               bool
	}{
		{"PING", 12, 11, 0, false}, // before the first look
		{"PING", 0, 0, 0, false}, {"PING", 1, 11, 1, false}, {"PING", 12, 11, 11, true}, {"PING", 0, 0, 0, false}, {"ACL LOG RESET", 1, 0, 1, true}, {"PING", 1, 0, 1, false},
	} {
		time.Sleep(300 * time.Millisecond) // within less two looks cannot tell an entry from another one like it
		words := strings.Fields(look.words)
		s.Do(words[0], redis.Args{}.AddFlat(words[1:])...)
		for range look.rounds {
			for other := range look.others {
				_, _ = old.Do("EXPIRE", fmt.Sprint("other", other), 1)
			}
			_, _ = old.Do("SETNX", "lock:orders", "1")
		}
		hits := polled(t, &log, conn)
		assert.Len(t, hits, look.hits, look)
		for _, h := range hits {
			assert.Equal(t, []any{"SETNX", int64(1)}, []any{h.Command, h.Count}, look)
		}
		assert.Equal(t, look.forgot, log.Forgot, look)
	}
	_, _ = old.Do("SETEX", "other", 1, 1)
	_, _ = old.Do("DEL", "other") // the entry names only this one
	hits := polled(t, &log, conn)
	require.Len(t, hits, 1)
	assert.Equal(t, fence.Joined, hits[0].Command)
}

// abilities are what ACL DRYRUN says of some commands on some keys.
func abilities(t *testing.T, s *redistest.Server, user string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, key := range []string{"lock:1", "lock:17x", "lock:x1", "lock:(1)", "lock:a(b", "app(1)x", "other"} {
		for _, command := range [][]any{{"SETNX", key, "1"}, {"GETSET", key, "1"}, {"SET", key, "1"}, {"GET", key}, {"DEL", key}, {"INCR", key}, {"LPUSH", key, "1"}, {"KEYS", "*"}} {
			said, err := redis.String(s.Do("ACL", append([]any{"DRYRUN", user}, command...)...), nil)
			require.NoError(t, err)
			all[strings.TrimSpace(fmt.Sprintln(command...))] = said
		}
	}
	return all
}

// ruleOf are the words of a rule as testdata has it: _ is a blank, and \u00a0 a character.
func ruleOf(t *testing.T, row []string) (words []string) {
	t.Helper()
	for _, word := range row {
		word, err := strconv.Unquote(`"` + strings.ReplaceAll(word, "_", " ") + `"`)
		require.NoError(t, err, row)
		words = append(words, word)
	}
	return words
}

// TestUpAndBack puts fences up for the users of testdata/users.txt and takes them away. A rule that looks like a fence is not called one; executed,
// the fence stands for every key; taken away, every right is as before.
func TestUpAndBack(t *testing.T) { onEach(t, upAndBack) }

func upAndBack(t *testing.T, s *redistest.Server) {
	s.Do("ACL", "SETUSER", "default", "resetkeys", "~none")
	for _, row := range redistest.Rows(t, "testdata/users.txt") {
		s.Grant("old", ruleOf(t, row[4:])...)
		before, could := rules(t, s, "old"), abilities(t, s, "old")
		g := newGate(t, s)
		var up *fence.Plan
		for i, name := range strings.Split(row[2], ",") {
			o := fence.Options{All: name == "with-set"}
			if up = g.plan(o); i == 0 {
				assert.EqualValues(t, row[0], up.Verdict, row)
				assert.Equal(t, row[0] == "open", !up.Obligations[0].Discharged, row)
				assert.Equal(t, row[0] == "open", !strings.Contains(up.Note, "fenced already"), row)
			}
			require.NoError(t, g.execute(up))
			assert.Contains(t, g.plan(o).Note, "fenced already", row)
		}
		assert.EqualValues(t, row[1], up.Verdict, "%v: %v", row, up.Obligations)
		for _, key := range []string{"lock:1", "lock:17x", "lock:1x", "lock:x1", "lock:(1)", "lock:a(b"} {
			takes := [][]any{{"SETNX", key, "1"}, {"GETSET", key, "1"}}
			if strings.Contains(row[2], "with-set") {
				takes = append(takes, []any{"SET", key, "1", "NX"}, []any{"SETEX", key, "9", "1"}, []any{"RENAMENX", "other", key}, []any{"MSETNX", "other", "1", key, "1"})
			}
			for _, command := range takes {
				assert.NotEqual(t, "OK", s.Do("ACL", append([]any{"DRYRUN", "old"}, command...)...), "%v: %v", row, command)
			}
		}
		require.Contains(t, could, "DEL lock:1")
		assert.Equal(t, could["DEL lock:1"], abilities(t, s, "old")["DEL lock:1"], row)
		if row[0] == "open" {
			g.down()
		}
		assert.Equal(t, could, abilities(t, s, "old"), row)
		if row[3] == "same" { // 7.0 writes the same rights in other words where a selector has a category
			assert.Equal(t, before, rules(t, s, "old"))
		}
	}
}

// TestBackGivesNoRight: a right that somebody took away after the fence went up does not come back with it, and the plan says how to give back the
// rest by hand. A change whose end the journal does not know is taken back.
func TestBackGivesNoRight(t *testing.T) {
	s := redistest.Real(t)
	s.Grant("old", "~*", "&*", "+@all")
	g := newGate(t, s)
	g.up(fence.Options{})
	s.Do("ACL", "SETUSER", "old", "-flushall")
	now := rules(t, s, "old")
	back := g.back()
	assert.Contains(t, back.Error, "the rules were changed since the fence went up")
	assert.Equal(t, []string{"ACL", "SETUSER", "old", "-@all", "+@all"}, back.Restore)
	require.NoError(t, g.execute(back))
	assert.Equal(t, now, rules(t, s, "old"))

	torn := filepath.Join(t.TempDir(), "torn")
	text, err := os.ReadFile(g.journal)
	require.NoError(t, err)
	for more, fences := range map[string]int{`{"at":"2026-`: 1, "{\"at\":\"2026-\n{\"user\":\"other\",\"before\":\"user other off\"}\n": 2} {
		require.NoError(t, os.WriteFile(torn, append(bytes.Clone(text), more...), 0o600))
		entries, err := fence.ReadJournal(torn)
		require.NoError(t, err)
		assert.Len(t, entries, fences, more)
	}
	require.NoError(t, os.WriteFile(torn, nil, 0o600))
	_, err = fence.ReadJournal(torn)
	assert.ErrorContains(t, err, "holds no fence")

	for _, lines := range []int{1, 2} { // a crash right behind the change, and none
		s.Grant("old", "~*", "&*", "+@all")
		before := rules(t, s, "old")
		g = newGate(t, s)
		p := g.plan(fence.Options{})
		written := 0
		err := p.Execute(t.Context(), g.conn, func(e fence.Entry) error {
			assert.Equal(t, written == 0, rules(t, s, "old") == before, "the journal is written before the change, and behind it")
			if written++; written > lines {
				return assert.AnError
			}
			return g.record(e)
		})
		assert.Equal(t, lines == 1, err != nil)
		g.down()
		assert.Equal(t, before, rules(t, s, "old"))
	}

	p := newGate(t, s).plan(fence.Options{})
	before := rules(t, s, "old")
	assert.ErrorContains(t, p.Execute(t.Context(), g.conn, func(fence.Entry) error { return assert.AnError }), "nothing was changed")
	assert.Equal(t, before, rules(t, s, "old"))
}

// TestSelectorMeanwhile adds a selector between the plan and the fence: the server is asked about its keys too, and the change is taken back.
func TestSelectorMeanwhile(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server) {
		s.Grant("old", "~*", "&*", "+@all")
		g := newGate(t, s)
		p := g.plan(fence.Options{})
		s.Do("ACL", "SETUSER", "old", "(+setnx ~lock:17*)")
		before := rules(t, s, "old")
		assert.ErrorContains(t, g.execute(p), "SETNX lock:17 1 would be allowed instead of denied; the change is taken back")
		assert.Equal(t, before, rules(t, s, "old"))
		assert.False(t, p.Unsure)
	})
}

// TestBackAfterARestart: the rules that a server reads from its file are those of before.
func TestBackAfterARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users.acl")
	require.NoError(t, os.WriteFile(file, []byte("user default on nopass ~* &* +@all\n"), 0o600))
	s := redistest.Real(t, "--aclfile", file)
	s.Grant("old", "~*", "&*", "+@all", "-flushall", "(~lock:* +@write)", "(~x +get)")
	could := abilities(t, s, "old")
	g := newGate(t, s)
	g.up(fence.Options{Keep: []string{"cache:*"}})
	s.Do("ACL", "SAVE")
	s.Kill()
	s.Start()
	g.conn = s.Conn()
	g.down()
	assert.Equal(t, could, abilities(t, s, "old"))
}

// TestWhatAFenceTakes: the plan names the user's connections, and how often the commands are called.
func TestWhatAFenceTakes(t *testing.T) {
	s := redistest.Real(t)
	s.Grant("old", "~*", "&*", "+@all")
	conn := s.ConnAs("old")
	_, err := conn.Do("CLIENT", "SETNAME", "billing")
	require.NoError(t, err)
	s.ConnAs("old") // idle
	sending, stop := context.WithCancel(t.Context())
	var sent sync.WaitGroup
	sent.Go(func() {
		for sending.Err() == nil {
			_, _ = conn.Do("SETNX", "cache:1", "1")
		}
	})
	takes := newGate(t, s).plan(fence.Options{Keep: []string{"tmp:*"}, Sample: 200 * time.Millisecond}).Takes
	stop()
	sent.Wait()
	assert.Equal(t, fence.Denied, takes.Commands)
	assert.Equal(t, []string{"tmp:*"}, takes.Keep)
	assert.Equal(t, 2, takes.Connections)
	assert.Equal(t, 1, takes.Sent)
	assert.Equal(t, map[string]int64{"billing": 1, "127.0.0.1": 1}, takes.Names)
	require.Len(t, takes.Rates, 2)
	assert.Greater(t, takes.Rates[0].Now, 10.0)
	assert.Zero(t, takes.Rates[1].Now)
}

// TestKeepGivesNoRight refuses to keep what the user does not have, and a lock.
func TestKeepGivesNoRight(t *testing.T) { onEach(t, keepGivesNoRight) }

func keepGivesNoRight(t *testing.T, s *redistest.Server) {
	g := newGate(t, s)
	for _, words := range [][]string{{"~lock:*", "+@all"}, {"~*", "+get"}, {"~*", "+@all", "-setnx"}} {
		s.Grant("old", words...)
		p := g.plan(fence.Options{Keep: []string{"cache:*"}})
		assert.NotEmpty(t, p.Error, words)
		assert.Empty(t, p.Command)
	}
	_, err := fence.Make(t.Context(), g.conn, s.Addr, fence.Options{Users: []string{"old"}, Locks: []string{"lock:*"}, Keep: []string{"l*"}})
	assert.ErrorContains(t, err, "is a lock")
}

// TestFencedNeedsEverybody wants the verdict fenced only where no user is left who can take a legacy lock.
func TestFencedNeedsEverybody(t *testing.T) { onEach(t, fencedNeedsEverybody) }

func fencedNeedsEverybody(t *testing.T, s *redistest.Server) {
	g := newGate(t, s)
	s.Grant("old", "~*", "+@all", "-setnx", "-getset")
	verdict := func() (fence.Verdict, string) {
		p, said := g.plan(fence.Options{}), ""
		for _, o := range p.Obligations {
			if !o.Discharged {
				said += o.ID + ": " + o.Evidence + "\n"
			}
		}
		return p.Verdict, said
	}
	_, said := verdict()
	assert.Contains(t, said, "ACL has no rule about an option: SET NX")
	for _, row := range redistest.Rows(t, "testdata/everybody.txt") {
		if len(row) > 2 {
			s.Do("ACL", redis.Args{"SETUSER"}.AddFlat(row[2:])...)
		}
		got, said := verdict()
		assert.EqualValues(t, row[0], got, "%v: %s", row, said)
		if user, spared := strings.CutPrefix(row[1], "not:"); spared {
			assert.NotContains(t, said, "user "+user, row)
		} else if row[1] != "-" {
			assert.Contains(t, said, "user "+row[1]+" may run ", row)
		}
	}

	s.Do("ACL", "SETUSER", "gone", "on", "nopass", "~*", "+@all")
	gone := s.ConnAs("gone")
	s.Do("ACL", "SETUSER", "gone", "off")
	_, err := gone.Do("SETNX", "lock:x", "1")
	require.NoError(t, err, "a user that is off keeps its connections")
	got, said := verdict()
	assert.Equal(t, fence.Partly, got, said)
	assert.Contains(t, said, "gone (off, but connected)")
	s.Do("ACL", "SETUSER", "ops", "-client|list")
	ops := s.ConnAs("ops")
	s.Do("CLIENT", "KILL", "USER", "gone")
	got, said = verdict()
	assert.Equal(t, fence.Fenced, got, said)
	g.conn = ops
	got, said = verdict()
	assert.Equal(t, fence.Partly, got, "nobody can tell whether the user is connected")
	assert.Contains(t, said, "client|list")
}

// TestACLRenamed does not call a new server an old one.
func TestACLRenamed(t *testing.T) {
	s := redistest.Real(t, "--rename-command", "ACL", "xacl")
	_, err := fence.Make(context.Background(), s.Conn(), s.Addr, fence.Options{Users: []string{"old"}, Locks: []string{"lock:*"}})
	assert.ErrorContains(t, err, "renamed")
	assert.NotContains(t, err.Error(), "older")
}

// TestExecuteTakesBack has the server disagree with the plan, and wants the rules as before, also where a
// pattern holds parentheses.
func TestExecuteTakesBack(t *testing.T) { onEach(t, executeTakesBack) }

func executeTakesBack(t *testing.T, s *redistest.Server) {
	s.Grant("old", "~app(1)*", "~*", "+@all", "(+setnx +get ~x(1))")
	g := newGate(t, s)
	p := g.plan(fence.Options{Locks: []string{"lock:x"}})
	s.Do("ACL", "SETUSER", "old", "(+@all ~app(2)*)") // somebody changes the user in between
	before := rules(t, s, "old")
	p.Command = []string{"ACL", "SETUSER", "old", "-setnx", "-getset", "(+setnx ~lock*)"}
	assert.ErrorContains(t, p.Execute(t.Context(), g.conn, nil), "taken back")
	assert.Equal(t, before, rules(t, s, "old"))
}
