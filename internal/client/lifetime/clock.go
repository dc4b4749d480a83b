package lifetime

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Clock is monotonic: it starts from the wall clock and is never set. Its readings are instants of this
// process alone.
type Clock struct {
	base   time.Time
	origin protocol.Instant
}

// NewClock returns a clock that starts now.
func NewClock() Clock {
	now := time.Now()
	return Clock{base: now, origin: protocol.InstantOf(now)}
}

// Now reads the clock.
func (c Clock) Now() protocol.Instant { return c.origin.Add(time.Since(c.base)) }

// Time is Now as a time.
func (c Clock) Time() time.Time { return c.Now().Time() }

// At returns when an instant of this clock is, with a monotonic reading.
func (c Clock) At(t protocol.Instant) time.Time { return c.base.Add(t.Sub(c.origin)) }
