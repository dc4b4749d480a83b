package scripts_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// TestScriptsFailClean runs every script in every situation against every obstacle on a real server, and
// compares the data before and after. It holds every script to this:
//
//   - A script that answers with an error has not taken the lock.
//   - A script that says it took the lock did so completely.
//   - No script leaves a key without a TTL, except where its success does so by design.
//   - A script that gives back frees the lock wherever this user may read and delete its keys on this server.
//   - A script that extends does so wherever this user may read the keys and set their TTL, or their value.
//   - A script that gives back, extends or replaces does not answer that the lock is not ours where it is: a refusal is
//     an error.
//
// The commands that are denied are read from the scripts themselves, and the scripts come from scripts.All: a new
// script fails here until it has a situation.
func TestScriptsFailClean(t *testing.T) {
	b := newObstacleBench(t)
	covered := map[string]bool{}
	for _, s := range situations(t) {
		covered[s.script.Name] = true
		t.Run(s.script.Name+"/"+s.name, func(t *testing.T) {
			want := b.run(t, s, nil)
			if s.code != "" {
				require.Equal(t, s.code, want.code, "the situation is not what its name says: %+v", want)
			}
			single := obstaclesOf(s)
			for _, o := range single {
				b.judge(t, s, want, o)
			}
			g := rand.New(rand.NewPCG(1, uint64(len(s.name))))
			for range 60 {
				b.judge(t, s, want, single[g.IntN(len(single))], single[g.IntN(len(single))])
			}
		})
	}
	for _, s := range scripts.All() {
		require.True(t, covered[s.Name], "%s has no situation in this test", s.Name)
	}
}

// situation is one call of one script, on data that lead it down one of its paths.
type situation struct {
	script *scripts.Script
	name   string
	code   string  // what the reply begins with where nothing is in the way; empty: not checked
	before [][]any // commands
	keys   []string
	args   []any
	locks  int    // how many of the keys, from the first, make the lock taken
	ours   string // what these keys hold while the lock is ours
	proof  string // another key that says whose it is
	trial  string // a script: with these rights alone the job can be done; ARGV: ours, and how many of KEYS are of the lock
}

// obstacle is what may be in a script's way.
type obstacle struct {
	name string
	acl  []string   // rules for the user that calls
	data [][]any    // commands that change the data before the call
	put  [][]string // CONFIG SET and the like, before the call
	back [][]string // and after it
}

var called = regexp.MustCompile(`redis\.p?call\('(\w+)'`)

func obstaclesOf(s situation) []obstacle {
	var all []obstacle
	commands := []string{}
	for _, m := range called.FindAllStringSubmatch(s.script.Source, -1) {
		if c := strings.ToLower(m[1]); !slices.Contains(commands, c) {
			commands = append(commands, c)
		}
	}
	for _, c := range commands {
		all = append(all, obstacle{name: "no " + c, acl: []string{"-" + c}})
	}
	distinct := slices.Compact(slices.Clone(s.keys))
	for i, key := range distinct {
		only := func(mode, name string) obstacle {
			rules := []string{"resetkeys"}
			for _, other := range distinct {
				if other != key {
					rules = append(rules, "~"+other)
				}
			}
			if mode != "" {
				rules = append(rules, "%"+mode+"~"+key)
			}
			return obstacle{name: name + " " + key, acl: rules}
		}
		all = append(all, only("", "no right to"), only("R", "no right to write"), only("W", "no right to read"))
		if i == 0 && s.locks == 0 {
			continue
		}
		for _, value := range [][]any{{"HSET", key, "f", "v"}, {"RPUSH", key, "v"}, {"ZADD", key, "inf", "v"}, {"SET", key, "x"}, {"SET", key, "9e99"},
			{"SET", key, "nan"}, {"SET", key, "9223372036854775807"}, {"SET", key, ""}, {"SET", key, "99999999999999999999 99999999999999999999"}} {
			all = append(all, obstacle{name: fmt.Sprintf("%v", value), data: [][]any{{"DEL", key}, value, {"PEXPIRE", key, 50_000}}})
		}
	}
	for _, key := range distinct {
		all = append(all, obstacle{name: "may set only " + key, acl: []string{"-set", "(+set ~" + key + ")"}})
	}
	server := func(name string, put, back []string) obstacle {
		return obstacle{name: name, put: [][]string{put}, back: [][]string{back}}
	}
	return append(all,
		obstacle{name: "no channel", acl: []string{"resetchannels"}},
		obstacle{name: "no dangerous commands", acl: []string{"-@dangerous"}},
		server("out of memory", []string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}),
		server("too few replicas", []string{"CONFIG", "SET", "min-replicas-to-write", "1"}, []string{"CONFIG", "SET", "min-replicas-to-write", "0"}),
		server("a replica", []string{"REPLICAOF", "127.0.0.1", "1"}, []string{"REPLICAOF", "NO", "ONE"}),
	)
}

