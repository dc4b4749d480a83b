// Package faults does to real servers, and to the ways to them, what goes wrong in operation, while
// holders of every kind work, and counts what came of it. docs/faults.md is its table.
package faults

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

var (
	update = flag.Bool("update", false, "write docs/faults.md")
	rounds = flag.Int("rounds", 2, "how often each fault is injected")
)

// site is where a fault happens.
type site struct {
	t       *testing.T
	server  *redistest.Server // the one server, or the master at the start
	link    *redistest.Link   // the far side's way to it
	pair    *redistest.Replicated
	group   *redistest.SentinelGroup
	cluster *redistest.Cluster
	clock   *redistest.Clocked
	sides   []side
	all     []*redistest.Server
}

// promise is what holds for tokens (bridge, modern) while a fault is going on. Legacy holders are in the
// table too, but nobody tells them anything.
type promise uint8

const (
	exclusive promise = iota // nothing that was acknowledged is lost: no overlap
	told                     // the server has lost what it acknowledged: the holder is told within one renewal
)

func TestFaults(t *testing.T) {
	table := &table{rows: map[string]row{}}
	t.Run("each", func(t *testing.T) {
		for _, f := range faults {
			t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				table.add(f.name, survive(t, f))
			})
		}
	})
	if t.Failed() || len(table.rows) < len(faults) {
		return // a part of the table is no table
	}
	if *update {
		require.NoError(t, table.write())
	}
	table.check(t)
}

// survive lets a crew work through rounds of a fault.
func survive(t *testing.T, f fault) row {
	s := &site{t: t}
	f.site(s)
	hold := 8 * time.Millisecond
	c := newCrew(t, hold, f.kinds, s.sides...)
	c.stuck = func() { describe(s) }
	ended := false
	defer func() {
		if !ended {
			c.end()
		}
	}()
	c.progress(20 * time.Second)
	result := row{fault: f}
	for range *rounds {
		redistest.Await(t, "a holder in a long turn", 10*ttl, c.referee.midst)
		f.inject(s)
		result.injected++
		// Nobody waits for longer than what was lost with its holder lasts: a lease of the old kind.
		c.progress(lease + ttl + 10*time.Second + f.slow)
	}
	c.end()
	ended = true
	r := c.referee
	result.turns = r.count(r.turns)
	for kind, n := range r.overlaps {
		if kind == "legacy" {
			result.legacy += n
		} else {
			result.overlaps += n
		}
	}
	result.lost = r.lost
	for _, d := range r.delays {
		result.delay = max(result.delay, d)
	}
	result.left = left(t, s)
	result.conns = connections(t, s)

	if f.promise == exclusive {
		assert.Zero(t, result.overlaps, redistest.Violated+": overlaps of tokens")
		assert.Zero(t, result.legacy, "nor of old locks: nothing was lost and no lease overrun")
		checked, wrong := r.linearizable()
		assert.Empty(t, wrong, "histories that no order explains")
		t.Logf("%d operations are linearizable", checked)
	} else {
		assert.Zero(t, r.untold, redistest.Violated+": a holder that was overlapped did not hear of it")
		assert.LessOrEqual(t, result.delay, 2*ttl, "and soon")
	}
	assert.Zero(t, result.left, "nothing is left behind")
	assert.Zero(t, result.conns, "no connection is left")
	t.Logf("%+v", result)
	return result
}

// describe logs what is on the servers of a site where somebody hangs.
func describe(s *site) {
	for _, server := range s.all {
		if !server.Running() {
			continue
		}
		keys, _ := redis.Strings(server.Try("KEYS", "*"))
		s.t.Logf("%s holds %q", server.Addr, keys)
		if s.cluster != nil {
			nodes, _ := redis.String(server.Try("CLUSTER", "NODES"))
			s.t.Logf("%s", nodes)
		}
	}
}

// left counts keys of locks that outlive their TTL or lease, and companions that would never go. A server that does not answer,
// because a sentinel cuts its connections, is asked again.
func left(t *testing.T, s *site) int {
	t.Helper()
	deadline := time.Now().Add(lease + 2*time.Second)
	for {
		var names []string
		for _, server := range s.all {
			if !server.Running() {
				continue
			}
			found, err := leftOn(server)
			if err != nil {
				names = append(names, err.Error())
			}
			names = append(names, found...)
		}
		if len(names) == 0 || time.Now().After(deadline) {
			if len(names) > 0 {
				t.Logf("left behind: %v", names)
			}
			return len(names)
		}
		time.Sleep(20 * time.Millisecond) // waiting for another process's TTLs
	}
}

func leftOn(server *redistest.Server) (names []string, err error) {
	if role, err := redis.Values(server.Try("ROLE")); err != nil || string(role[0].([]byte)) != "master" {
		return nil, err
	}
	keys, err := redis.Strings(server.Try("KEYS", "*fault:*"))
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		pttl, err := redis.Int64(server.Try("PTTL", key))
		if err != nil {
			return nil, err
		}
		// Counters are meant to outlive locks; a queue that a dead waiter stands in is emptied by the next
		// release, or ends by itself. The state of the gaps is gone within a minute of the key's last use.
		if companion := strings.Contains(key, "fence") || strings.Contains(key, "queue") || strings.HasSuffix(key, ":yield") && pttl <= 45_000; companion && pttl > 0 || pttl == -2 {
			continue
		}
		if strings.Contains(key, "legacy") && pttl == -1 {
			// A ghost: the old scheme leaves the value of a holder that could not delete it, and the next one takes it over.
			// `lockmigrate sweep` removes it.
			if value, _ := redis.String(server.Try("GET", key)); expired(value) {
				continue
			}
		}
		names = append(names, key)
	}
	return names, nil
}

func expired(value string) bool {
	var ms int64
	_, err := fmt.Sscan(value, &ms)
	return err == nil && time.UnixMilli(ms).Before(time.Now())
}

// connections counts those that the crew has left open.
func connections(t *testing.T, s *site) (n int) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Second)
	for {
		n = 0
		for _, server := range s.all {
			if !server.Running() {
				continue
			}
			list, err := redis.String(server.Try("CLIENT", "LIST"))
			if err != nil {
				n++ // not known
				continue
			}
			for _, line := range strings.Split(strings.TrimSpace(list), "\n") {
				// Not ours: the one that asks, other servers (MIGRATE keeps its connection), sentinels, the site's own.
				if !strings.Contains(line, "cmd=client|list") && !strings.Contains(line, "cmd=replconf") && !strings.Contains(line, "flags=S") &&
					!strings.Contains(line, "flags=M") && !strings.Contains(line, "name=sentinel") && !strings.Contains(line, "cmd=set") && !strings.Contains(line, "cmd=restore") {
					n++
				}
			}
		}
		if n == 0 || time.Now().After(deadline) {
			return n
		}
		time.Sleep(20 * time.Millisecond) // the server closes them in its own time
	}
}

func TestMain(m *testing.M) {
	holdersServe()
	redistest.Main(redistest.Leakless{M: m}, redistest.Redis)
}
