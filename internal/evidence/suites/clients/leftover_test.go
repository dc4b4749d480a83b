package clients

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestLosersLeaveNothingForEver: redis-py up to 2.9.1, with its default of no timeout, takes a key that has gone for an expired
// one. A loser's GETSET may then overwrite a bridge holder's value with one that never expires. The bridge gives such a loser
// the time to come first, and frees the key if it comes late, as a redis-py holder would. Without either, the
// key of this fleet was dead for ever after some fifty turns.
func TestLosersLeaveNothingForEver(t *testing.T) {
	t.Parallel()
	for version, kind := range map[string]holders.Kind{"2.7.6": holders.RedisPy27, "2.9.1": holders.RedisPy} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			py := func() *holders.Holder { return holders.Start(t, kind, s.URL(), quick) }
			ours := ofGo(t, s, "compat", holders.Arg("stage", "bridge"), holders.Arg("dialect", "redispy-float"))
			report := holders.Fleet{
				T: t, Server: s, Key: "lock.order.1", Turns: 250, Hold: 10 * time.Millisecond, Limit: 2 * time.Minute, Record: true,
				Members: []holders.Member{py, py, ours, ours},
			}.Run()
			t.Log(report)
			assert.Zero(t, report.Overlaps, redistest.Violated)
			assert.Empty(t, report.Thrown(memberTTL), "a lock threw")
		})
	}
}

// TestBreath: after a release the guard keeps bridge clients off for a moment, where an old client may take the key for expired.
func TestBreath(t *testing.T) {
	for dialect, wanted := range map[string]string{
		"redispy-float": "SET breath PX 5", "redis-objects": "SET breath PX 5", "sec-pid-thread": "SET breath PX 5",
		"jedis-ms": "DEL", "jedis-uuid": "DEL", "redis-doc": "DEL", "jboot": "DEL",
	} {
		t.Run(dialect, func(t *testing.T) {
			s := redistest.Real(t)
			locker, err := newCompat(s.Pool(), "bridge", dialect, 30*time.Second)
			require.NoError(t, err)
			defer locker.Close()
			for range 2 { // one after the other: the second waits for that moment
				lock, err := locker.Acquire(t.Context(), "lock.order.1")
				require.NoError(t, err)
				m := s.Monitor()
				require.NoError(t, lock.Release(t.Context()))
				var did []string
				for _, c := range m.Everything() {
					if c.Addr == "lua" && slices.Contains(c.Words, "{lock.order.1}:guard") { // DEL has the key beside it
						did = append(did, strings.Join(slices.DeleteFunc(slices.Clone(c.Words), func(w string) bool { return strings.Contains(w, "lock.order.1") }), " "))
					}
				}
				assert.Contains(t, did, wanted)
			}
		})
	}
}
