package faults

import (
	"fmt"
	"slices"
	"strings"
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

// none waits until look finds nothing on any server of a site that runs: TTLs pass, and servers close connections, in their own time.
func (s *site) none(what string, within time.Duration, look func(server *redistest.Server) ([]string, error)) {
	s.t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		var found []string
		for _, server := range s.all {
			if !server.Running() {
				continue
			}
			names, err := look(server)
			if err != nil { // a sentinel cuts its connections: it is asked again
				names = append(names, err.Error())
			}
			found = append(found, names...)
		}
		if len(found) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Errorf("%s left behind: %q", what, found)
			return
		}
	}
}

// nothingLeft wants nobody's lock and no connection behind a crew that has ended.
func (s *site) nothingLeft() {
	s.t.Helper()
	s.none("keys", lease+2*time.Second, leftOn)
	s.none("connections", 2*time.Second, connections)
}

// leftOn are keys of locks that outlive their TTL or lease, and companions that would never go.
func leftOn(server *redistest.Server) (names []string, err error) {
	if server.Role() == "slave" {
		return nil, nil
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

// connections are those that the crew has left open.
func connections(server *redistest.Server) (lines []string, err error) {
	list, err := redis.String(server.Try("CLIENT", "LIST"))
	for line := range strings.Lines(list) {
		// Not ours: the one that asks, other servers (MIGRATE keeps its connection), sentinels, the site's own.
		others := []string{"cmd=client|list", "cmd=replconf", "flags=S", "flags=M", "name=sentinel", "cmd=set", "cmd=restore"}
		if !slices.ContainsFunc(others, func(mark string) bool { return strings.Contains(line, mark) }) {
			lines = append(lines, line)
		}
	}
	return lines, err
}
