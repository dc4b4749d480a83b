package lockers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
)

// ServerClock follows the server's TIME. The offset is
// measured as the server's time minus the middle of the round trip; of several round trips the
// shortest counts, and half of it bounds the error. Between measurements the host's monotonic clock
// carries the time on, so a step of the host's clock changes nothing.
//
// It is safe for concurrent use and starts no goroutine.
type ServerClock struct {
	Pool         lockmigrate.Pool
	ReplyTimeout time.Duration
	Refresh      time.Duration // the age at which Sync measures again
	MaxAge       time.Duration // the age beyond which a measurement that cannot be refreshed is not used any more
	Samples      int           // round trips of a measurement

	mu       sync.Mutex
	base     time.Time     // the local reading, with its monotonic part, at the measurement
	server   time.Time     // the server's time at base
	bound    time.Duration // the measurement's greatest error
	measured bool
	stepped  bool // the server has told a time since that the measurement does not explain

	measuring atomic.Bool
}

// NewServerClock returns a clock that has measured nothing yet: it reads the host's clock until the first Sync. It measures every
// 30 seconds, in which a quartz that is off by 100 ppm drifts 3 ms.
func NewServerClock(pool lockmigrate.Pool, replyTimeout time.Duration) *ServerClock {
	return &ServerClock{Pool: pool, ReplyTimeout: min(replyTimeout, time.Second), Refresh: 30 * time.Second, MaxAge: 5 * time.Minute, Samples: 3}
}

// Now returns the server's time as far as it is known.
func (c *ServerClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.measured {
		return time.Now()
	}
	return c.server.Add(time.Since(c.base))
}

// drift is more than a quartz drifts within Refresh, and the rounding of a time in milliseconds.
const drift = 10 * time.Millisecond

// Heard takes a time that the server told after the local time sent. If the measurement says another one, the server's clock was
// set, or another server has its place: the next Sync measures again, and fails where it cannot. It costs no command.
func (c *ServerClock) Heard(server, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	early, late := c.server.Add(sent.Sub(c.base)-c.bound-drift), c.server.Add(time.Since(c.base)+c.bound+drift)
	c.stepped = c.stepped || c.measured && (server.Before(early) || server.After(late))
}

// Sync measures again if the last measurement is older than Refresh. While the server does not answer,
// a measurement is good until MaxAge. Until then one caller at a time measures for all.
func (c *ServerClock) Sync(ctx context.Context) error {
	c.mu.Lock()
	age, good := time.Since(c.base), c.measured && !c.stepped && time.Since(c.base) < c.MaxAge
	c.mu.Unlock()
	switch {
	case !good:
		return c.measure(ctx)
	case age >= c.Refresh && c.measuring.CompareAndSwap(false, true):
		defer c.measuring.Store(false)
		_ = c.measure(ctx) // what there is, is good
	}
	return nil
}

func (c *ServerClock) measure(ctx context.Context) error {
	conn, err := c.Pool.GetContext(ctx)
	if err != nil {
		return fmt.Errorf("read the server's clock: %w", err)
	}
	defer conn.Close()

	best := time.Duration(-1)
	var base, server time.Time
	for range c.Samples {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		sent := time.Now()
		reply, err := redis.Int64s(redis.DoWithTimeout(conn, c.timeout(ctx), "TIME"))
		trip := time.Since(sent)
		if err != nil || len(reply) != 2 {
			return fmt.Errorf("read the server's clock: TIME: %w", err)
		}
		if best < 0 || trip < best {
			best, base, server = trip, sent.Add(trip/2), time.Unix(reply[0], reply[1]*1000)
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.server, c.bound, c.measured, c.stepped = base, server, best/2, true, false
	return nil
}

// timeout keeps a reply's wait within the caller's deadline.
func (c *ServerClock) timeout(ctx context.Context) time.Duration {
	timeout := c.ReplyTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), time.Millisecond))
	}
	return timeout
}
