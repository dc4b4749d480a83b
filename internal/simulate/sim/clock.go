package sim

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Instants of the engine are true time since the run began. Epoch is what a perfect wall clock reads
// at that moment, so that values on keys look like the real ones: 2026-01-01 00:00:00 UTC.
const Epoch = protocol.Instant(1767225600 * int64(time.Second))

// slewPPM is the rate at which a slewing clock works off an offset, as adjtime and chrony do by default.
const slewPPM = 500

// Clock is one client's pair of clocks. Both run at the same rate, off by the drift; only the wall
// clock is stepped.
type Clock struct {
	OffsetAtStart time.Duration
	DriftPPM      int64

	since protocol.Instant // true time of the last change of rate
	wall  protocol.Instant // the readings then
	mono  protocol.Instant
	rate  int64            // of the slew, in ppm
	until protocol.Instant // true time at which the slew is over
}

func (c *Clock) reset() {
	*c = Clock{OffsetAtStart: c.OffsetAtStart, DriftPPM: c.DriftPPM}
	c.wall = Epoch.Add(c.OffsetAtStart)
}

// Read returns what the client sees at true time t.
func (c *Clock) Read(t protocol.Instant) model.Reading {
	dt, slewed := int64(t-c.since), max(int64(min(t, c.until)-c.since), 0)
	run := dt + dt*c.DriftPPM/1e6
	return model.Reading{
		Wall: c.wall + protocol.Instant(run+slewed*c.rate/1e6),
		Mono: c.mono + protocol.Instant(run),
	}
}

// Error is how far the wall clock is ahead of true time.
func (c *Clock) Error(t protocol.Instant) time.Duration {
	return c.Read(t).Wall.Sub(Epoch + t)
}

// Step sets the wall clock forward, or back, at once.
func (c *Clock) Step(t protocol.Instant, by time.Duration) {
	c.rebase(t)
	c.wall = c.wall.Add(by)
}

// Slew lets the wall clock run faster, or slower, until it has gained by.
func (c *Clock) Slew(t protocol.Instant, by time.Duration) {
	c.rebase(t)
	if c.rate = slewPPM; by < 0 {
		c.rate = -slewPPM
	}
	c.until = t.Add(by.Abs() / slewPPM * 1e6)
}

// Lasting returns how long a sleep of d by the client's monotonic clock really takes.
func (c *Clock) Lasting(d time.Duration) time.Duration {
	return d - time.Duration(int64(d)/1000*c.DriftPPM/1000)
}

// rebase makes t the moment from which the present rate is counted.
func (c *Clock) rebase(t protocol.Instant) {
	now := c.Read(t)
	c.wall, c.mono, c.since = now.Wall, now.Mono, t
}
