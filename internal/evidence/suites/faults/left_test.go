package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

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
