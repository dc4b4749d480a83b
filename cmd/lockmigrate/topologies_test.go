package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// The stage of a namespace, and a census of all keys, over a cluster and over sentinels.
func TestStageAndScanOverManyServers(t *testing.T) {
	t.Parallel()
	over := func(t *testing.T, url string, set func(key, value string)) {
		for _, key := range []string{"lock:a", "lock:b", "lock:c", "lock:d", "lock:e", "lock:f"} {
			set(key, "9999999999999")
		}
		o := operator{t, url}
		o.bridges("orders", "lock:*")
		assert.Contains(t, o.says(exitDone, "stage", "--namespace", "orders", "--json"), `"bridge"`)
		out, _ := o.runs(exitDone, "scan", "--match", "lock:*", "--json")
		rows := strings.Split(strings.TrimSpace(out), "\n")
		var last struct {
			Summary struct{ Locks int }
		}
		require.NoError(t, json.Unmarshal([]byte(rows[len(rows)-1]), &last))
		assert.Equal(t, 6, last.Summary.Locks, "of every master")
	}
	t.Run("cluster", func(t *testing.T) {
		c := redistest.NewCluster(t, 3, 0)
		over(t, c.URL(), func(key, value string) {
			for _, s := range c.Masters {
				if _, err := s.Try("SET", key, value); err == nil {
					return
				}
			}
			t.Fatalf("nobody takes %s", key)
		})
		_, stderr := expect(t, exitDone, "scan", "--redis", c.Masters[0].URL())
		assert.Contains(t, stderr, "this server is one node of a cluster")
	})
	t.Run("sentinel", func(t *testing.T) {
		g := redistest.NewSentinels(t, 1, 1)
		over(t, g.URL(), func(key, value string) { g.Master().Do("SET", key, value) })
	})
}

// TestScanAcrossAFailover: the server that a scan has begun on becomes a replica. Its keys are no evidence from then on.
func TestScanAcrossAFailover(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 1, 1)
	c.Masters[0].Do("EVAL", "#!lua flags=allow-cross-slot-keys\nfor i = 1, 3000 do redis.call('SET', 'lock:' .. i, '1') end", 0)
	r := start(t, "scan", "--json", "--rate", "500", "--all", "--redis", c.URL())
	r.await("lock:", nil)
	c.Failover(c.Replicas[0][0])
	assert.Equal(t, exitFailed, r.wait())
	assert.Contains(t, r.out.String(), `"complete":false`)
	assert.Contains(t, r.diagnostics.String(), "the masters were "+c.Masters[0].Addr+", and now are "+c.Replicas[0][0].Addr)
}

// TestVerifyBesideSentinelsThatAreCutOff: two others may have replaced the master that the last one names.
func TestVerifyBesideSentinelsThatAreCutOff(t *testing.T) {
	t.Parallel()
	g := redistest.NewSentinels(t, 1, 3)
	live(g.Master(), "lock:live")
	verify := []string{"verify", "--for", "1s", "--longest-silence", "1s", "--match", "lock:*", "--burst", "1s", "--every", "1s", "--redis", g.URL()}
	expect(t, exitDone, verify...)
	g.Sentinels[0].Kill()
	g.Sentinels[1].Kill()
	redistest.Await(t, "the third to miss them", 20*time.Second, func() bool {
		_, err := g.Sentinels[2].Try("SENTINEL", "CKQUORUM", g.Name)
		return err != nil
	})
	out, stderr := expect(t, exitInconclusive, verify...)
	assert.Contains(t, out, "NOQUORUM")
	assert.Contains(t, stderr, "not discharged: masters")
}
