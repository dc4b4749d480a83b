package fence

import (
	"cmp"
	"context"
	"net"
	"slices"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// Reach is what a fence takes away, and from whom.
type Reach struct {
	Commands    []string         `json:"commands"`
	Keep        []string         `json:"keep,omitempty"`  // patterns of keys where they stay allowed: they are taken on every other
	Connections int              `json:"connections"`     // of the user, now
	Names       map[string]int64 `json:"names,omitempty"` // those connections by their names in CLIENT LIST, else by their hosts
	Sent        int              `json:"sent_one_last"`   // of those connections: the last command was one of these
	Unseen      string           `json:"unseen,omitempty"`
	Rates       []Rate           `json:"rates,omitempty"` // of all users of the server: it does not count them apart
}

// Rate is how often a command is called on a server, by whomever.
type Rate struct {
	Command string  `json:"command"`
	Now     float64 `json:"per_second"`
}

// measure counts the calls of commands on a server. A server that does not tell has no rates.
func measure(ctx context.Context, conn redis.Conn, commands []string, sample time.Duration) (rates []Rate, err error) {
	if sample <= 0 {
		return nil, nil
	}
	first, err := endpoint.Info(ctx, conn, "commandstats")
	if err != nil {
		return nil, ctx.Err()
	}
	began := time.Now()
	if err := lifetime.Sleep(ctx, sample); err != nil {
		return nil, err
	}
	last, err := endpoint.Info(ctx, conn, "commandstats")
	if err != nil {
		return nil, ctx.Err()
	}
	seconds := time.Since(began).Seconds()
	for _, command := range commands {
		was, is := endpoint.CallsOf(first["cmdstat_"+command]).Calls, endpoint.CallsOf(last["cmdstat_"+command]).Calls
		rates = append(rates, Rate{command, float64(max(0, is-was)) / seconds})
	}
	return rates, nil
}

// reach finds out who uses a user, and how.
func reach(ctx context.Context, conn redis.Conn, user string, o *Options, rates []Rate) *Reach {
	r := &Reach{Commands: o.commands(), Keep: o.Keep, Names: map[string]int64{}, Rates: rates}
	clients, err := endpoint.Clients(ctx, conn)
	if err != nil {
		r.Unseen = err.Error()
		return r
	}
	for _, c := range clients {
		if c["user"] != user {
			continue
		}
		name := c["name"]
		if name == "" {
			name, _, _ = net.SplitHostPort(c["addr"])
		}
		r.Connections++
		r.Names[name]++
		if slices.Contains(r.Commands, c["cmd"]) {
			r.Sent++
		}
	}
	return r
}

// Connections counts the connections of each user of a server.
//
// A user that is off matters as long as it is connected: ACL SETUSER NAME off refuses new connections only, and
// those that are there go on. So read the rules first. A user that is off then, and has no connection afterwards,
// cannot run anything until its rules change.
func Connections(ctx context.Context, conn redis.Conn) (map[string]int, error) {
	list, err := endpoint.Clients(ctx, conn)
	if err != nil {
		return nil, err
	}
	users := map[string]int{}
	for _, c := range list {
		users[cmp.Or(c["user"], "default")]++ // before 6.0 there is one
	}
	return users, nil
}
