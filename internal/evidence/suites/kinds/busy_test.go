package kinds

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestABusyServer: a script of somebody else's keeps the server busy, and it says so to every command (BUSY). That is a server
// that is slow, and nothing more: a release comes through, a waiter goes on waiting, and a lock that was held stays held.
func TestABusyServer(t *testing.T) {
	each(t, nil, terms{ttl: 20 * time.Second, reply: 10 * time.Second}, func(s *scene) {
		s.server.Do("CONFIG", "SET", "lua-time-limit", "50")
		k := s.hold()
		waited := make(chan error, 1)
		go func() {
			next, err := s.acquire(s.Context(), key)
			if err == nil {
				err = next.Release(s.Context())
			}
			waited <- err
		}()
		time.Sleep(100 * time.Millisecond) // the waiter is under way
		ended := make(chan error, 1)
		go func() {
			_, err := s.server.Try("EVAL", "while true do end", 0)
			ended <- err
		}()
		redistest.Await(s.T, "the server is busy", 20*time.Second, func() bool {
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
