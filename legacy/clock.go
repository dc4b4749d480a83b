package legacy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
)

// Clock is the wall clock that a Locker lives by. A Clock with a method Sync(ctx) error is given the
// chance to correct itself before each Acquire and Renew.
type Clock interface {
	Now() time.Time
}

// SystemClock is the host's wall clock.
type SystemClock struct{}

// Now returns time.Now().
func (SystemClock) Now() time.Time { return time.Now() }

type syncer interface {
	Sync(ctx context.Context) error
}

func (l *Locker) syncClock(ctx context.Context) error {
	if s, ok := l.opts.Clock.(syncer); ok {
		return s.Sync(ctx)
	}
	return nil
}

// ServerClock follows the server's TIME, for members whose host clock is not trusted. The offset is
// measured as the server's time minus the middle of the round trip; of several round trips the
// shortest counts, and half of it bounds the error. Between measurements the host's monotonic clock
// carries the time on, so a step of the host's clock changes nothing.
//
// It is safe for concurrent use and starts no goroutine.
type ServerClock struct {
	pool lockmigrate.Pool
	opts ServerClockOptions

	mu       sync.Mutex
	base     time.Time     // the local reading, with its monotonic part, at the measurement
	server   time.Time     // the server's time at base
	bound    time.Duration // the measurement's greatest error
	measured bool
}

// ServerClockOptions of a ServerClock; the zero value is sensible.
type ServerClockOptions struct {
	// Refresh is the age at which Sync measures again. Zero: 30 seconds, in which a quartz that is off
	// by 100 ppm drifts 3 ms.
	Refresh time.Duration
	// MaxAge is the age beyond which a measurement that cannot be refreshed is not used any more: Sync
	// fails. Zero: 10 times Refresh.
	MaxAge time.Duration
	// Samples is how many round trips a measurement takes. Zero: 3.
	Samples int
	// ReplyTimeout bounds the wait for each reply. Zero: 1 second.
	ReplyTimeout time.Duration
}

// NewServerClock returns a clock that has measured nothing yet: it reads the host's clock until the
// first Sync, which a Locker calls before its first attempt.
func NewServerClock(pool lockmigrate.Pool, opts ServerClockOptions) *ServerClock {
	if opts.Refresh <= 0 {
		opts.Refresh = 30 * time.Second
	}
	if opts.MaxAge <= 0 {
		opts.MaxAge = 10 * opts.Refresh
	}
	if opts.Samples <= 0 {
		opts.Samples = 3
	}
	if opts.ReplyTimeout <= 0 {
		opts.ReplyTimeout = time.Second
	}
	return &ServerClock{pool: pool, opts: opts}
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

// Offset returns how far the server's clock is ahead of the host's, and how far off that may be. ok is
// false before the first measurement.
func (c *ServerClock) Offset() (ahead, bound time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.measured {
		return 0, 0, false
	}
	// Round strips the monotonic part: this difference is between wall clocks.
	now := time.Now()
	return c.server.Add(now.Sub(c.base)).Sub(now.Round(0)), c.bound, true
}

// Sync measures again if the last measurement is older than Refresh. While the server does not answer,
// a measurement is good until MaxAge.
func (c *ServerClock) Sync(ctx context.Context) error {
	c.mu.Lock()
	age, measured := time.Since(c.base), c.measured
	c.mu.Unlock()
	if measured && age < c.opts.Refresh {
		return nil
	}
	err := c.measure(ctx)
	if err != nil && measured && age < c.opts.MaxAge {
		return nil
	}
	return err
}

func (c *ServerClock) measure(ctx context.Context) error {
	conn, err := c.pool.GetContext(ctx)
	if err != nil {
		return fmt.Errorf("read the server's clock: %w", err)
	}
	defer conn.Close()

	best := time.Duration(-1)
	var base, server time.Time
	for range c.opts.Samples {
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
	c.base, c.server, c.bound, c.measured = base, server, best/2, true
	return nil
}

// timeout keeps a reply's wait within the caller's deadline.
func (c *ServerClock) timeout(ctx context.Context) time.Duration {
	timeout := c.opts.ReplyTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), time.Millisecond))
	}
	return timeout
}
