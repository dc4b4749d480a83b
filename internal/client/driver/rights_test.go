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

// TestAReleaseNeedsNoCompanions: a user whose key patterns do not cover the keys beside the lock, which have
// the lock's key in braces, takes the lock by a plain SET. Its release must free it.
func TestAReleaseNeedsNoCompanions(t *testing.T) {
	s := redistest.Real(t)
	guard := protocol.GuardKey("lock:1")
	queue := protocol.QueueKey("lock:1")
	yield := protocol.Yield{Key: protocol.YieldKey("lock:1"), Gap: time.Second}
	for _, c := range []struct {
		name  string
		keys  []any // patterns
		locks []string
		give  protocol.Machine
		want  protocol.Verdict
	}{
		{"a queue", []any{"~lock:*"}, []string{"lock:1"}, &protocol.ModernRelease{Key: "lock:1", Token: token, Queue: "{lock:1}:queue"}, protocol.Released},
		{"a queue and a counter", []any{"~lock:*", "~{lock:1}:queue"}, []string{"lock:1"}, &protocol.ModernRelease{
			Key: "lock:1", Token: token, Queue: "{lock:1}:queue", Fence: "{lock:1}:fence", FenceTTL: wait,
		}, protocol.Released},
		{"a place in the queue", []any{"~lock:*"}, []string{"lock:1"}, &protocol.ModernRelease{
			Key: "lock:1", Token: token, Queue: "{lock:1}:queue", Entry: true, Channel: "c", Claim: wait,
		}, protocol.Released},
		{"gaps for old clients", []any{"~lock:*", "~{lock:*}:guard"}, []string{"lock:1", guard}, &protocol.BridgeRelease{
			Key: "lock:1", Guard: guard, Value: token, Yield: yield, Queue: queue,
		}, protocol.Released},
		{"an acquisition that is undone", []any{"~lock:*", "~{lock:*}:guard"}, []string{"lock:1", guard}, &undone{BridgeAcquire: protocol.BridgeAcquire{
			Dialect: protocol.JedisMS, Key: "lock:1", Guard: guard, Value: token, TTL: wait, Yield: yield, Queue: queue,
		}}, protocol.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := asUser(t, s, append([]any{"+@all", "&*"}, c.keys...)...)
			for _, key := range c.locks {
				s.Do("SET", key, token, "PX", 60_000)
			}
			out := d.advance(context.Background(), c.give, protocol.Reply{})
			assert.Equal(t, c.want, out.Step.Verdict, "%v", out.Err)
			for _, key := range c.locks {
				assert.Empty(t, s.Value(key), key)
			}
		})
	}
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

// undone is an acquisition whose first replies are lost, so that it gives back what it may have.
type undone struct {
	protocol.BridgeAcquire
	lost int
}

func (u *undone) Next(now protocol.Instant, reply protocol.Reply) protocol.Step {
	step := u.BridgeAcquire.Next(now, reply)
	for step.Kind == protocol.Send && step.Command.Op == protocol.BridgeTake && u.lost < 2 {
		u.lost++
		step = u.BridgeAcquire.Next(now, protocol.Reply{Kind: protocol.Silence})
	}
	return step
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

// TestAnErrorWithinAScriptIsUnsure: the error of a script that had begun does not say what it had written. A client that
// may have taken a lock gives it back; a refusal from before the script is a plain failure.
func TestAnErrorWithinAScriptIsUnsure(t *testing.T) {
	s := redistest.Real(t)
	for _, c := range []struct {
		name string
		rule string
		take protocol.Machine
		want protocol.Verdict
	}{
		{"no clock", "-time", &protocol.ModernAcquire{Key: "lock", Token: token, TTL: wait, Fence: "fence", FenceTTL: wait}, protocol.Unsure},
		{"no clock, in the queue", "-time", &protocol.ModernQueue{
			Key: "lock", Token: token, TTL: wait, Queue: "queue", Channel: "c", Claim: wait, QueueTTL: wait, Fence: "fence", FenceTTL: wait,
		}, protocol.Unsure},
		{"no count", "-hincrby", &protocol.AcquireRedisson{Key: "lock", Holder: token, TTL: wait}, protocol.Unsure},
		{"no clock, a bridge", "-time", &protocol.BridgeAcquire{Dialect: protocol.JedisMS, Key: "lock", Guard: "guard", Value: token, TTL: wait, NotAfter: protocol.InstantOf(time.Now().Add(time.Hour))}, protocol.Failed},
		{"no scripts", "-@scripting", &protocol.ModernAcquire{Key: "lock", Token: token, TTL: wait, Fence: "fence", FenceTTL: wait}, protocol.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := asUser(t, s, "+@all", "~*", "&*", c.rule)
			out := d.advance(context.Background(), c.take, protocol.Reply{})
			assert.Equal(t, c.want, out.Step.Verdict, "%v", out.Err)
			assert.EqualValues(t, 0, s.Do("EXISTS", "lock", "guard"), "nothing was taken")
		})
	}
}

// TestTheQueuesKeyHoldsSomethingElse: it is not the lock that has another layout.
func TestTheQueuesKeyHoldsSomethingElse(t *testing.T) {
	s := redistest.Real(t)
	s.Do("HSET", "queue", "f", "v")
	for _, fence := range []string{"", "fence"} {
		m := &protocol.ModernQueue{Key: "lock", Token: token, TTL: wait, Queue: "queue", Channel: "c", Claim: wait, QueueTTL: wait, Fence: fence, FenceTTL: wait}
		out := newDriver(s.Pool()).advance(context.Background(), m, protocol.Reply{})
		assert.Equal(t, protocol.Failed, out.Step.Verdict)
		assert.ErrorContains(t, out.Err, "queue is no sorted set")
	}
}
