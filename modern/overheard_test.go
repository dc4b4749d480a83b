package modern_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/modern"
)

// TestGrantIsNotOverheard: FAILOVER swaps a master and its replica and loses no key. A waiter whose connections survive it
// listens at a replica then, where it hears what the new master publishes and is not counted. The release at the new
// master passes it over; it must not take the key for its own beside the next holder.
func TestGrantIsNotOverheard(t *testing.T) {
	first := redistest.Real(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(first.Addr)
	second := redistest.Real(t, "--repl-diskless-sync-delay", "0", "--replicaof", host+" "+port)
	is := func(s *redistest.Server, role string) bool {
		says, err := redis.Values(s.Try("ROLE"))
		return err == nil && string(says[0].([]byte)) == role && (role == "master" || string(says[3].([]byte)) == "connected")
	}
	redistest.Await(t, "a replica", 10*time.Second, func() bool { return is(second, "slave") })

	holder, err := newLocker(t, first.Pool(), modern.Options{}).TryAcquire(t.Context(), key)
	require.NoError(t, err)
	waiter := newLocker(t, first.Pool(), modern.Options{})
	modern.SetClaim(waiter, 30*time.Second) // it relies on what it hears in half of that
	ctx, leave := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(ctx, key)
		waited <- err
	}()
	redistest.Await(t, "a waiter in line", 5*time.Second, func() bool {
		n, _ := redis.Int(second.Try("ZCARD", "{"+key+"}:queue"))
		return n == 1
	})
	first.Do("FAILOVER")
	redistest.Await(t, "the failover", 5*time.Second, func() bool { return is(second, "master") && is(first, "slave") })

	released, err := redis.Int(second.Try("EVAL", scripts.ModernRelease.Source, 2, key, "{"+key+"}:queue", holder.Token()))
	require.NoError(t, err)
	require.Equal(t, 1, released)
	_, err = newLocker(t, second.Pool(), modern.Options{}).TryAcquire(t.Context(), key)
	require.NoError(t, err)
	select { // its address leads to the replica, which refuses it (READONLY): it goes on waiting
	case err := <-waited:
		t.Fatalf("the waiter has come back, with %v", err)
	case <-time.After(time.Second):
	}
	leave()
	assert.Error(t, <-waited, "the waiter holds what another holds")
}