type obstacleBench struct {
	s             *redistest.Server
	admin, tester redis.Conn
	listener      redis.PubSubConn
}

func newObstacleBench(t *testing.T) *obstacleBench {
	s := redistest.Real(t)
	b := &obstacleBench{s: s, admin: s.Conn()}
	b.user(t)
	listening, err := redis.DialContext(context.Background(), "tcp", s.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listening.Close() })
	b.listener = redis.PubSubConn{Conn: listening}
	require.NoError(t, b.listener.Subscribe("heard"))
	b.listener.Receive()
	return b
}

func (b *obstacleBench) user(t *testing.T, rules ...string) {
	args := []any{"SETUSER", "tester", "reset", "on", "nopass", "~*", "&*", "+@all"}
	for _, r := range rules {
		args = append(args, r)
	}
	_, err := b.admin.Do("ACL", args...)
	require.NoError(t, err, "%v", rules)
	if b.tester != nil && b.tester.Err() == nil {
		return
	}
	b.tester = b.s.Conn()
	_, err = b.tester.Do("AUTH", "tester", "any")
	require.NoError(t, err)
}

// outcome is what a call left, and said.
type outcome struct {
	code          string // the reply's first element, or the first word of the error
	err           error
	before, after map[string]entry
	possible      bool // with the same rights on the same server the job could be done
}

type entry struct {
	value string
	ttl   int64
}

// run puts the obstacles, calls the script, and takes the obstacles away.
func (b *obstacleBench) run(t *testing.T, s situation, obstacles []obstacle) outcome {
	t.Helper()
	do := func(args ...any) {
		_, err := b.admin.Do(args[0].(string), args[1:]...)
		require.NoError(t, err, "%v", args)
	}
	do("FLUSHALL")
	for _, command := range s.before {
		do(command...)
	}
	var rules []string
	for _, o := range obstacles {
		for _, command := range o.data {
			do(command...)
		}
		rules = append(rules, o.acl...)
	}
	b.user(t, rules...)
	for _, o := range obstacles {
		for _, command := range o.put {
			do(boxedWords(command)...)
		}
	}
	out := outcome{before: b.dump(t)}
	fits(t, s.script, s.script.Keys, len(s.keys))
	fits(t, s.script, s.script.Args, len(s.args))
	args := append(boxedWords(s.keys), s.args...)
	reply, err := b.tester.Do("EVAL", append([]any{s.script.Source, len(s.keys)}, args...)...)
	out.err = err
	switch v := reply.(type) {
	case []any:
		out.code = fmt.Sprint(v[0])
	case []byte:
		out.code = string(v)
	default:
		out.code = fmt.Sprint(v)
	}
	if err != nil {
		out.code, _, _ = strings.Cut(err.Error(), " ")
	}
	out.after = b.dump(t)
	if s.trial != "" {
		_, err := b.tester.Do("EVAL", append(append([]any{s.trial, len(s.keys)}, boxedWords(s.keys)...), s.ours, s.locks)...)
		out.possible = err == nil
	}
	for _, o := range obstacles {
		for _, command := range o.back {
			do(boxedWords(command)...)
		}
	}
	return out
}

// fits holds a situation to the script's header: none has an argument too few or too many.
func fits(t *testing.T, s *scripts.Script, list []scripts.Argument, n int) {
	t.Helper()
	if len(s.Words) > 0 && n == 1 {
		return // one argument of all words
	}
	least := len(list)
	for least > 0 && list[least-1].Optional {
		least--
	}
	require.True(t, n >= least && (n <= len(list) || list[len(list)-1].Rest), "%s: %d values for %v", s.Name, n, list)
}

func (b *obstacleBench) dump(t *testing.T) map[string]entry {
	t.Helper()
	keys, err := redis.Strings(b.admin.Do("KEYS", "*"))
	require.NoError(t, err)
	all := map[string]entry{}
	for _, key := range keys {
		require.NoError(t, b.admin.Send("DUMP", key))
		require.NoError(t, b.admin.Send("GET", key))
		require.NoError(t, b.admin.Send("PTTL", key))
		require.NoError(t, b.admin.Flush())
		dumped, err := redis.String(b.admin.Receive())
		if err != nil {
			dumped = ""
		}
		plain, err := redis.String(b.admin.Receive())
		if err != nil {
			plain = dumped
		}
		ttl, err := redis.Int64(b.admin.Receive())
		require.NoError(t, err)
		if dumped != "" {
			all[key] = entry{plain, ttl}
		}
	}
	return all
}

