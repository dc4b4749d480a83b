package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// TestEveryWrite takes each server's own COMMAND table and sends every command that it says writes: with a lock's key at every place where
// COMMAND GETKEYS finds a key, alone, in MULTI, in a script, and from another database. With MONITOR and by the counters alone, none of
// them leaves none-seen. With other keys, MONITOR and the counters agree, and the verdict is none-seen.
func TestEveryWrite(t *testing.T) { redistest.EachVersion(t, redistest.Names(), everyWrite) }

// TestQueueWorkers has clients that wait for work, as servers are full of. One that takes work from a queue is accounted for, whenever its server
// counts it; one that moves it to a key that nobody saw is not.
func TestQueueWorkers(t *testing.T) { redistest.EachVersion(t, redistest.Names(), queueWorkers) }

func queueWorkers(t *testing.T, s *redistest.Server) {
	wait := func(conn redis.Conn, words ...any) {
		require.NoError(t, conn.Send(words[0].(string), words[1:]...))
		require.NoError(t, conn.Flush())
		redistest.Await(t, "a client that waits", func() bool {
			list, _ := redis.String(s.Do("CLIENT", "LIST"), nil)
			return strings.Contains(list, "flags=b")
		})
	}
	worker := s.Conn()
	wait(worker, "BRPOP", "queue", 30)
	l := newLab(t, s)
	for range 3 {
		verdict, _, why := l.judge(func() {
			l.do("LPUSH", "queue", "work")
			_, err := worker.Receive()
			require.NoError(t, err)
			wait(worker, "BRPOP", "queue", 30)
		})
		assert.Equal(t, NoneSeen, verdict, why)
	}
	l.do("LPUSH", "queue", "work")
	_, err := worker.Receive()
	require.NoError(t, err)

	wait(worker, "BRPOPLPUSH", "queue", "lock:a", 30)
	l.facts.Breaks = nil
	l.closeTap("")
	l.awaitParked(t.Context()) // without MONITOR it does not wait for the next command
	assert.Contains(t, strings.Join(l.facts.Breaks, " "), "BRPOPLPUSH of ")
	l.do("LPUSH", "queue", "work")
	_, err = worker.Receive()
	require.NoError(t, err)
}

// lab judges one command at a time, between two looks of one MONITOR.
type lab struct {
	*testing.T
	*master
	client redis.Conn
}

func newLab(t *testing.T, s *redistest.Server) *lab {
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	q := &inquiry{end: end, prefix: markPrefix + "lab-", opts: Options{Whole: true}}
	q.opts.Match = []string{"lock:*"}
	m, err := newMaster(t.Context(), q, s.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { m.closeTap(""); _ = m.conn.Close() })
	require.NoError(t, m.begin(t.Context()))
	require.Empty(t, m.facts.Breaks)
	require.NotNil(t, m.tap)
	return &lab{t, m, s.Conn()}
}

func (l *lab) do(words ...any) any {
	reply, err := redis.DoWithTimeout(l.client, 10*time.Second, words[0].(string), words[1:]...)
	if err == nil {
		return reply
	}
	_, refused := err.(redis.Error)
	require.True(l.T, refused, "%v: %v", words, err)
	return err
}

// judge lets something happen between two looks. It returns the verdict with MONITOR, and by the counters alone.
func (l *lab) judge(happens func()) (watched, counted Verdict, why string) {
	l.hot = time.Time{} // so many looks may keep the server busy
	require.NoError(l.T, l.look(l.Context()))
	clear(l.commands)
	clear(l.acts)
	l.seen = 0
	a := l.last
	happens()
	require.NoError(l.T, l.look(l.Context()))
	require.Equal(l.T, l.tap, l.by, "MONITOR shows the look")
	legacy, others := l.found()
	judge := func(m *master, seen, unexplained []Client) (Verdict, string) {
		e := clean()
		e.Masters[0].Writes, e.Masters[0].Commands, e.Masters[0].Unexplained = m.facts.Writes, m.tallied(), m.seen
		e.Seen, e.Unexplained = seen, unexplained
		verdict, why, _ := Judge(e)
		return verdict, why
	}
	watched, why = judge(l.master, legacy, others)
	bare := &master{table: l.table, last: l.last, facts: Master{Writes: l.facts.Writes}, commands: map[string]*Command{}}
	bare.account(a, l.last, nil, nil, false)
	counted, _ = judge(bare, nil, nil)
	return watched, counted, why
}

// words are those of a command, as few as it takes and up to two more, as the server itself says.
func (l *lab) words(name string, more int) []string {
	words := strings.Split(strings.ToUpper(name), "|")
	info, err := redis.Values(l.client.Do("COMMAND", "INFO", name))
	require.NoError(l.T, err)
	row, err := redis.Values(info[0], nil)
	require.NoError(l.T, err)
	arity, err := redis.Int(row[1], nil)
	require.NoError(l.T, err)
	if arity > 0 {
		more = 0
	}
	for len(words) < max(arity, -arity)+more {
		words = append(words, "1")
	}
	return words
}

