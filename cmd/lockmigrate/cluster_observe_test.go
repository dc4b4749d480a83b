package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// locks takes and releases a lock on a server, as an old client does.
func locks(s *redistest.Server) {
	_, _ = s.Try("SETNX", "lock:before", inMS(time.Minute))
	_, _ = s.Try("DEL", "lock:before")
}

// observed is what the tests want to know of observe --json.
type observed struct {
	Clients  []observedClient
	Hazards  map[string]int64
	Overlaps []struct{ Key string }
	Holes    []string
}

type observedClient struct {
	Addr, Server, Kind string
	Connections        int
	Acquired           int64
}

// client returns the row of a connection to a server.
func (o observed) client(addr, server string) observedClient {
	for _, c := range o.Clients {
		if c.Addr == addr && c.Server == server {
			return c
		}
	}
	return observedClient{}
}

// turn takes and releases a lock, as an old client does.
func turn(conn redis.Conn, key string) {
	_, _ = conn.Do("SETNX", key, inMS(30*time.Second))
	_, _ = conn.Do("DEL", key)
}

func TestObserveOverACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 0)
	conns := []redis.Conn{c.Masters[0].Conn(), c.Masters[1].Conn(), c.Masters[2].Conn()}
	second, thief := c.Masters[1].Conn(), c.Masters[1].Conn()
	observe := func(group string) observed {
		r := start(t, "observe", "--for", "2s", "--json", "--group", group, "--redis", c.URL())
		code := r.during(func() {
			for i, conn := range conns {
				turn(conn, ownedBy(c, i))
			}
			key := ownedBy(c, 1)
			turn(thief, key) // a DEL of somebody who never locks could be another connection of the holder's pool
			_, _ = conns[1].Do("SETNX", key, inMS(30*time.Second))
			_, _ = thief.Do("DEL", key)
			turn(second, key)
			_, _ = conns[1].Do("DEL", key)
		})
		require.Equal(t, exitDone, code, r.diagnostics.String())
		var o observed
		require.NoError(t, json.Unmarshal([]byte(r.out.String()), &o))
		return o
	}
	o := observe("addr")
	for i, conn := range conns {
		row := o.client(addrOf(t, conn), c.Masters[i].Addr)
		assert.Equal(t, "legacy", row.Kind, "%+v", o.Clients)
		assert.Positive(t, row.Acquired)
	}
	assert.Positive(t, o.Hazards["stale-delete"])
	assert.NotEmpty(t, o.Overlaps)
	for _, v := range o.Overlaps {
		assert.Equal(t, ownedBy(c, 1), v.Key, "the only key with a thief")
	}
	assert.Empty(t, o.Holes)
	o = observe("host")
	require.Len(t, o.Clients, 1, "%+v", o.Clients)
	assert.GreaterOrEqual(t, o.Clients[0].Connections, 4)
	assert.Empty(t, o.Clients[0].Server)
}

// A master hands over within the window: what the new one serves is seen, what came in between is told to be
// missing, and nothing is made up, though the old one goes on executing what the new one sends it.
func TestObserveOverAnOrderlyFailover(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 1)
	r := start(t, "observe", "--for", "20s", "--json", "--follow", "--redis", c.URL())
	before, after := c.Masters[0].Conn(), c.Replicas[0][0].Conn()
	r.await(`"what":"acquired"`, func() { turn(before, ownedBy(c, 0)) })
	c.Failover(c.Replicas[0][0])
	newcomer := addrOf(t, after)
	code := r.during(func() { turn(after, ownedBy(c, 0)) })
	require.Equal(t, exitInconclusive, code, r.diagnostics.String())
	assert.Contains(t, r.diagnostics.String(), "not all was seen: ")
	o := r.summary()
	assert.Positive(t, o.client(addrOf(t, before), c.Masters[0].Addr).Acquired, "%+v", o.Clients)
	assert.Positive(t, o.client(newcomer, successor(c)).Acquired, "%+v", o.Clients)
	assert.Len(t, o.Clients, 2, "%+v", o.Clients)
	assert.Empty(t, o.Overlaps)
	assert.Empty(t, o.Hazards)
	assert.Equal(t, c.Masters[0].Addr+" is no master any more", o.Holes[0])
	assert.Contains(t, o.Holes[1], successor(c)+" is watched from ")
}

// A master dies within the window, and its replica takes over.
func TestObserveOverADeadMaster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 1)
	r := start(t, "observe", "--for", "10m", "--json", "--follow", "--redis", c.URL())
	before, after, other := c.Masters[0].Conn(), c.Replicas[0][0].Conn(), c.Masters[1].Conn()
	r.await(`"key":"`+ownedBy(c, 0), func() { turn(before, ownedBy(c, 0)) }) // else its death may come before its watch, and end the command
	r.await(`"key":"`+ownedBy(c, 1), func() { turn(other, ownedBy(c, 1)) })
	c.Masters[0].Kill()
	r.await(`"by":{"addr":"`+addrOf(t, after), func() { turn(after, ownedBy(c, 0)) })
	seen := strings.Count(r.out.String(), `"key":"`+ownedBy(c, 1))
	redistest.Await(t, "the other masters to be watched still", 30*time.Second, func() bool {
		turn(other, ownedBy(c, 1))
		return strings.Count(r.out.String(), `"key":"`+ownedBy(c, 1)) > seen
	})
	r.stop()
	assert.Equal(t, exitFailed, r.wait(), "interrupted")
	o := r.summary()
	assert.Positive(t, o.client(addrOf(t, after), successor(c)).Acquired, "%+v", o.Clients)
	assert.Empty(t, o.Overlaps)
	assert.Empty(t, o.Hazards)
	assert.NotEmpty(t, o.Holes)
}

// successor is the address of the first master's replica.
func successor(c *redistest.Cluster) string { return c.Replicas[0][0].Addr }

// summary is the last line of observe --follow --json.
func (r *running) summary() observed {
	r.t.Helper()
	lines := strings.Split(strings.TrimSpace(r.out.String()), "\n")
	var last struct{ Summary observed }
	require.NoError(r.t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	return last.Summary
}
