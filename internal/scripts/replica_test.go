package scripts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// TestAReplicaSaysNoToNobody: a connection outlives the change of its master to a replica, which may be behind the new master. What
// it does not have may be there. A no, after which a holder gives a lock up that is its own, is a refusal there.
func TestAReplicaSaysNoToNobody(t *testing.T) {
	const ours, theirs, later = "5123456789012345678", "6123456789012345678", "9000000000000"
	const guard, queue = "{lock}:guard", "{lock}:queue"
	b := newObstacleBench(t)
	replica := obstacle{put: [][]string{{"REPLICAOF", "127.0.0.1", "1"}}, back: [][]string{{"REPLICAOF", "NO", "ONE"}}}
	for _, s := range []struct {
		script *scripts.Script
		keys   []string
		args   []any
		no     []string // what it says at a master
	}{
		{scripts.CompareDel, []string{"lock"}, []any{ours}, []string{"0"}},
		{scripts.CompareSet, []string{"lock"}, []any{ours, later}, []string{"0"}},
		{scripts.GatedCompareSet, []string{"lock"}, []any{ours, later, later}, []string{"0"}},
		{scripts.ModernExtend, []string{"lock", "lock"}, []any{ours, 10_000, 0}, []string{"0"}},
		{scripts.ModernRelease, []string{"lock", queue, guard}, []any{ours}, []string{"0"}},
		{scripts.ModernRelease, []string{"lock", queue, guard, "lock", "lock"}, []any{ours, 0, "1000 0 0 heard " + ours, 0}, []string{"0"}},
		{scripts.RedissonExtend, []string{"lock"}, []any{10_000, ours}, []string{"0", "WRONGTYPE"}},
		{scripts.RedissonRelease, []string{"lock"}, []any{ours, "redisson_lock__channel:{lock}"}, []string{"0", "WRONGTYPE"}},
		{scripts.BridgeSettle, []string{"lock", guard}, []any{ours, 10_000, "1000 ms plain 0", 0}, []string{"0"}},
		{scripts.BridgeRenew, []string{"lock", guard, "lock"}, []any{ours, 10_000, 0, 0}, []string{"0", "-1"}},
		{scripts.BridgeRelease, []string{"lock", guard, "lock", "lock"}, []any{ours, 0, 1}, []string{"0", "-1"}},
		{scripts.BridgeRelease, []string{"lock", guard, "lock", queue}, []any{ours, 0, 1}, []string{"0", "-1"}},
		{scripts.SidecarKeep, []string{"lock", guard, "{lock}:sidecar"}, []any{"me 10000 0"}, []string{"0", "3"}},
		{scripts.SidecarDel, []string{"lock", guard, "{lock}:sidecar", queue, "{lock}:yield"}, []any{"me 0 100"}, []string{"0"}},
	} {
		for name, before := range map[string][]string{
			"nothing is there": nil,
			"another's":        {"SET lock " + theirs + " PX 20000"},
			"another's too":    {"SET lock " + theirs + " PX 20000", "SET " + guard + " " + theirs + " PX 20000"},
			"another's hash":   {"HSET lock " + theirs + " 1", "PEXPIRE lock 20000"},
			"displaced":        {"SET lock " + theirs, "SET " + guard + " " + ours + " PX 20000"},
		} {
			if s.script == scripts.BridgeSettle && name == "displaced" || s.script == scripts.SidecarDel && (name == "displaced" || name == "another's hash") {
				continue // the guard is ours there; a DEL deletes what is no token
			}
			t.Run(s.script.Name+"/"+name, func(t *testing.T) {
				call := situation{script: s.script, before: before, keys: s.keys, args: s.args, locks: 1, ours: ours}
				master := b.run(t, call, nil)
				assert.Contains(t, s.no, master.code, "%v", master.err)
				got := b.run(t, call, []obstacle{replica})
				if master.code != "WRONGTYPE" { // as Redisson's own does
					assert.Equal(t, "READONLY", got.code, "%v", got.err)
				}
				for _, all := range []outcome{master, got} {
					for key, was := range all.before {
						assert.Equal(t, was.value, all.after[key].value, key)
						assert.Equal(t, was.ttl < 0, all.after[key].ttl < 0, "the TTL of %s", key)
					}
					assert.Len(t, all.after, len(all.before))
				}
			})
		}
	}
}
