// Package pools tries the pools that are made of another client's options (pool/goredis, pool/rueidis) on real servers: what the options say
// of addresses, TLS and rights is what the locks' connections do, and what cannot be followed is an error.
package pools

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/pool/goredis"
	rueidispool "github.com/lockmigrate/lockmigrate/pool/rueidis"
)

// pool is what both packages return.
type pool interface {
	lockmigrate.Pool
	Close() error
}

// works takes a lock over a pool, with a waiter that is handed it, and looks for its key on the server.
func works(t *testing.T, p pool, err error, exists func(key string) bool) {
	t.Helper()
	require.NoError(t, err)
	locker, err := modern.New(p, modern.Options{Wait: time.Minute})
	require.NoError(t, err)
	lock, err := locker.TryAcquire(t.Context(), "order")
	require.NoError(t, err)
	assert.True(t, exists("order"), "the key stands where the options say")
	turn := make(chan error)
	go func() { turn <- locker.Do(context.Background(), "order", func(context.Context) error { return nil }) }()
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, <-turn)
	assert.NoError(t, locker.Close())
	assert.NoError(t, p.Close())
}

func on(s *redistest.Server, db int) func(string) bool {
	return func(key string) bool {
		conn := s.Conn()
		defer conn.Close()
		_, _ = conn.Do("SELECT", db)
		there, _ := conn.Do("EXISTS", key)
		return there == int64(1)
	}
}

// TestOneServer: TLS with a certificate, an ACL user, a database and a name, by both clients' options.
func TestOneServer(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	certs := redistest.NewCertificates(t)
	s := redistest.Shape{TLS: certs}.Start(t)
	s.Do("ACL", "SETUSER", "orders", "on", ">secret", "~*", "&*", "+@all")
	there := on(s, 3)
	named := func(key string) bool {
		list, _ := s.Do("CLIENT", "LIST").([]byte)
		return there(key) && assert.Contains(t, string(list), "name=shop") && assert.Contains(t, string(list), "user=orders")
	}
	t.Run("go-redis", func(t *testing.T) {
		p, err := goredis.New(&redis.UniversalOptions{Addrs: []string{s.Addr}, Username: "orders", Password: "secret", DB: 3, ClientName: "shop", TLSConfig: certs.Client})
		works(t, p, err, named)
	})
	t.Run("go-redis, credentials that are asked for, a Dialer of its own", func(t *testing.T) {
		p, err := goredis.NewServer(&redis.Options{Addr: s.Addr, DB: 3, ClientName: "shop",
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return (&tls.Dialer{Config: certs.Client}).DialContext(ctx, network, addr)
			},
			CredentialsProviderContext: func(context.Context) (string, string, error) { return "orders", "secret", nil }})
		works(t, p, err, named)
	})
	t.Run("rueidis", func(t *testing.T) {
		p, err := rueidispool.New(t.Context(), rueidis.ClientOption{InitAddress: []string{s.Addr}, Username: "orders", Password: "secret", SelectDB: 3, ClientName: "shop", TLSConfig: certs.Client})
		works(t, p, err, named)
	})
	t.Run("rueidis, credentials that are asked for, a DialFn of its own", func(t *testing.T) {
		asked := ""
		p, err := rueidispool.New(t.Context(), rueidis.ClientOption{InitAddress: []string{s.Addr}, SelectDB: 3, ClientName: "shop", ForceSingleClient: true, TLSConfig: certs.Client,
			DialFn: func(addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
				return tls.DialWithDialer(d, "tcp", addr, config)
			},
			AuthCredentialsFn: func(c rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				asked = c.Address.String()
				return rueidis.AuthCredentials{Username: "orders", Password: "secret"}, nil
			}})
		works(t, p, err, named)
		assert.Equal(t, s.Addr, asked)
	})
	t.Run("refused rights are the server's words", func(t *testing.T) {
		p, err := goredis.New(&redis.UniversalOptions{Addrs: []string{s.Addr}, Username: "orders", Password: "wrong", TLSConfig: certs.Client})
		require.NoError(t, err)
		defer p.Close()
		_, err = p.GetContext(t.Context())
		assert.ErrorContains(t, err, "WRONGPASS")
		_, err = rueidispool.New(t.Context(), rueidis.ClientOption{InitAddress: []string{s.Addr}, Username: "orders", Password: "wrong", TLSConfig: certs.Client})
		assert.ErrorContains(t, err, "WRONGPASS")
	})
}

