package kinds

import (
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestABusyServer: a script of somebody else's keeps the server busy, and it says so to every command (BUSY). That is a server
// that is slow, and nothing more: a release comes through, a waiter goes on waiting, and a lock that was held stays held.
func TestABusyServer(t *testing.T) {
	const busy = time.Second
	each(t, nil, terms{ttl: 20 * time.Second, reply: 5 * time.Second}, func(s *scene) {
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

		done := make(chan struct{})
		go func() {
			defer close(done)
			conn := s.server.Conn()
			defer conn.Close()
			_, err := redis.DoWithTimeout(conn, time.Minute, "EVAL", `
				local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
				local ends = now() + ARGV[1]
				while now() < ends do end`, 0, busy.Milliseconds())
			assert.NoError(s, err)
		}()
		redistest.Await(s.T, "the server is busy", 5*time.Second, func() bool {
			conn, err := redis.Dial("tcp", s.server.Addr, redis.DialReadTimeout(time.Second))
			if err != nil {
				return false
			}
			defer conn.Close()
			_, err = conn.Do("PING")
			return err != nil && strings.HasPrefix(err.Error(), "BUSY ")
		})
		assert.NoError(s, k.Renew(s.Context()))
		assert.NoError(s, k.Release(s.Context()))
		select {
		case err := <-waited:
			require.NoError(s, err)
		case <-time.After(busy + late):
			s.Fatal("the waiter does not get the key")
		}
		<-done
		s.leavesNothing(s.T)
		s.balanced()
	})
}
