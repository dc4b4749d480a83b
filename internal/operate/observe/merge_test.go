package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What one host does on two masters: one row by host, two by connection, with the hold times of both.
func TestMergeOfTwoMasters(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	report := func(server, addr string, tries int64, skew, off float64, holds ...time.Duration) Report {
		row := Row{Addr: addr, Host: "10.0.0.1", Connections: 1, Kind: Legacy, Dialect: "jedis-ms", Tries: tries, Acquired: tries, Keys: []string{"lock:" + server}}
		row.SkewMS, row.SkewErrorMS = ref(skew), ref(off)
		for _, d := range holds {
			row.Hold.add(d)
		}
		row.percentiles()
		return Report{Server: server, Started: at, Commands: tries, Complete: true, Clients: []Row{row}, Hazards: map[string]int64{"clobber": tries}}
	}
	a := report("m1:1", "10.0.0.1", 3, 100, 2, time.Second)
	b := report("m2:1", "10.0.0.1", 5, 108, 1, 3*time.Second, 3*time.Second)
	b.Started = at.Add(-time.Second)

	one := Merge(ByHost, []Report{a, b})
	require.Len(t, one.Clients, 1)
	row := one.Clients[0]
	assert.Equal(t, 2, row.Connections)
	assert.EqualValues(t, 8, row.Acquired)
	assert.Equal(t, 3000.0, row.HoldP50MS)
	assert.Equal(t, []string{"lock:m2:1", "lock:m1:1"}, row.Keys)
	assert.Equal(t, 108.0, *row.SkewMS, "the better estimate")
	assert.Equal(t, 6.0, *row.SkewErrorMS, "and how far the other is from it")
	assert.Equal(t, at.Add(-time.Second), one.Started)
	assert.EqualValues(t, 8, one.Commands)
	assert.Equal(t, map[string]int64{"clobber": 8}, one.Hazards)
	assert.Equal(t, 100.0, *a.Clients[0].SkewMS, "what was merged is as it was")
	assert.Len(t, a.Clients[0].Keys, 1)

	two := Merge(ByAddr, []Report{a, b}) // the same port to two servers is two connections
	require.Len(t, two.Clients, 2)
	assert.Equal(t, "m2:1", two.Clients[0].Server, "who acquired more comes first")
	assert.Equal(t, "m1:1", two.Clients[1].Server)

	unnamed := Merge(ByName, []Report{a, b}) // connections without a name stay apart
	assert.Len(t, unnamed.Clients, 2)
	assert.Equal(t, a, Merge(ByHost, []Report{a}))
}
