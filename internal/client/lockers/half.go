package lockers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Half is what package handover asks of the Lockers of this module that lie on one server, or on one cluster.
type Half interface {
	// Home is where the locks are.
	Home() lockmigrate.Pool

	// RaiseFence makes the next fencing tokens of a key, whose lock the caller holds, larger than least, and returns the one that is the
	// caller's from now on: least, or the last one that was drawn, if that is larger.
	RaiseFence(ctx context.Context, key string, least int64) (int64, error)

	// Announce has the Locker note from now on which connections its commands go over, and call news for each.
	Announce(news func()) *Opened
}

// HalfOf returns the half that a Locker is; nil for one of another library, and for one on several servers.
func HalfOf(l lockmigrate.Locker) Half {
	h, _ := l.(Half)
	return h
}

// Connection names a connection of a client, as its server knows it: by the server's run id, and by what CLIENT ID tells. A server gives no id
// twice.
func Connection(runID, id string) string { return fmt.Sprintf("%.12s:%s", runID, id) }

// Opened are the connections that somebody's commands go over, the newest of them.
type Opened struct {
	news atomic.Pointer[func()] // nil: nobody asks

	mu   sync.Mutex
	list []string
}

// mostOpened is how many are remembered: of the older ones a report has told.
const mostOpened = 256

// Tell has each new connection told from now on.
func (o *Opened) Tell(news func()) { o.news.Store(&news) }

// All are the names of the connections.
func (o *Opened) All() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.list)
}

// Ask asks a connection who it is. A server that does not say, as those before Redis 5, leaves it unknown.
func (o *Opened) Ask(conn redis.Conn, timeout time.Duration) {
	if o.news.Load() == nil {
		return
	}
	id, err1 := redis.Int64(redis.DoWithTimeout(conn, timeout, "CLIENT", "ID"))
	info, err2 := redis.String(redis.DoWithTimeout(conn, timeout, "INFO", "server"))
	if err1 == nil && err2 == nil {
		o.Add(id, info)
	}
}

// Add notes a connection by what CLIENT ID and INFO server say over it.
func (o *Opened) Add(id int64, info string) {
	_, run, _ := strings.Cut(info, "run_id:")
	run, _, _ = strings.Cut(run, "\r")
	if name := Connection(run, fmt.Sprint(id)); run != "" && o.add(name) {
		if news := o.news.Load(); news != nil {
			(*news)()
		}
	}
}

func (o *Opened) add(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Contains(o.list, name) {
		return false
	}
	o.list = append(o.list, name)
	o.list = o.list[max(0, len(o.list)-mostOpened):]
	return true
}

// Announce implements Half. Connections that there are already are given up, since nobody has asked them.
func (c *Client) Announce(news func()) *Opened {
	c.opened.Tell(news)
	for _, s := range c.Servers {
		for _, conn := range s.own {
			conn.Renew()
		}
	}
	if c.Hub != nil {
		c.Hub.Renew()
	}
	return &c.opened
}

// Home implements Half.
func (c *Client) Home() lockmigrate.Pool { return c.Servers[0].Pool }

// RaiseFence implements Half.
func (c *Client) RaiseFence(ctx context.Context, key string, least int64) (int64, error) {
	return RaiseFence(ctx, c.Home(), key, least, c.fenceTTL, c.Lives.ReplyTimeout)
}

// RaiseFence is Half's over a pool.
func RaiseFence(ctx context.Context, pool lockmigrate.Pool, key string, least int64, ttl, timeout time.Duration) (int64, error) {
	return redis.Int64(topology.Over(ctx, pool, func(conn redis.Conn) (any, error) {
		return wire.Eval(conn, timeout, scripts.FenceRaise, scripts.Values{"fence": protocol.FenceKey(key), "least": least, "fence_ttl": ttl.Milliseconds()})
	}))
}