// TestSentinelsAndCluster: the master that sentinels name, and the masters of a cluster.
func TestSentinelsAndCluster(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	t.Run("sentinels", func(t *testing.T) {
		t.Parallel()
		group := redistest.NewSentinels(t, 1, 3)
		p, err := goredis.New(&redis.UniversalOptions{Addrs: group.Addrs(), MasterName: group.Name, DB: 1})
		works(t, p, err, on(group.Servers[0], 1))
		p, err = rueidispool.New(t.Context(), rueidis.ClientOption{InitAddress: group.Addrs(), Sentinel: rueidis.SentinelOption{MasterSet: group.Name}, SelectDB: 1})
		works(t, p, err, on(group.Servers[0], 1))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.NewCluster(t, 3, 0)
		there := func(key string) bool {
			found := 0
			for _, s := range c.Masters {
				if on(s, 0)(key) {
					found++
				}
			}
			return found == 1
		}
		p, err := goredis.New(&redis.UniversalOptions{Addrs: c.Addrs()})
		works(t, p, err, there)
		p, err = rueidispool.New(t.Context(), rueidis.ClientOption{InitAddress: c.Addrs()[:1]})
		works(t, p, err, there)
	})
}

type streaming struct {
	auth.StreamingCredentialsProvider
}

// TestWhatCannotBeFollowed: an option that would put a lock elsewhere, or take it with other rights, is an error that names it.
func TestWhatCannotBeFollowed(t *testing.T) {
	onConnect := func(context.Context, *redis.Conn) error { return nil }
	for name, options := range map[string]*redis.UniversalOptions{
		"OnConnect":                    {OnConnect: onConnect},
		"StreamingCredentialsProvider": {StreamingCredentialsProvider: streaming{}, Addrs: []string{"a:1", "b:1"}},
		"RouteByLatency":               {MasterName: "locks", RouteByLatency: true},
		"nil":                          nil,
	} {
		_, err := goredis.New(options)
		assert.ErrorContains(t, err, name)
	}
	_, err := goredis.NewSentinel(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: []string{"a:1"}, ReplicaOnly: true})
	assert.ErrorContains(t, err, "ReplicaOnly")
	_, err = goredis.NewCluster(&redis.ClusterOptions{Addrs: []string{"a:1"}, ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return nil, nil }})
	assert.ErrorContains(t, err, "ClusterSlots")
	p, err := goredis.NewServer(&redis.Options{Addr: "127.0.0.1:1", CredentialsProviderContext: func(context.Context) (string, string, error) { return "", "", errors.New("no vault") }})
	require.NoError(t, err)
	_, err = p.GetContext(t.Context())
	assert.ErrorContains(t, err, "no vault")

	for name, options := range map[string]rueidis.ClientOption{
		"InitAddress":       {},
		"ReplicaOnly":       {InitAddress: []string{"a:1"}, ReplicaOnly: true},
		"Standalone":        {InitAddress: []string{"a:1"}, Standalone: rueidis.StandaloneOption{EnableRedirect: true}},
		"ForceSingleClient": {InitAddress: []string{"127.0.0.1:1"}},
		"several addresses": {InitAddress: []string{"127.0.0.1:1", "127.0.0.1:2"}, ForceSingleClient: true},
	} {
		_, err := rueidispool.New(t.Context(), options)
		assert.ErrorContains(t, err, name)
	}
}

// outside makes a module that is no part of this repository, with the versions that the suites have.
func outside(t *testing.T) (folder string, do func(args ...string)) {
	t.Helper()
	root, err := filepath.Abs("../../../..")
	require.NoError(t, err)
	folder = t.TempDir()
	text, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	module := regexp.MustCompile(`(?m)^module .*`).ReplaceAllString(string(text), "module shop")
	module = regexp.MustCompile(`=> (\.\./)+\.\.`).ReplaceAllString(module, "=> "+root)
	module = regexp.MustCompile(`=> (\.\./)+`).ReplaceAllString(module, "=> "+root+"/")
	sums, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte(module), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "go.sum"), sums, 0o644))
	return folder, func(args ...string) {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %v: %s", args, out)
	}
}

// TestAServiceOutside writes down the programs of README, the service of docs/services.md and its test, as a reader would, and runs what is a
// test; and it does so with the examples that README links.
func TestAServiceOutside(t *testing.T) {
	folder, do := outside(t)
	write := func(name, text string) {
		file := filepath.Join(folder, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	page, err := os.ReadFile("../../../../docs/services.md")
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)```go\n// file: (\\S+)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, files, 3)
	for _, file := range files {
		write(file[1], file[2])
	}
	readme, err := os.ReadFile("../../../../README.md")
	require.NoError(t, err)
	programs := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, programs)
	for i, program := range programs {
		write(fmt.Sprintf("program%d/main.go", i), program[1])
	}
	linked := regexp.MustCompile(`\]\(([\w/]+/example\w*_test\.go)\)`).FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, linked)
	for _, link := range linked {
		folder := filepath.Dir(link[1])
		all, err := filepath.Glob(filepath.Join("../../../..", folder, "example*_test.go")) // they share a server
		require.NoError(t, err)
		for _, file := range all {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			write("examples/"+strings.ReplaceAll(folder, "/", "_")+"/"+filepath.Base(file), string(text))
		}
	}
	do("vet", "./...")
	unformatted, err := exec.Command("gofmt", "-l", folder).CombinedOutput()
	require.NoError(t, err)
	require.Empty(t, string(unformatted), "gofmt")
	do("test", "./ship", "./examples/...")
}
