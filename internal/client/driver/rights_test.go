package driver

import (
	"context"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const token, wait = "5123456789012345678", time.Minute

// asUser returns a driver whose connections belong to a user with rules of its own.
func asUser(t *testing.T, s *redistest.Server, rules ...any) *PerAttempt {
	s.Do("ACL", append([]any{"SETUSER", "app", "reset", "on", ">secret"}, rules...)...)
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.Addr, redis.DialUsername("app"), redis.DialPassword("secret"))
	}}
	t.Cleanup(func() { _ = pool.Close() })
	return newDriver(pool)
}

// TestADisplacementIsToldWithoutCompanions: the release that names the lock's own keys only leaves the guard too, until it is heard.
func TestADisplacementIsToldWithoutCompanions(t *testing.T) {
	s := redistest.Real(t)
	const theirs = "1700000000000"
	guard := protocol.GuardKey("lock:1")
	d := asUser(t, s, "+@all", "&*", "~lock:*", "~{lock:*}:guard")
	s.Do("SET", "lock:1", theirs)
	s.Do("SET", guard, token, "PX", 60_000)
	m := &protocol.BridgeRelease{Key: "lock:1", Guard: guard, Value: token, Queue: protocol.QueueKey("lock:1"), Hand: true}
	d.advance(context.Background(), &protocol.BridgeRelease{Key: "lock:2", Guard: protocol.GuardKey("lock:2"), Value: token}, protocol.Reply{}) // loads the script
	commands := 0
	d.Pool = &redistest.Faulty{Pool: d.Pool.(*redis.Pool), Fate: func(int, string) redistest.Fate {
		if commands++; commands == 2 { // the first one is refused
			return redistest.LosesReply
		}
		return redistest.Passes
	}}
	out := d.advance(context.Background(), m, protocol.Reply{})
	assert.Equal(t, protocol.Displaced, out.Step.Verdict, "%v", out.Err)
	assert.Equal(t, theirs, m.Seen())
	assert.Empty(t, s.Value(guard))
	assert.Equal(t, 4, commands, "refused, lost, told, cleared")
}

// TestAReleaseSaysWhatTheFallbackFound: where the queue's key is denied the lock may have gone before.
func TestAReleaseSaysWhatTheFallbackFound(t *testing.T) {
	s := redistest.Real(t)
	d := asUser(t, s, "+@all", "~lock:*")
	out := d.advance(context.Background(), &protocol.ModernRelease{Key: "lock:1", Token: token, Queue: "{lock:1}:queue"}, protocol.Reply{})
	assert.Equal(t, protocol.NotOurs, out.Step.Verdict)
	none := asUser(t, s, "+@all", "~other:*")
	out = none.advance(context.Background(), &protocol.ModernRelease{Key: "lock:1", Token: token, Queue: "{lock:1}:queue"}, protocol.Reply{})
	assert.Equal(t, protocol.Failed, out.Step.Verdict)
	require.ErrorContains(t, out.Err, "NOPERM")
}
