package main

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
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
)

// fetch returns what a status page says, 0 while it says nothing.
func fetch(url string) (code int, text string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Get(url)
	if err != nil {
		return 0, ""
	}
	defer reply.Body.Close()
	b, _ := io.ReadAll(reply.Body)
	return reply.StatusCode, string(b)
}

// sidecarOf runs a sidecar called billing until stop, which returns its log. It is ready.
func sidecarOf(t *testing.T, url, drain string) (addr, status string, stop func() (log string)) {
	t.Helper()
	addr = redistest.FreeAddr(t)
	status, stop = sidecarWith(t, "sidecar", "--redis", url, "--listen", addr, "--namespace", "orders", "--name", "billing", "--drain", drain)
	return addr, status, stop
}

// sidecarWith runs a sidecar by its command line until stop.
func sidecarWith(t *testing.T, args ...string) (status string, stop func() (log string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	status = redistest.FreeAddr(t)
	ended := make(chan string, 1)
	go func() {
		code, _, stderr := lockmigrateIn(ctx, false, append(args, "--status", status)...)
		assert.Equal(t, exitDone, code, stderr)
		ended <- stderr
	}()
	stop = sync.OnceValue(func() string { cancel(); return <-ended })
	t.Cleanup(func() { stop() })
	redistest.Await(t, "readiness", func() bool { code, _ := fetch("http://" + status + "/readyz"); return code == http.StatusOK })
	return status, stop
}

// client connects as an old service does.
func client(t *testing.T, network, addr string, options ...redis.DialOption) redis.Conn {
	t.Helper()
	conn, err := redis.Dial(network, addr, options...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// says sends a command and compares its reply.
func says(t *testing.T, conn redis.Conn, want any, command string, args ...any) {
	t.Helper()
	got, err := conn.Do(command, args...)
	require.NoError(t, err)
	if b, ok := got.([]byte); ok {
		got = string(b)
	}
	require.Equal(t, want, got, "%s %v", command, args)
}

// TestSidecar runs the command: an old client's SETNX becomes a token with a TTL, the namespace lists the sidecar, and an interrupt ends it.
// The scripts have what needs a second process, or none.
func TestSidecar(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	operator{t, s.URL()}.bridges("orders", "lock:*")
	addr, status, stop := sidecarOf(t, s.URL(), "10s")
	old := client(t, "tcp", addr)
	expiry := strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10)
	says(t, old, int64(1), "SETNX", "lock:a", expiry)
	ttl, _ := redis.Int64(s.Do("PTTL", "lock:a"), nil)
	assert.InDelta(t, 60_000, ttl, 5000, "the lease of the client's value")
	assert.NotEqual(t, expiry, s.Value("lock:a"))

	stdout, _ := expect(t, exitDone, "stage", "--namespace", "orders", "--redis", s.URL())
	assert.Contains(t, stdout, "billing")
	_, metrics := fetch("http://" + status + "/metrics")
	for _, line := range []string{`lockmigrate_sidecar_translated_total{command="SETNX"} 1`, "lockmigrate_sidecar_member 1", "lockmigrate_sidecar_unseen_keys 0", `lockmigrate_sidecar_stage{stage="bridge"} 1`, "lockmigrate_sidecar_connections 1",
		"lockmigrate_sidecar_upstream_up 1", `lockmigrate_sidecar_requests_total{verdict="translated"} 1`} {
		assert.Contains(t, metrics, line+"\n")
	}
	says(t, old, int64(1), "DEL", "lock:a")

	// The service cannot flood the log, neither with lines nor with long keys.
	key := "lock:" + strings.Repeat("k", 100_000)
	for range 100 {
		_, err := old.Do("FCALL", "x", 1, key)
		require.ErrorContains(t, err, "lockmigrate sidecar")
		says(t, old, int64(0), "SETNX", key, time.Now().Add(-time.Minute).UnixMilli())
	}
	_, metrics = fetch("http://" + status + "/metrics")
	assert.Contains(t, metrics, "lockmigrate_sidecar_refused_total 100\n")
	assert.Contains(t, metrics, "lockmigrate_sidecar_over_total 100\n")
	log := stop()
	_, err := old.Do("PING")
	assert.ErrorIs(t, err, io.EOF, "the connection has ended between two commands")
	assert.Contains(t, log, "address="+addr)
	for _, message := range []string{"msg=refused", "clock: not taken"} {
		assert.Equal(t, 20, strings.Count(log, message), message)
	}
	assert.Less(t, len(log), 40_000)
}

// TestSidecarTransports runs the command in front of a server with TLS, for clients with TLS. One process has listeners for two dialects, on TCP and on
// a Unix socket.
func TestSidecarTransports(t *testing.T) {
	t.Parallel()
	redistest.Need(t, redistest.Redis)
	certs := redistest.NewCertificates(t)
	server := redistest.Shape{TLS: certs}.Start(t)
	known := []string{"--redis", "rediss://" + server.Addr + "/0", "--tls-ca", certs.CA, "--tls-cert", certs.Cert, "--tls-key", certs.Key}
	expect(t, exitDone, append([]string{"stage", "init", "--namespace", "orders", "--match", "lock:*", "--dialect", "jedis-ms", "--shortest-lease", "10s", "--stage", "bridge", "--execute"}, known...)...)
	tcp, path := redistest.FreeAddr(t), filepath.Join(t.TempDir(), "sidecar.sock")
	sidecarWith(t, append([]string{"sidecar", "--namespace", "orders", "--name", "nightly", "--listen", "redispy-float=" + tcp, "--listen", "none=unix:" + path,
		"--drain", "0s", "--listen-cert", certs.Cert, "--listen-key", certs.Key, "--listen-ca", certs.CA}, known...)...)
	secure := []redis.DialOption{redis.DialUseTLS(true), redis.DialTLSConfig(certs.Client)}
	python, crawler := client(t, "tcp", tcp, secure...), client(t, "unix", path, secure...)
	text := strconv.FormatFloat(float64(time.Now().Add(time.Minute).UnixMilli())/1000, 'f', 3, 64)
	says(t, python, int64(1), "SETNX", "lock:a", text)
	says(t, crawler, int64(0), "SETNX", "lock:a", "a uuid")
	says(t, crawler, int64(1), "SETNX", "lock:b", "a uuid")
	says(t, crawler, "a uuid", "GET", "lock:b")
	says(t, python, text, "GET", "lock:a")
	for key, lease := range map[string]int{"lock:a": 60_000, "lock:b": 30_000} {
		ttl, _ := redis.Int(server.Do("PTTL", key), nil)
		assert.InDelta(t, lease, ttl, 10_000, "the lease of each dialect")
	}
	says(t, python, int64(1), "DEL", "lock:a")
	says(t, crawler, int64(1), "DEL", "lock:b")
	for _, refused := range [][]redis.DialOption{nil, {redis.DialUseTLS(true), redis.DialTLSConfig(&tls.Config{RootCAs: certs.Client.RootCAs, MinVersion: tls.VersionTLS12})}} {
		conn, err := redis.Dial("tcp", tcp, append(refused, redis.DialReadTimeout(5*time.Second))...)
		if err == nil { // without TLS; with TLS 1.3 a missing certificate is told after the handshake
			_, err = conn.Do("PING")
			_ = conn.Close()
		}
		assert.Error(t, err, "a client without a certificate")
	}
}
