package fence

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// Hit is one or more commands that the server denied.
type Hit struct {
	User    string `json:"user"`
	Command string `json:"command"`
	Key     string `json:"key,omitempty"` // where the server tells
	Context string `json:"context"`       // toplevel, multi, lua
	Addr    string `json:"addr"`          // of the last of them
	Name    string `json:"name,omitempty"`
	Count   int64  `json:"count"`
}

// Log follows ACL LOG. The server joins entries of one user, command and context within a minute into one that names the last client only: who looks
// seldom loses addresses. A Log is therefore polled several times a second; what was there before the first look does not count.
type Log struct {
	Last   []Logged // of the last look, nil before the first: a Log that is given those of another one goes on there
	Forgot bool     // since the last look more may have come than the server kept
}

// Logged is one entry as a look found it. Two entries may differ in nothing but their times: the oldest goes when a full log gets another one.
type Logged struct {
	ID    string `json:"id"` // what the server joins entries by
	Count int64  `json:"count"`
	At    int64  `json:"at"` // when it last rose, in milliseconds of the server's clock
}

const (
	asked = 128 // entries: as many as the server keeps by default
	kept  = 64  // entries that a server may be set to keep, and no fewer
	apart = 250 // milliseconds by which two looks may differ about a time
)

// Poll returns what was denied since the last look. The first look returns nothing.
func (l *Log) Poll(ctx context.Context, conn redis.Conn) (hits []Hit, err error) {
	_, _ = conn.Send("TIME"), conn.Send("ACL", "LOG", asked) // together: the log has the ages of its entries
	if err := conn.Flush(); err != nil {
		return nil, err
	}
	clock, err := redis.Int64s(redis.ReceiveContext(conn, ctx))
	raw, refused := redis.Values(redis.ReceiveContext(conn, ctx))
	if err = cmp.Or(err, refused); err != nil {
		return nil, err
	}
	known, now := slices.Clone(l.Last), []Logged{}
	was := func(fits func(Logged) bool) (found Logged) {
		if i := slices.IndexFunc(known, fits); i >= 0 {
			found = known[i]
			known = slices.Delete(known, i, i+1)
		}
		return found
	}
	entries := make([]map[string]string, len(raw)) // the newest first
	var risen []int                                // those that are new, or were joined with others
	for i, r := range raw {
		e := entryOf(r)
		entries[i] = e
		n, _ := strconv.ParseInt(e["count"], 10, 64)
		age, _ := strconv.ParseFloat(e["age-seconds"], 64)
		is := Logged{strings.Join([]string{e["username"], e["reason"], e["context"], e["object"]}, " "), n, clock[0]*1000 + clock[1]/1000 - int64(age*1000)}
		now = append(now, is)
		if was(func(o Logged) bool { return o.ID == is.ID && o.Count == n && max(o.At-is.At, is.At-o.At) <= apart }).ID == "" {
			risen = append(risen, i)
		}
	}
	for _, i := range risen {
		e, is := entries[i], now[i]
		n := is.Count - was(func(o Logged) bool { return o.ID == is.ID && o.Count < is.Count }).Count
		client := endpoint.Fields(e["client-info"])
		if command, key := hitOf(e, client["cmd"], n); command != "" && l.Last != nil {
			hits = append(hits, Hit{User: e["username"], Command: command, Key: key, Context: e["context"], Addr: client["addr"], Name: client["name"], Count: n})
		}
	}
	// What is forgotten is the oldest first, or all at once: where an entry of the last look still stands, none of those after it is missing.
	l.Forgot = l.Last != nil && len(risen) == len(now) && (len(known) > 0 || len(now) >= kept)
	l.Last = now
	return hits, nil
}

// The commands of hits that were denied a key, where the server does not say which they were: it names none of a script, and of those that it joined
// the last one.
const (
	InScript = "a command of a script"
	Joined   = "a command before another one"
)

// hitOf tells which command of Taking an entry that rose by n is about, empty for none. Where a selector keeps SETNX for some keys, the server calls
// the key denied and not the command.
func hitOf(e map[string]string, running string, n int64) (command, key string) {
	switch running = strings.ToLower(running); e["reason"] {
	case "command":
		if slices.Contains(Taking, strings.ToLower(e["object"])) {
			return strings.ToUpper(e["object"]), ""
		}
	case "key":
		if slices.Contains(Taking, running) {
			return strings.ToUpper(running), e["object"]
		}
		if e["context"] == "lua" {
			return InScript, e["object"]
		}
		if n > 1 {
			return Joined, e["object"]
		}
	}
	return "", ""
}

// entryOf reads one entry of ACL LOG: names and values in turn.
func entryOf(raw any) map[string]string {
	list, _ := redis.Values(raw, nil)
	e := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		name, _ := redis.String(list[i], nil)
		switch v := list[i+1].(type) {
		case int64:
			e[name] = strconv.FormatInt(v, 10)
		default:
			e[name], _ = redis.String(v, nil)
		}
	}
	return e
}
