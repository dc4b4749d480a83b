package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestSidecarWaitsForItsServer: a sidecar that finds no server lives, is not ready, refuses clients as a server that is away does, and tells
// it once. It serves as soon as the server is there. What waiting cannot mend ends it at once.
func TestSidecarWaitsForItsServer(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t, "--appendonly", "yes", "--appendfsync", "always")
	operator{t, s.URL()}.creates("orders", "lock:*")
	addr, status := freePort(t), freePort(t)
	line := func(url string, more ...string) []string {
		return append([]string{"sidecar", "--redis", url, "--listen", addr, "--status", status, "--namespace", "orders", "--name", "billing", "--drain", "0s"}, more...)
	}
	for why, args := range map[string][]string{
		"refuses the password": line("redis://:wrong@" + s.Addr + "/0"),
		"no such namespace":    line(s.URL(), "--namespace", "others"),
	} {
		_, stderr := expect(t, exitFailed, args...)
		assert.NotContains(t, stderr, "waiting for the server", why)
	}
	s.Kill()
	for _, wrong := range []string{"nonsense", "jboot=127.0.0.1:0"} {
		expect(t, exitUsage, line(s.URL(), "--listen", wrong)...)
	}

	type result struct {
		code   int
		stderr string
	}
	begin := func(ctx context.Context) <-chan result {
		ended := make(chan result, 1)
		go func() {
			code, _, stderr := lockmigrateIn(ctx, false, line(s.URL())...)
			ended <- result{code, stderr}
		}()
		redistest.Await(t, "the reason", 20*time.Second, func() bool {
			code, text := fetch("http://" + status + "/readyz")
			return code == http.StatusServiceUnavailable && strings.HasPrefix(text, "waiting for the server: ") && strings.Contains(text, "cannot connect to "+s.Addr+": connection refused")
		})
		return ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := begin(ctx)
	cancel()
	assert.Equal(t, exitDone, (<-ended).code, "interrupted while it waits")

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	ended = begin(ctx)
	code, _ := fetch("http://" + status + "/healthz")
	assert.Equal(t, http.StatusOK, code)
	_, metrics := fetch("http://" + status + "/metrics")
	for _, gauge := range []string{"lockmigrate_sidecar_member 0", "lockmigrate_sidecar_upstream_up 0"} {
		assert.Contains(t, metrics, gauge+"\n")
	}
	_, err := net.Dial("tcp", addr)
	assert.ErrorContains(t, err, "connection refused")
	time.Sleep(1200 * time.Millisecond) // more than two attempts

	s.Start()
	redistest.Await(t, "readiness", 20*time.Second, func() bool { code, _ := fetch("http://" + status + "/readyz"); return code == http.StatusOK })
	old, err := redis.Dial("tcp", addr)
	require.NoError(t, err)
	defer old.Close()
	taken, err := redis.Int(old.Do("SETNX", "lock:a", time.Now().Add(time.Minute).UnixMilli()))
	require.NoError(t, err)
	assert.Equal(t, 1, taken)
	_ = old.Close()
	cancel()
	r := <-ended
	assert.Equal(t, exitDone, r.code, r.stderr)
	assert.Equal(t, 1, strings.Count(r.stderr, "waiting for the server"), r.stderr)
	assert.Equal(t, 1, strings.Count(r.stderr, "the server may have lost changes of the stage"), "the server was restarted, and no member lives that worked since before: %s", r.stderr)
	assert.Equal(t, 2, strings.Count(r.stderr, "level=ERROR"), r.stderr)
}
