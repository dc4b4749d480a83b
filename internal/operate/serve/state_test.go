package serve

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
)

// Two kinds of clients of one host are two rows, and the next burst takes their place.
func TestRowsOfOneHost(t *testing.T) {
	b := newBoard("")
	b.rows([]observe.Row{{Addr: "10.0.0.1", Dialect: "jedis-ms"}, {Addr: "10.0.0.1", Dialect: "set-nx-px"}, {Addr: "10.0.0.2", Dialect: "jedis-ms"}})
	assert.Len(t, b.read().Clients, 3)
	b.rows([]observe.Row{{Addr: "10.0.0.1", Dialect: "jedis-ms"}})
	assert.Len(t, b.read().Clients, 2)
}

// Only the time in which MONITOR ran counts as time in which nobody has acquired.
func TestQuiet(t *testing.T) {
	b := newBoard("")
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	assert.Nil(t, b.read().Quiet, "nobody has looked")
	b.monitored(at(-30), at(-20))
	assert.InDelta(t, 10, *b.read().Quiet, 0.01, "since it began to look")
	earlier := b.read()
	b.monitored(at(-10), at(-5)) // a pause between two bursts
	assert.InDelta(t, 15, *b.read().Quiet, 0.01, "the pause does not count")
	assert.InDelta(t, 10, *earlier.Quiet, 0.01, "a state that was handed out keeps its own")
	b.seen(observe.Report{Acquired: map[string]int64{"legacy": 1}}, at(0), true)
	b.monitored(at(-5), at(3))
	assert.InDelta(t, 3, *b.read().Quiet, 0.5, "since the acquisition")
	b.monitored(at(3), at(10))
	assert.InDelta(t, 10, *b.read().Quiet, 0.5)
	assert.InDelta(t, 30, b.read().Monitored, 0.01)
}

// What a burst has seen so far is told once, and what earlier bursts saw stays.
func TestBurstsAddUp(t *testing.T) {
	b := newBoard("")
	at := time.Now()
	r := observe.Report{Acquired: map[string]int64{"legacy": 2}, Hazards: map[string]int64{"clobber": 1}, OverlapCount: 1,
		Events: []observe.EventRow{{At: at, Hazard: "clobber"}}, Overlaps: []observe.OverlapRow{{To: at.Add(time.Second)}}}
	for burst := range int64(2) {
		for _, over := range []bool{false, true} {
			b.seen(r, at, over)
			s := b.read()
			assert.Equal(t, []int64{2 + 2*burst, 1 + burst, 1 + burst, 2 + 2*burst}, []int64{s.Acquired["legacy"], s.Hazards["clobber"], s.Overlaps, int64(len(s.Events))})
			assert.Equal(t, []string{"overlap", "clobber"}, []string{s.Events[0].Hazard, s.Events[1].Hazard}, "the newest first")
		}
	}
}
