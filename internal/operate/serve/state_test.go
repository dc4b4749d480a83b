package serve

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
)

// Two kinds of clients of one host are two rows, and the next burst takes their place.
func TestRowsOfOneHost(t *testing.T) {
	c := NewCollector(new(endpoint.Endpoint), Options{})
	c.saw(observe.Report{Clients: []observe.Row{{Addr: "10.0.0.1", Dialect: "jedis-ms"}, {Addr: "10.0.0.1", Dialect: "set-nx-px"}, {Addr: "10.0.0.2", Dialect: "jedis-ms"}}}, 0, true)
	assert.Len(t, c.State().Clients, 3)
	c.saw(observe.Report{Clients: []observe.Row{{Addr: "10.0.0.1", Dialect: "jedis-ms"}}}, 0, true)
	assert.Len(t, c.State().Clients, 2)
}

// Only the time in which MONITOR ran counts as time in which nobody has acquired.
func TestQuiet(t *testing.T) {
	c := NewCollector(new(endpoint.Endpoint), Options{})
	saw := func(acquired int64, seconds time.Duration, over bool) float64 {
		c.saw(observe.Report{Acquired: map[string]int64{"legacy": acquired}}, seconds*time.Second, over)
		return *c.State().Quiet
	}
	assert.Nil(t, c.State().Quiet, "nobody has looked")
	c.saw(observe.Report{}, 10*time.Second, true)
	earlier := c.State()
	c.saw(observe.Report{}, 5*time.Second, true)
	assert.InDelta(t, 15, *c.State().Quiet, 0.01, "since it began to look, without the pause between two bursts")
	assert.InDelta(t, 10, *earlier.Quiet, 0.01, "a state that was handed out keeps its own")
	assert.Zero(t, saw(1, 5, false), "an acquisition")
	assert.InDelta(t, 3, saw(1, 3, true), 0.01, "since the acquisition")
	assert.InDelta(t, 10, saw(0, 7, false), 0.01, "and in the next burst")
	assert.InDelta(t, 30, c.State().Monitored, 0.01)
}

// What a burst has seen so far is told once, and what earlier bursts saw stays.
func TestBurstsAddUp(t *testing.T) {
	c := NewCollector(new(endpoint.Endpoint), Options{})
	at := time.Now()
	r := observe.Report{Acquired: map[string]int64{"legacy": 2}, Hazards: map[string]int64{"clobber": 1}, OverlapCount: 1,
		Events: []observe.EventRow{{At: at, Hazard: "clobber"}}, Overlaps: []observe.OverlapRow{{To: at.Add(time.Second)}}}
	for burst := range int64(2) {
		for _, over := range []bool{false, true} {
			c.saw(r, time.Second, over)
			s := c.State()
			assert.Equal(t, []int64{2 + 2*burst, 1 + burst, 1 + burst, 2 + 2*burst}, []int64{s.Acquired["legacy"], s.Hazards["clobber"], s.Overlaps, int64(len(s.Events))})
			assert.Equal(t, []string{"overlap", "clobber"}, []string{s.Events[0].Hazard, s.Events[1].Hazard}, "the newest first")
		}
	}
}
