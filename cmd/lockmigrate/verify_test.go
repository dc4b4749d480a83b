package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
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

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// verified is what a run of verify printed as JSON.
type verified struct {
	Verdict     string
	Why         string
	Obligations []struct {
		ID         string
		Discharged bool
		Evidence   string
	}
	Evidence struct { // what was found
		Ended time.Time
		Seen  []struct{ Addr, Evidence, Dialect string }
	}
}

// open lists the obligations that are not discharged.
func (v verified) open() (ids []string) {
	for _, o := range v.Obligations {
		if !o.Discharged {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// live is a service's lock, which the patterns of these tests match.
func live(s *redistest.Server, key string) { s.Do("SET", key, "token", "PX", 600_000) }

// working is a Go service of a namespace, which locks a key again and again until the test ends.
func working(t *testing.T, pool lockmigrate.Pool, namespace, key string) {
	t.Helper()
	locker := service(t, pool, func(o *compat.Options) { o.Namespace = namespace })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = locker.Do(ctx, key, func(context.Context) error { return nil })
			_ = lifetime.Sleep(ctx, 20*time.Millisecond)
		}
	}()
}

// verifyWhile runs verify with MONITOR for the whole window, and act within it.
func verifyWhile(t *testing.T, url string, act func(), args ...string) verified {
	t.Helper()
	args = append([]string{"verify", "--json", "--for", "1500ms", "--redis", url}, args...)
	type result struct {
		code        int
		out, stderr string
	}
	done, before := make(chan result, 1), looksOf(t, url)
	go func() {
		code, out, stderr := lockmigrateIn(context.Background(), false, args...)
		done <- result{code, out, stderr}
	}()
	if act != nil {
		// Into the window, which begins after the first look and the keys. verify says nothing of that where it is no terminal.
		redistest.Await(t, "verify's looks", 20*time.Second, func() bool { return looksOf(t, url) >= before+4 })
		act()
	}
	acted := time.Now()
	r := <-done
	var v verified
	require.NoError(t, json.Unmarshal([]byte(r.out), &v), "%s%s", r.out, r.stderr)
	want := map[string]int{"none-seen": exitDone, "seen": exitUnsafe, "inconclusive": exitInconclusive}[v.Verdict]
	assert.Equal(t, want, r.code, r.stderr)
	if act != nil && acted.After(v.Evidence.Ended) {
		t.Fatalf("verify's window ended at %v, before the test had acted: %v; the machine is too busy to tell", v.Evidence.Ended, acted)
	}
	return v
}

// looksOf returns how often a verify has looked at a server's counters: each look has an ECHO.
func looksOf(t *testing.T, url string) int {
	t.Helper()
	conn, err := redis.DialURL(url)
	require.NoError(t, err)
	defer conn.Close()
	text, err := redis.String(conn.Do("INFO", "commandstats"))
	require.NoError(t, err)
	_, after, _ := strings.Cut(text, "cmdstat_echo:calls=")
	number, _, _ := strings.Cut(after, ",")
	n, _ := strconv.Atoi(number)
	return n
}

var wholeWindow = []string{"--burst", "10s", "--every", "10s"}

func with(args []string, more ...string) []string {
	return append(append([]string{}, args...), more...)
}

// TestVerifyNeverVouchesTooMuch has the situations in which a certificate was given although a legacy client was there,
// or could have been.
func TestVerifyNeverVouchesTooMuch(t *testing.T) {
	t.Parallel()
	redistest.Need(t, redistest.Redis)
	bare := func(s *redistest.Server) func() { return func() { s.Do("SETNX", "cache:x", "1") } }

	t.Run("one SETNX of another application hides neither a live value nor a short window", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		s.Do("SET", "lock.order.1", inMS(time.Hour))
		v := verifyWhile(t, s.URL(), bare(s), with(wholeWindow, "--match", "lock.order.*", "--longest-silence", "25h")...)
		assert.Equal(t, "inconclusive", v.Verdict, v.Why)
		assert.Equal(t, []string{"window", "values"}, v.open())
	})
	t.Run("a live value that is deleted", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		s.Do("SET", "lock.order.1", inMS(time.Hour))
		v := verifyWhile(t, s.URL(), func() { s.Do("DEL", "lock.order.1") }, with(wholeWindow, "--match", "lock.order.*", "--longest-silence", "1s")...)
		assert.Equal(t, "seen", v.Verdict, v.Why)
	})
	t.Run("SETNX and EXPIRE of 1", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		v := verifyWhile(t, s.URL(), func() {
			for range 5 {
				s.Do("SETNX", "lock.order.17", "1")
				s.Do("EXPIRE", "lock.order.17", 10)
				s.Do("DEL", "lock.order.17")
			}
		}, with(wholeWindow, "--match", "lock.order.*", "--longest-silence", "1s")...)
		assert.Equal(t, "seen", v.Verdict, v.Why)
	})
	for name, words := range map[string][]any{ // all other commands that write: operate/verify's TestEveryWrite
		"SET NX without TTL":          {"SET", "lock.order.17", "1", "NX"},
		"MSETNX of several, one ours": {"MSETNX", "cache:a", "1", "lock.order.17", "1"},
		"no old scheme, a plain SET":  {"SET", "lock.order.17", "me"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			live(s, "lock.order.live")
			act := func() { s.Do(words[0].(string), words[1:]...); s.Do("DEL", "lock.order.17") }
			v := verifyWhile(t, s.URL(), act, with(wholeWindow, "--match", "lock.order.*", "--longest-silence", "1s")...)
			if unexplained := strings.HasPrefix(name, "no old scheme"); unexplained {
				assert.Equal(t, "inconclusive", v.Verdict, v.Why)
				assert.Contains(t, v.Why, words[0].(string)+" (1)")
			} else {
				assert.Equal(t, "seen", v.Verdict, v.Why)
			}
			v = verifyWhile(t, s.URL(), act, "--match", "lock.order.*", "--longest-silence", "1s", "--burst", "0")
			assert.Equal(t, "inconclusive", v.Verdict, v.Why)
			assert.Equal(t, []string{"commands"}, v.open())
		})
	}
	t.Run("a reset of counters that had counted little", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		s.Do("CONFIG", "RESETSTAT")
		conn := s.Conn()
		v := verifyWhile(t, s.URL(), func() { // all between two looks, and then more than was counted before
			for _, words := range [][]any{{"SETNX", "lock.order.1", "1"}, {"DEL", "lock.order.1"}, {"CONFIG", "RESETSTAT"}} {
				assert.NoError(t, conn.Send(words[0].(string), words[1:]...))
			}
			for range 500 {
				assert.NoError(t, conn.Send("PING"))
				assert.NoError(t, conn.Send("ECHO", "x"))
			}
			_, err := conn.Do("")
			assert.NoError(t, err)
		}, "--match", "lock.order.*", "--longest-silence", "1s", "--burst", "0")
		assert.Equal(t, "inconclusive", v.Verdict, v.Why)
		assert.Contains(t, v.open(), "counters")
	})
	t.Run("INFO without commandstats", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		url := infoProxy(t, s, func(line string) string { return keepUnless(line, strings.HasPrefix(line, "cmdstat_")) })
		v := verifyWhile(t, url, func() { s.Do("SETNX", "lock.order.1", "1"); s.Do("DEL", "lock.order.1") },
			"--match", "lock.order.*", "--longest-silence", "1s", "--burst", "0")
		assert.Equal(t, "inconclusive", v.Verdict, v.Why)
		assert.Contains(t, v.open(), "counters")
	})
	t.Run("denials that an older server does not count", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		live(s, "lock.order.live")
		s.Do("ACL", "SETUSER", "old", "on", ">pw", "~*", "+@all", "-setnx")
		s.Do("ACL", "SETUSER", "ops", "on", ">pw", "~*", "+@all", "-acl")
		url := infoProxy(t, s, func(line string) string {
			before, _, found := strings.Cut(line, ",rejected_calls=")
			switch {
			case strings.HasPrefix(line, "redis_version:"):
				return "redis_version:6.0.16"
			case found && strings.Contains(line, ":calls=0,"):
				return ""
			case found:
				return before
			}
			return line
		})
		url = strings.Replace(url, "redis://", "redis://ops:pw@", 1)
		legacy, err := redis.Dial("tcp", s.Addr, redis.DialUsername("old"), redis.DialPassword("pw"))
		require.NoError(t, err)
		defer legacy.Close()
		v := verifyWhile(t, url, func() {
			_, err := legacy.Do("SETNX", "lock.order.1", "1")
			assert.ErrorContains(t, err, "NOPERM")
		}, "--match", "lock.order.*", "--longest-silence", "1s", "--burst", "0")
		assert.Equal(t, "inconclusive", v.Verdict, v.Why)
		assert.Equal(t, []string{"denials"}, v.open())
	})
	t.Run("nobody said how long a client may be silent", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		live(s, "lock.order.live")
		v := verifyWhile(t, s.URL(), nil, "--match", "lock.order.*")
		assert.Equal(t, "inconclusive", v.Verdict, v.Why)
		assert.Equal(t, []string{"window"}, v.open())
	})
	t.Run("one node of a cluster", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t, "--cluster-enabled", "yes")
		v := verifyWhile(t, s.URL(), nil, "--match", "lock.order.*", "--longest-silence", "1s")
		assert.Equal(t, []string{"keys", "masters"}, v.open())
	})
	t.Run("a user who may not read the keys", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		s.Do("SET", "lock.order.1", inMS(time.Hour))
		s.Do("ACL", "SETUSER", "ops", "on", ">pw", "~other", "+@all")
		v := verifyWhile(t, strings.Replace(s.URL(), "redis://", "redis://ops:pw@", 1), nil, "--match", "lock.order.*", "--longest-silence", "1s")
		assert.Equal(t, []string{"keys", "values"}, v.open())
	})
}

