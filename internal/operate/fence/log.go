package fence

import (
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

// Log follows ACL LOG. The server keeps 128 entries, and joins entries of one user, command and context
// within a minute into one that names the last client only: who looks seldom loses addresses. A Log is
// therefore polled several times a second; what was there before the first look does not count.
type Log struct {
	Totals map[string]int64 // of the last look, nil before the first: a Log that is given those of another one goes on there
}

// Poll returns what was denied since the last look. The first look returns nothing.
func (l *Log) Poll(ctx context.Context, conn redis.Conn) ([]Hit, error) {
	raw, err := redis.Values(redis.DoContext(conn, ctx, "ACL", "LOG", 128))
	if err != nil {
		return nil, err
	}
	totals := map[string]int64{}
	latest := map[string]Hit{}
	for _, r := range raw { // the newest first
		e := entryOf(r)
		client := endpoint.Fields(e["client-info"])
		command, key := hitOf(e, client["cmd"])
		if command == "" {
			continue
		}
		id := e["username"] + " " + command + " " + e["context"] + " " + key
		n, _ := redis.Int64([]byte(e["count"]), nil)
		totals[id] += n
		if _, seen := latest[id]; !seen {
			latest[id] = Hit{User: e["username"], Command: command, Key: key, Context: e["context"], Addr: client["addr"], Name: client["name"]}
		}
	}
	var hits []Hit
	for id, n := range totals {
		if d := n - l.Totals[id]; d > 0 && l.Totals != nil {
			h := latest[id]
			h.Count = d
			hits = append(hits, h)
		}
	}
	l.Totals = totals
	slices.SortFunc(hits, func(a, b Hit) int { return strings.Compare(a.Addr+a.Command, b.Addr+b.Command) })
	return hits, nil
}

// InScript is the command of a hit where a script was denied a key: the server does not say for which command.
const InScript = "a command of a script"

// hitOf tells which command of Taking an entry is about, empty for none. Where a selector keeps SETNX for
// some keys, the server calls the key denied and not the command; which command a script sent is then not
// known.
func hitOf(e map[string]string, running string) (command, key string) {
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
