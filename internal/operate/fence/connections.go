package fence

import (
	"cmp"
	"context"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

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
