package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
func working(t testing.TB, pool lockmigrate.Pool, namespace, key string) {
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

var wholeWindow = []string{"--monitor"}

func with(args []string, more ...string) []string {
	return append(append([]string{}, args...), more...)
}

// TestAdvanceTakesNoCertificateOfOtherKeys tries to go to modern with certificates that are not about all of the
// namespace, or that do not say how long a client may be silent.
func TestAdvanceTakesNoCertificateOfOtherKeys(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	file := filepath.Join(t.TempDir(), "c.json")
	o := operator{t, s.URL()}
	o.bridges("orders", "lock.order.*")
	advance := []string{"stage", "advance", "--namespace", "orders", "--to", "modern", "--execute", "--certificate", file}

	working(t, s.Pool(), "orders", "lock.order.91")
	// A client on a key that the certificate's patterns leave out.
	v := verifyWhile(t, s.URL(), func() { s.Do("SETNX", "lock.order.5", "1"); s.Do("DEL", "lock.order.5") },
		with(wholeWindow, "--namespace", "orders", "--match", "lock.order.9*", "--longest-silence", "1s", "--out", file)...)
	assert.Equal(t, "inconclusive", v.Verdict, v.Why)
	assert.Equal(t, []string{"keys"}, v.open())
	o.runs(exitUnsafe, advance...)

	// Nothing was said of the longest silence.
	v = verifyWhile(t, s.URL(), nil, with(wholeWindow, "--namespace", "orders", "--out", file)...)
	assert.Equal(t, []string{"window"}, v.open())
	o.runs(exitUnsafe, advance...)

	// The same with a verdict that somebody wrote by hand.
	for _, change := range [][2]string{{`"verdict": "inconclusive"`, `"verdict": "none-seen"`}, {`"discharged": false`, `"discharged": true`}} {
		written, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(written), change[0])
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(written), change[0], change[1])), 0o600))
		assert.Contains(t, o.says(exitUnsafe, advance...), `obligation "window" is not discharged`)
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