// bare tells that a call did to a key what a GETSET does on a bare server, and nothing else: over a value that is no token the sidecar's
// service loses, or nobody knows. The reply is that value, the service's own text stands in its place, and no other key has changed.
func (s situation) bare(key string, got outcome) bool {
	if s.script != scripts.SidecarTake || key != s.keys[0] || got.err != nil {
		return false
	}
	was, there := got.before[key]
	sent := strings.Fields(s.args[0].(string))
	for other, before := range got.before {
		if other != key && got.after[other].value != before.value {
			return false
		}
	}
	return there && (sent[1] == "getset" || sent[1] == "lose") && got.code == was.value && !strings.Contains(was.value, s.ours) &&
		got.after[key].value == sent[len(sent)-1] && len(got.after) == len(got.before)
}

// judge runs the script against the obstacles and compares.
func (b *obstacleBench) judge(t *testing.T, s situation, want outcome, obstacles ...obstacle) {
	t.Helper()
	got := b.run(t, s, obstacles)
	var names []string
	touched := false // the situation is another one
	for _, o := range obstacles {
		names = append(names, o.name)
		for _, d := range o.data {
			touched = touched || slices.Contains(s.keys[:s.locks], d[1].(string)) || d[1] == s.proof
		}
	}
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: %s\nreply  %s %v\nbefore %v\nafter  %v", strings.Join(names, " and "), fmt.Sprintf(format, args...), got.code, got.err, got.before, got.after)
	}
	if got.err != nil && !errors.As(got.err, new(redis.Error)) {
		fail("the connection broke")
		return
	}
	succeeded := got.err == nil && got.code == want.code
	for key, now := range got.after {
		was, there := got.before[key]
		byDesign := got.err == nil && (succeeded || touched) && want.after[key].ttl == -1
		if now.ttl == -1 && (!there || was.ttl != -1) && !byDesign && !s.bare(key, got) {
			fail("%s has no TTL", key)
		}
	}
	code, _ := strconv.Atoi(got.code)
	whole := got.err == nil && (code > 0 || got.code == "<nil>") // says that the lock is ours: all keys must say so
	for _, key := range s.keys[:s.locks] {
		whole = whole && strings.Contains(got.after[key].value, s.ours) && got.after[key].ttl > 0
	}
	for _, key := range s.keys[:s.locks] {
		now, there := got.after[key]
		was, before := got.before[key]
		meant, taken := want.after[key]
		unchanged := before && now.value == was.value
		granted := got.err == nil && now.value != s.ours && now.ttl > 0
		switch {
		case !there, now.ttl == 0 || now.ttl == 1: // gone, or as good as gone
			if succeeded && !touched && taken {
				fail("said %s, and %s is gone", got.code, key)
			}
		case got.err != nil && !unchanged:
			fail("%s was written", key)
		case got.err != nil || touched || whole:
		case succeeded && code > 0 && (!taken || (now.value == s.ours) != (meant.value == s.ours) || (now.ttl == -1) != (meant.ttl == -1)):
			fail("said %s, but %s is not what it is then: %v", got.code, key, meant)
		case !succeeded && !unchanged && !granted:
			fail("said %s, but %s was written", got.code, key)
		}
	}
	if s.trial != "" && got.err == nil && got.code == "0" && want.code != "0" && !touched {
		fail("said that the lock is not ours, and it is")
	}
	if s.trial != "" && got.possible && !touched && !succeeded {
		if got.err != nil {
			fail("it can be done with these rights, and was not")
			return
		}
		for _, key := range s.keys[:s.locks] {
			if got.after[key].value == s.ours {
				fail("%s is still ours", key)
			}
		}
	}
}

// TestAPollingWaiterNeedsNoChannel: a waiter that listens nowhere is given the key also by a user who has the right to no channel, and nothing is refused.
func TestAPollingWaiterNeedsNoChannel(t *testing.T) {
	s := redistest.Real(t)
	s.Grant("few", "~*", "+@all")
	s.Do("SET", "lock", "mine", "PX", 10000)
	s.Do("ZADD", "queue", 1, "1000 0 0 - theirs")
	reply, err := s.ConnAs("few").Do("EVAL", scripts.ModernRelease.Source, 3, "lock", "queue", "guard", "mine")
	require.NoError(t, err)
	require.EqualValues(t, 2, reply)
	require.Equal(t, "theirs", s.Value("lock"))
	require.Empty(t, s.Do("ACL", "LOG"))
}
