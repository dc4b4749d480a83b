package kinds

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// queues tells that those who wait for a lock of a kind stand in a queue on the server.
func queues(k kind) bool {
	return k.name == "modern" || k.name == "modern, fenced" || strings.HasPrefix(k.name, "compat") && !strings.HasSuffix(k.name, "legacy")
}

// TestAServerThatTakesNoWrites: a master has too few replicas for a while, or is a replica itself. It is away for its waiters: they wait
// on. One who leaves meanwhile leaves nothing behind that the others would wait for.
func TestAServerThatTakesNoWrites(t *testing.T) {
	for _, refusal := range []struct {
		name     string
		put, end []any
	}{
		{"NOREPLICAS", []any{"CONFIG", "SET", "min-replicas-to-write", 1}, []any{"CONFIG", "SET", "min-replicas-to-write", 0}},
		{"READONLY", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}},
	} {
		t.Run(refusal.name, func(t *testing.T) {
			each(t, queues, terms{ttl: time.Minute, reply: 5 * time.Second}, func(s *scene) {
				server := redistest.Real(s.T)
				open := func() lockmigrate.Locker {
					l := s.kind.open(s.T, []lockmigrate.Pool{server.Pool()}, terms{server: server, ttl: time.Minute, reply: 5 * time.Second})
					s.Cleanup(func() { _ = l.Close() })
					return l
				}
				inLine := func(n int64) func() bool {
					return func() bool { return server.Do("ZCARD", protocol.QueueKey(key)) == n }
				}
				holds, leaves, stays, comes := open(), open(), open(), open()
				lock, err := holds.TryAcquire(s.Context(), key)
				require.NoError(s, err)
				ctx, leave := context.WithCancel(s.Context())
				left := make(chan error, 1)
				go func() {
					_, err := leaves.Acquire(ctx, key)
					left <- err
				}()
				redistest.Within(s.T, "the first in line", late, inLine(1))
				waits := redistest.BeginTurn(s.Context(), stays.Acquire, key)
				redistest.Within(s.T, "the second in line", late, inLine(2))

				server.Do(refusal.put[0].(string), refusal.put[1:]...)
				leave()
				assert.ErrorIs(s, <-left, context.Canceled)
				go func() { // a newcomer is told by the first reply, and wakes nobody
					_, err := comes.TryAcquire(s.Context(), key)
					assert.Error(s, err)
				}()
				select {
				case err := <-waits:
					s.Fatalf("the waiter was sent away: %v", err)
				case <-time.After(500 * time.Millisecond):
				}
				server.Do(refusal.end[0].(string), refusal.end[1:]...)
				redistest.Within(s.T, "the one who has left to be out of the line", late, inLine(1))
				require.NoError(s, lock.Release(s.Context()))
				select {
				case err := <-waits:
					require.NoError(s, err)
				case <-time.After(late):
					s.Fatal("the waiter gets no turn")
				}
				start := time.Now()
				k, err := comes.Acquire(s.Context(), key)
				require.NoError(s, err)
				assert.Less(s, time.Since(start), late)
				require.NoError(s, k.Release(s.Context()))
			})
		})
	}
}

// TestARefusedGiveBackIsTriedAgain: a caller leaves before the reply to its acquisition, and the server refuses for a while to have it
// given back. The key does not stay for its TTL.
func TestARefusedGiveBackIsTriedAgain(t *testing.T) {
	each(t, nil, terms{ttl: time.Minute, reply: 5 * time.Second}, func(s *scene) {
		s.link.HalfOpen() // what is sent arrives, what is answered does not
		ctx, leave := context.WithCancel(s.Context())
		left := make(chan error, 1)
		go func() {
			_, err := s.TryAcquire(ctx, key)
			left <- err
		}()
		most := 1
		if s.kind.name == "quorum" {
			most = 2 // the third server's last release may still wait for its reply, and the acquisition behind it
		}
		redistest.Within(s.T, "the key", late, func() bool { return s.left() >= most })
		s.server.Do("ACL", "SETUSER", user, "-del") // before the caller leaves: what gives the key back arrives too
		leave()
		require.Error(s, <-left)
		s.link.Heal()
		redistest.Within(s.T, "a refusal", 2*late, func() bool { return s.counts.of(lockmigrate.EventFailed) > 0 })
		assert.GreaterOrEqual(s, s.left(), most)
		s.server.Do("ACL", "SETUSER", user, "+del")
		redistest.Within(s.T, "the key to be free", late, s.free)
	})
}

// TestABusyServer: a script of somebody else's keeps the server busy, and it says so to every command (BUSY). That is a server
// that is slow, and nothing more: a release comes through, a waiter goes on waiting, and a lock that was held stays held.
func TestABusyServer(t *testing.T) {
	each(t, nil, terms{ttl: 20 * time.Second, reply: 10 * time.Second}, func(s *scene) {
		s.server.Do("CONFIG", "SET", "lua-time-limit", "50")
		k := s.hold()
		waited := redistest.BeginTurn(s.Context(), s.Acquire, key)
		time.Sleep(100 * time.Millisecond) // the waiter is under way
		ended := make(chan error, 1)
		go func() {
			_, err := s.server.Try("EVAL", "while true do end", 0)
			ended <- err
		}()
		redistest.Await(s.T, "the server is busy", func() bool {
			_, err := s.server.Try("PING")
			return err != nil && strings.HasPrefix(err.Error(), "BUSY ")
		})
		released := make(chan error, 1)
		go func() { released <- errors.Join(k.Renew(s.Context()), k.Release(s.Context())) }()
		time.Sleep(200 * time.Millisecond) // it asks, and is told that the server is busy
		s.server.Do("SCRIPT", "KILL")
		assert.Error(s, <-ended)
		assert.NoError(s, <-released)
		select {
		case err := <-waited:
			require.NoError(s, err)
		case <-time.After(2 * late):
			s.Fatal("the waiter does not get the key")
		}
		s.leavesNothing(s.T)
		s.balanced()
	})
}