// forms are words that send a command with a key at each place where the server finds one.
func (l *lab) forms(name, key string) (all [][]string) {
	var tried [][]string
	for more := range 3 {
		for at := 1; at < len(l.words(name, more)); at++ {
			words := l.words(name, more)
			words[at] = key
			tried = append(tried, words)
		}
	}
	if name == "xreadgroup" {
		tried = nil // its keys stand behind its options
	}
	tried = append(tried, l.table.Forms(name, key, "1")...)
	found := map[int]bool{}
	for _, words := range tried {
		keys, err := redis.Strings(l.client.Do("COMMAND", redis.Args{"GETKEYS"}.AddFlat(words)...))
		if err != nil && strings.Contains(err.Error(), "Unknown subcommand") { // 2.8
			keys, _ = l.table.Touched(&traffic.Command{Words: words})
		}
		if at := slices.Index(words, key); slices.Contains(keys, key) && !found[at] {
			found[at] = true
			all = append(all, words)
		}
	}
	return all
}

func everyWrite(t *testing.T, s *redistest.Server) {
	l := newLab(t, s)
	elsewhere := s.Conn()
	_, err := elsewhere.Do("SELECT", 5)
	require.NoError(t, err)
	began, sent, ran, quiet := time.Now(), 0, 0, 0
	calls := func(name string) int64 { return l.last.stats[name].Calls }
	for _, name := range l.table.Writers() {
		forms, everywhere := l.forms(name, "lock:a"), l.table.Everywhere(&traffic.Command{Words: strings.Split(strings.ToUpper(name), "|")})
		if everywhere {
			forms = [][]string{l.words(name, 0)}
		}
		require.NotEmpty(t, forms, name)
		for _, words := range forms {
			explained := name == "delifeq" || name == "delex" && len(words) > 2 && words[2] == "IFEQ"
			for what, send := range map[string]func(){
				"alone":       func() { l.do(redis.Args{}.AddFlat(words)...) },
				"in MULTI":    func() { l.do("MULTI"); l.do(redis.Args{}.AddFlat(words)...); l.do("EXEC") },
				"in a script": func() { l.do(redis.Args{"EVAL", "return redis.pcall(unpack(ARGV))", 0}.AddFlat(words)...) },
				"from another database": func() {
					_, _ = redis.DoWithTimeout(elsewhere, 10*time.Second, words[0], redis.Args{}.AddFlat(words[1:])...)
				},
			} {
				// Strings, so that nothing waits for a list.
				l.do("SET", "lock:a", "x")
				l.do("SET", "1", "x")
				_, _ = elsewhere.Do("SET", "1", "x")
				_, _ = elsewhere.Do("SET", "lock:a", "x")
				var before int64
				watched, counted, why := l.judge(func() { before = calls(name); send() })
				sent++
				if what == "in a script" && calls(name) == before {
					continue // not allowed there: it never ran
				}
				ran++
				if !explained {
					assert.NotEqual(t, NoneSeen, watched, "%s %v: %s", what, words, why)
				}
				assert.NotEqual(t, NoneSeen, counted, "%s %v, by the counters alone", what, words)
			}
		}
		if !everywhere {
			for _, words := range l.forms(name, "other") {
				l.do("SET", "1", "x")
				watched, _, why := l.judge(func() { l.do(redis.Args{}.AddFlat(words)...) })
				if name == "pfdebug" || name == "incrbyfloat" && watched != NoneSeen && strings.HasPrefix(l.last.version, "2.") { // MONITOR does not show the one, and 2.8 counts the other as SET
					assert.Equal(t, Inconclusive, watched, why)
					continue
				}
				assert.Equal(t, NoneSeen, watched, "%v: %s", words, why)
				quiet++
			}
		}
	}
	t.Logf("%s: %d commands that write; %d of %d forms ran on a lock's key, none of them left none-seen; %d on other keys: none-seen; in %v",
		l.last.is, l.facts.Writes, ran, sent, quiet, time.Since(began).Round(time.Millisecond))
	assert.Greater(t, ran, 3*l.facts.Writes)
}

// TestOtherDatabases tells clients of another database apart, and leaves out those of one that was said to be of no concern, unless what
// they send reaches into this one.
func TestOtherDatabases(t *testing.T) {
	l := newLab(t, redistest.Real(t))
	in := func(words ...any) func() {
		return func() { l.do("SELECT", 5); l.do(words...); l.do("SELECT", 0) }
	}
	verdict, _, why := l.judge(in("SETNX", "lock:a", "1"))
	assert.Equal(t, Inconclusive, verdict)
	assert.Contains(t, why, "that is in database 5, and the locks are in database 0")
	assert.Contains(t, why, "--ignore-db 5")
	verdict, _, _ = l.judge(func() { l.do("SETNX", "lock:b", "1") })
	assert.Equal(t, Seen, verdict)

	l.q.opts.Ignore = []int{5}
	verdict, _, why = l.judge(in("SETNX", "lock:a", "1"))
	assert.Equal(t, NoneSeen, verdict, why)
	for _, words := range [][]any{{"MOVE", "lock:a", 0}, {"COPY", "x", "lock:a", "DB", 0}, {"SWAPDB", 0, 5}, {"FLUSHALL"}} {
		verdict, _, why = l.judge(in(words...))
		assert.NotEqual(t, NoneSeen, verdict, fmt.Sprint(words, why))
	}
}