func keepUnless(line string, drop bool) string {
	if drop {
		return ""
	}
	return line
}

// TestAdvanceTakesNoCertificateOfOtherKeys tries to go to modern with certificates that are not about all of the
// namespace, or that do not say how long a client may be silent.
func TestAdvanceTakesNoCertificateOfOtherKeys(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	file := filepath.Join(t.TempDir(), "c.json")
	do := func(args ...string) (int, string) {
		t.Helper()
		code, stdout, stderr := lockmigrateIn(context.Background(), false, append(args, "--redis", s.URL())...)
		return code, stdout + stderr
	}
	for _, args := range [][]string{
		{"stage", "init", "--namespace", "orders", "--match", "lock.order.*", "--dialect", "jedis-ms", "--shortest-lease", "1s", "--execute"},
		{"stage", "advance", "--namespace", "orders", "--to", "bridge", "--execute"},
	} {
		code, text := do(args...)
		require.Equal(t, exitDone, code, text)
	}
	advance := []string{"stage", "advance", "--namespace", "orders", "--to", "modern", "--execute", "--certificate", file}

	working(t, s.Pool(), "orders", "lock.order.91")
	// A client on a key that the certificate's patterns leave out.
	v := verifyWhile(t, s.URL(), func() { s.Do("SETNX", "lock.order.5", "1"); s.Do("DEL", "lock.order.5") },
		with(wholeWindow, "--namespace", "orders", "--match", "lock.order.9*", "--longest-silence", "1s", "--out", file)...)
	assert.Equal(t, "inconclusive", v.Verdict, v.Why)
	assert.Equal(t, []string{"keys"}, v.open())
	code, text := do(advance...)
	assert.Equal(t, exitUnsafe, code, text)

	// Nothing was said of the longest silence.
	v = verifyWhile(t, s.URL(), nil, with(wholeWindow, "--namespace", "orders", "--out", file)...)
	assert.Equal(t, []string{"window"}, v.open())
	code, text = do(advance...)
	assert.Equal(t, exitUnsafe, code, text)

	// The same with a verdict that somebody wrote by hand.
	for _, change := range [][2]string{{`"verdict": "inconclusive"`, `"verdict": "none-seen"`}, {`"discharged": false`, `"discharged": true`}} {
		written, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(written), change[0])
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(written), change[0], change[1])), 0o600))
		code, text = do(advance...)
		assert.Equal(t, exitUnsafe, code, text)
		assert.Contains(t, text, `obligation "window" is not discharged`)
	}
}

