package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// operator runs command lines on one server, if it has one.
type operator struct {
	t   testing.TB
	url string
}

// runs wants an exit code, and returns what was printed.
func (o operator) runs(code int, args ...string) (stdout, stderr string) {
	o.t.Helper()
	ctx := redistest.Bounded(o.t, hung)
	if o.url != "" {
		args = append(args, "--redis", o.url)
	}
	got, stdout, stderr := lockmigrateIn(ctx, false, args...)
	require.Equal(o.t, code, got, "%q: %s%s", args, stdout, stderr)
	return stdout, stderr
}

func (o operator) creates(namespace string, match ...string) {
	o.t.Helper()
	args := []string{"stage", "init", "--namespace", namespace, "--dialect", "jedis-ms", "--shortest-lease", "1s", "--execute"}
	for _, m := range match {
		args = append(args, "--match", m)
	}
	o.runs(exitDone, args...)
}

// bridges creates a namespace and moves it to stage bridge, epoch 2.
func (o operator) bridges(namespace string, match ...string) {
	o.t.Helper()
	o.creates(namespace, match...)
	o.runs(exitDone, "stage", "advance", "--namespace", namespace, "--to", "bridge", "--execute")
}

// service is a Go member of a namespace.
func service(t testing.TB, pool lockmigrate.Pool, change ...func(*compat.Options)) compat.Locker {
	t.Helper()
	opts := compat.Options{
		Namespace: "orders", TTL: time.Second, Lease: 2 * time.Second, ClockLag: 50 * time.Millisecond, CommandDelay: 100 * time.Millisecond,
		ReplyTimeout: 900 * time.Millisecond,
	}
	for _, c := range change {
		c(&opts)
	}
	l, err := compat.New(pool, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	ctx := redistest.Bounded(t, 20*time.Second)
	require.NoError(t, l.Ready(ctx))
	return l
}

// reported waits until every member that lives runs the record.
func (o operator) reported(members int) {
	o.t.Helper()
	redistest.Await(o.t, "reports of all members", func() bool {
		stdout, _ := o.runs(exitDone, "stage", "--namespace", "orders", "--json")
		var doc stages.Document
		require.NoError(o.t, json.Unmarshal([]byte(stdout), &doc))
		return len(doc.Members) == members && len(doc.Changing) == 0
	})
}

// as is a pool for connections of a user.
func as(t testing.TB, addr, user string) *redis.Pool {
	t.Helper()
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialUsername(user), redis.DialPassword("pw"))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// TestTheDemosLinesWorkAsPrinted: the demo prints what an operator would type, and typing it does it.
func TestTheDemosLinesWorkAsPrinted(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	o := operator{t, s.URL()}
	server, err := fleet.StartServer()
	require.NoError(t, err)
	defer server.Close()
	here, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	there, err := endpoint.Parse("redis://"+server.Addr(), endpoint.TLSFiles{})
	require.NoError(t, err)
	var lines []string
	err = fleet.Demo(t.Context(), fleet.Options{End: here, Other: there, Act: 300 * time.Millisecond, Told: func(fleet.Act) {}, Event: func(e fleet.Event) {
		if rest, found := strings.CutPrefix(e.Text, "lockmigrate "); found {
			if lines = append(lines, rest); !strings.HasPrefix(rest, "sidecar ") { // the demo's own listens there already
				line, url, elsewhere := strings.Cut(rest, " --redis ")
				if !elsewhere {
					url = o.url
				}
				operator{t, url}.runs(exitDone, strings.Fields(line)...)
			}
		}
	}})
	require.NoError(t, err)
	assert.Len(t, lines, 8)
}
