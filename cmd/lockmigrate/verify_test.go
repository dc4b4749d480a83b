package main

import (
	"context"
	"encoding/json"
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
	// Into the window, which begins after the first look and the keys. verify says nothing of that where it is no terminal.
	redistest.Await(t, "verify's looks", 20*time.Second, func() bool { return looksOf(t, url) >= before+4 })
	act()
	acted := time.Now()
	r := <-done
	var v verified
	require.NoError(t, json.Unmarshal([]byte(r.out), &v), "%s%s", r.out, r.stderr)
	want := map[string]int{"none-seen": exitDone, "seen": exitUnsafe, "inconclusive": exitInconclusive}[v.Verdict]
	assert.Equal(t, want, r.code, r.stderr)
	if acted.After(v.Evidence.Ended) {
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
