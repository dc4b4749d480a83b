package fence

import (
	"context"
	"strings"

	"github.com/gomodule/redigo/redis"
)

// Connections counts the connections of each user of a server.
//
// A user that is off matters as long as it is connected: ACL SETUSER NAME off refuses new connections only, and
// those that are there go on. So read the rules first. A user that is off then, and has no connection afterwards,
// cannot run anything until its rules change.
func Connections(ctx context.Context, conn redis.Conn) (map[string]int, error) {
	list, err := redis.String(redis.DoContext(conn, ctx, "CLIENT", "LIST"))
	if err != nil {
		return nil, err
	}
	users := map[string]int{}
	for line := range strings.Lines(list) {
		if _, after, found := strings.Cut(line, " user="); found {
			name, _, _ := strings.Cut(after, " ")
			users[name]++
		}
	}
	return users, nil
}
