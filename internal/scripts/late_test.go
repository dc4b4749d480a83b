package scripts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// TestALateRenewalLeavesNothing: a renewal and a release may go over two connections, and the renewal come last. Also while the
// guard stands for a moment it finds nothing to repair: a key that it set would be nobody's until its TTL ends.
func TestALateRenewalLeavesNothing(t *testing.T) {
	server := redistest.Real(t)
	conn := server.Conn()
	run := func(s *scripts.Script, values scripts.Values) any {
		args, err := s.Call(values)
		require.NoError(t, err)
		reply, err := conn.Do("EVAL", append([]any{s.Source}, args...)...)
		require.NoError(t, err)
		return reply
	}
	const key, guard, value = "lock", "{lock}:guard", "5123456789012345678"
	for _, k := range []string{key, guard} {
		server.Do("SET", k, value, "PX", 10_000)
	}
	assert.EqualValues(t, 1, run(scripts.BridgeRelease, scripts.Values{"key": key, "guard": guard, "yield": key, "queue": key, "value": value,
		"gap": 0, "hand": 1, "held": 0, "behind": 0, "breath": 5000}))
	assert.Equal(t, []any{int64(0)}, run(scripts.BridgeRenew, scripts.Values{"key": key, "guard": guard, "fence": key, "value": value, "ttl": 10_000, "fence_ttl": 0, "not_after": 0}))
	assert.Equal(t, []any{int64(0), int64(0), int64(0), []byte{}}, run(scripts.BridgeSettle, scripts.Values{"key": key, "guard": guard, "value": value, "ttl": 10_000,
		"rules": "0 float plain 0", "not_after": 0}))
	assert.EqualValues(t, 0, server.Do("EXISTS", key))
	assert.EqualValues(t, 1, server.Do("EXISTS", guard), "nobody of the bridge takes the key yet")
}
