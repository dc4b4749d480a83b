package parity

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// scanned is what a scan says of each key: format, state and likeliest dialect. What has no confidence to speak of has a question mark.
func scanned(t *testing.T, s *redistest.Server) map[string]string {
	t.Helper()
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	conn, err := end.DialRaw(t.Context(), s.Addr)
	require.NoError(t, err)
	rows := map[string]string{}
	c := census.New(census.Options{Confidence: census.Low, GhostAfter: time.Hour, Emit: func(r *census.Row) error {
		said := []string{string(r.Format), string(r.State)}
		if len(r.Dialects) > 0 {
			said = append(said, r.Dialects[0])
		}
		if r.Confidence == census.Low {
			said = append(said, "?")
		}
		rows[string(r.Key)] = strings.Join(said, " ")
		return nil
	}})
	require.NoError(t, c.Scan(context.Background(), conn))
	return rows
}

// TestScanOfEveryHolder: all hold, a key whose name tells of a lock and one whose name tells nothing; then all are killed, and their leases end.
// TestClients of suites/clients has the other released locks.
func TestScanOfEveryHolder(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	all := map[holders.Kind]struct{ named, nameless, after string }{
		holders.JedisLock: {"expiry-ms held jedis-ms", "expiry-ms held jedis-ms", "expired"},
		holders.Article:   {"expiry-ms held jedis-ms", "expiry-ms held jedis-ms", "expired"},
		holders.JedisUUID: {"uuid-expiry-ms held jedis-uuid", "uuid-expiry-ms held jedis-uuid", "expired"},
		holders.RedisPy:   {"expiry-float-s held redispy-float", "expiry-float-s held redispy-float", "expired"},
		holders.SetNXUUID: {"token-no-ttl held", "token-no-ttl held ?", "held"},
		holders.SetNXPX:   {"token held", "token held ?", ""},
		holders.PySetNXPX: {"token held", "token held ?", ""},
		holders.HashUID:   {"hash-uid held", "hash-uid held", ""},
		holders.Redisson:  {"redisson held", "redisson held", ""},
	}
	running := map[holders.Kind]*holders.Holder{}
	for kind := range all {
		var lease []holders.Option
		if kind != holders.SetNXUUID {
			lease = []holders.Option{holders.Arg("lease", 5*time.Second)}
		}
		running[kind] = holders.Start(t, kind, s.URL(), lease...)
	}
	held, after := map[string]string{}, map[string]string{}
	for kind, h := range running {
		for prefix, says := range map[string]string{"lock:": all[kind].named, "orders-": all[kind].nameless} {
			key := prefix + kind.Name + "-" + kind.Component()
			require.Equal(t, "acquired", h.Do("acquire %s", key).Event, h)
			if held[key] = says; all[kind].after != "" {
				after[key] = strings.Replace(says, "held", all[kind].after, 1)
			}
		}
	}
	assert.Equal(t, held, scanned(t, s))
	for _, h := range running {
		h.Kill()
	}
	redistest.Await(t, "the ends of the leases", 30*time.Second, func() bool { return assert.ObjectsAreEqual(after, scanned(t, s)) })
}
