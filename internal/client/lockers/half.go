package lockers

import (
	"context"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// Half is what package handover asks of the Lockers of this module that lie on one server, or on one cluster.
type Half interface {
	// Home is where the locks are.
	Home() lockmigrate.Pool

	// RaiseFence makes the next fencing tokens of a key, whose lock the caller holds, larger than least, and returns the one that is the
	// caller's from now on: least, or the last one that was drawn, if that is larger.
	RaiseFence(ctx context.Context, key string, least int64) (int64, error)
}

// HalfOf returns the half that a Locker is; nil for one of another library, and for one on several servers.
func HalfOf(l lockmigrate.Locker) Half {
	h, _ := l.(Half)
	return h
}

// Home implements Half.
func (c *Client) Home() lockmigrate.Pool { return c.Servers[0].Pool }

// RaiseFence implements Half.
func (c *Client) RaiseFence(ctx context.Context, key string, least int64) (int64, error) {
	return RaiseFence(ctx, c.Home(), key, least, c.fenceTTL, c.Lives.ReplyTimeout)
}

// RaiseFence is Half's over a pool.
func RaiseFence(ctx context.Context, pool lockmigrate.Pool, key string, least int64, ttl, timeout time.Duration) (int64, error) {
	conn, err := pool.GetContext(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return redis.Int64(wire.Eval(conn, timeout, scripts.FenceRaise, scripts.Values{"fence": protocol.FenceKey(key), "least": least, "fence_ttl": ttl.Milliseconds()}))
}
