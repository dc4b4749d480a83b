// This file holds the proof that a scan recognises what the real holders leave on their keys.

package parity

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// row is what a scan said of a key, out of the scanner's memory.
type row struct {
	format     census.Format
	state      census.State
	confidence string
	dialect    string // the first
	expiresIn  time.Duration
	ttl        int64
}

func scan(t *testing.T, s *redistest.Server, ghostAfter time.Duration, match ...string) map[string]row {
	t.Helper()
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	conn, err := end.DialRaw(context.Background(), s.Addr)
	require.NoError(t, err)
	rows := map[string]row{}
	c := census.New(census.Options{Match: match, Confidence: census.Low, GhostAfter: ghostAfter, Emit: func(r *census.Row) error {
		got := row{format: r.Format, state: r.State, confidence: r.Confidence.String(), ttl: r.TTL}
		if len(r.Dialects) > 0 {
			got.dialect = r.Dialects[0]
		}
		if r.HasExpiry {
			got.expiresIn = r.Expires.Sub(r.Now)
		}
		rows[string(r.Key)] = got
		return nil
	}})
	require.NoError(t, c.Scan(context.Background(), conn))
	return rows
}

// left is a holder and what its key should be taken for.
type left struct {
	kind    holders.Kind
	format  census.Format
	dialect string
	expiry  bool // the value is an expiry: without its holder it becomes expired, then a ghost
	ttl     bool // the key has one: without its holder it goes away
}

var everyHolder = []left{
	{holders.JedisLock, census.ExpiryMS, "jedis-ms", true, false},
	{holders.Article, census.ExpiryMS, "jedis-ms", true, false},
	{holders.JedisUUID, census.UUIDExpiryMS, "jedis-uuid", true, false},
	{holders.RedisPy, census.ExpiryFloatS, "redispy-float", true, false},
	{holders.SetNXUUID, census.TokenNoTTL, "", false, false},
	{holders.SetNXPX, census.Token, "", false, true},
	{holders.PySetNXPX, census.Token, "", false, true},
	{holders.HashUID, census.HashUID, "", false, true},
	{holders.Redisson, census.Redisson, "", false, true},
}

func nameless(l left) string { return "orders-" + l.kind.Name + "-" + l.kind.Component() }

func keyOf(l left) string { return "lock:" + l.kind.Name + "-" + l.kind.Component() }

// TestScanOverEveryHoldersKeys: all hold, then all are killed, then their leases are over.
func TestScanOverEveryHoldersKeys(t *testing.T) {
	s := redistest.Real(t)
	const lease = 3 * time.Second
	var running []*holders.Holder
	for _, l := range everyHolder {
		var options []holders.Option
		if l.kind != holders.SetNXUUID {
			options = append(options, holders.Arg("lease", lease))
		}
		running = append(running, holders.Start(t, l.kind, s.URL(), options...))
	}
	began := time.Now()
	for i, h := range running {
		got := h.Do("acquire %s", keyOf(everyHolder[i]))
		require.Equal(t, "acquired", got.Event, "%s: %+v", h, got)
		require.Equal(t, "acquired", h.Do("acquire %s", nameless(everyHolder[i])).Event, h) // and one on a key whose name says nothing
	}
	acquired := time.Since(began)

	for name, rows := range map[string]map[string]row{"by name": scan(t, s, time.Hour), "chosen": scan(t, s, time.Hour, "lock:*")} {
		for _, l := range everyHolder {
			if name == "by name" && (l.expiry || l.kind == holders.Redisson) {
				got := rows[nameless(l)]
				assert.Equal(t, []any{l.format, census.Held}, []any{got.format, got.state}, nameless(l))
				assert.NotEqual(t, "low", got.confidence, nameless(l))
			}
			got := rows[keyOf(l)]
			assert.Equal(t, l.format, got.format, "%s, %s", name, keyOf(l))
			assert.Equal(t, census.Held, got.state, "%s, %s", name, keyOf(l))
			assert.NotEqual(t, "low", got.confidence, "%s, %s", name, keyOf(l))
			assert.Equal(t, l.dialect, got.dialect, "%s, %s", name, keyOf(l))
			assert.Equal(t, l.ttl, got.ttl != census.NoTTL, "%s, %s: TTL %d", name, keyOf(l), got.ttl)
			if l.expiry || l.ttl {
				assert.Greater(t, got.expiresIn, lease-acquired-time.Second, "%s, %s", name, keyOf(l))
				assert.LessOrEqual(t, got.expiresIn, lease+time.Second, "%s, %s", name, keyOf(l))
			}
		}
	}

	for _, h := range running {
		h.Kill()
	}
	require.Eventually(t, func() bool {
		for _, l := range everyHolder {
			got, there := scan(t, s, time.Hour)[keyOf(l)]
			if l.expiry && got.state != census.Expired || l.ttl && there || !l.expiry && !l.ttl && got.state != census.Held {
				return false
			}
		}
		return true
	}, 5*lease, 50*time.Millisecond, "expiries expire, TTLs take their keys along, the UUID without TTL stays")

	ghosts := scan(t, s, time.Millisecond)
	for _, l := range everyHolder {
		if l.expiry {
			assert.Equal(t, census.Ghost, ghosts[keyOf(l)].state, keyOf(l))
		}
	}
}

// TestScanKnowsTheLockWithoutTimeout: redis-py's default.
func TestScanKnowsTheLockWithoutTimeout(t *testing.T) {
	s := redistest.Real(t)
	h := holders.Start(t, holders.RedisPy, s.URL())
	require.Equal(t, "acquired", h.Do("acquire orders").Event)
	assert.Equal(t, "2147483649.0", s.Value("orders"))
	got := scan(t, s, time.Hour)["orders"]
	assert.Equal(t, census.ExpiryFloatS, got.format)
	assert.Equal(t, census.Held, got.state)
	assert.Equal(t, "high", got.confidence)
}
