package lockmigrate

import (
	"context"

	"github.com/gomodule/redigo/redis"
)

// Pool hands out connections. *redis.Pool is one; so is anything else with its GetContext.
//
// A lock takes a connection for the commands of one attempt and gives it back before it sleeps. So a waiting lock never holds one.
// GetContext must honour its context while it dials and while it waits for a free connection.
//
// For more than one server there are cluster.Pool and sentinel.Pool. Another pool over several servers is
// not enough: the locks would not know which of its errors mean that a command has not run.
type Pool interface {
	GetContext(ctx context.Context) (redis.Conn, error)
}

// Dialer is what a Pool may implement to let locks make connections of their own beside those of the pool: one for commands and
// renewals, two for waiting on each server. They must be ordinary connections in RESP2. A *redis.Pool is treated as one, by its
// Dial or DialContext. Some Pools are no Dialer, such as one that is wrapped for tracing. There each attempt and each batch of
// renewals takes a connection from the pool. Waiters look at the key now and then.
type Dialer interface {
	Dial(ctx context.Context) (redis.Conn, error)
}