// TestTheRecordKnowsTheLongestSilence: verify takes the record's figure where nothing is said, and no smaller one.
func TestTheRecordKnowsTheLongestSilence(t *testing.T) {
	s := redistest.Real(t)
	t.Chdir(t.TempDir())
	o := operator{t, s.URL()}
	create := []string{"stage", "init", "--namespace", "orders", "--match", "lock:*", "--dialect", "jedis-ms", "--shortest-lease", "1s", "--stage", "bridge", "--execute"}
	_, stderr := o.runs(exitUsage, append(create, "--longest-silence", "900ms")...)
	assert.Contains(t, stderr, "--longest-silence 900ms is less than the shortest lease of 1s")
	o.runs(exitDone, append(create, "--longest-silence", "1500ms")...)
	working(t, s.Pool(), "orders", "lock:1")
	look := []string{"verify", "--namespace", "orders", "--monitor", "--out", "c.json"}
	_, stderr = o.runs(exitUsage, append(look, "--for", "1s")...)
	assert.Contains(t, stderr, "the window of 1s is shorter than the longest silence of 1.5s, which the record says")
	_, stderr = o.runs(exitUsage, append(look, "--for", "2s", "--ignore-db", "5", "--ignore-db", "0")...)
	assert.Contains(t, stderr, "database 0 is the one of the locks")
	_, stderr = o.runs(exitUsage, append(look, "--for", "2s", "--longest-silence", "1200ms")...)
	assert.Contains(t, stderr, "the longest silence of 1.2s is less than the 1.5s that the record knows of")
	stdout, _ := o.runs(exitDone, append(look, "--for", "1600ms")...)
	assert.Regexp(t, `which\s+the\s+record\s+of\s+namespace\s+orders\s+says\s+is\s+1.5s`, stdout)
	o.runs(exitDone, "stage", "advance", "--namespace", "orders", "--to", "modern", "--certificate", "c.json") // the plan
	stdout, _ = o.runs(exitDone, append(look, "--for", "2s", "--longest-silence", "1700ms")...)
	assert.Regexp(t, `said\s+to\s+be\s+1.7s`, stdout)
	o.runs(exitDone, "stage", "set", "--namespace", "orders", "--longest-silence", "30s", "--execute")
	_, stderr = o.runs(exitUsage, append(look, "--for", "20s")...)
	assert.Equal(t, "lockmigrate: the window of 20s is shorter than the longest silence of 30s, which the record says: give a longer --for\n", stderr, "docs/operator.md")
}

// infoProxy stands in front of a server and edits the lines of INFO, as servers and services differ in what they
// tell. A line that becomes empty is left out. It returns a URL.
func infoProxy(t *testing.T, s *redistest.Server, edit func(line string) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", s.Addr)
			if err != nil {
				_ = client.Close()
				continue
			}
			mu.Lock()
			open = append(open, client, server)
			mu.Unlock()
			running.Go(func() { defer client.Close(); editInfo(client, server, edit) })
			running.Go(func() { defer server.Close(); _, _ = io.Copy(server, client) })
		}
	})
	return "redis://" + l.Addr().String() + "/0"
}

// editInfo forwards replies. Those of INFO begin with its first heading.
func editInfo(to io.Writer, from io.Reader, edit func(line string) string) {
	in := bufio.NewReader(from)
	for {
		raw, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if length, err := strconv.Atoi(strings.TrimSpace(raw[1:])); raw[0] == '$' && err == nil && length >= 0 {
			body := make([]byte, length+2)
			if _, err := io.ReadFull(in, body); err != nil {
				return
			}
			raw += string(body)
			if text := string(body[:length]); strings.HasPrefix(text, "# Server") {
				var edited strings.Builder
				for line := range strings.Lines(text) {
					if line = edit(strings.TrimSpace(line)); line != "" {
						edited.WriteString(line + "\r\n")
					}
				}
				raw = fmt.Sprintf("$%d\r\n%s\r\n", edited.Len(), edited.String())
			}
		}
		if _, err := io.WriteString(to, raw); err != nil {
			return
		}
	}
}

func addrOf(t *testing.T, conn redis.Conn) string {
	t.Helper()
	info, err := redis.String(conn.Do("CLIENT", "INFO"))
	require.NoError(t, err)
	_, after, _ := strings.Cut(info, " addr=")
	addr, _, _ := strings.Cut(after, " ")
	return addr
}
