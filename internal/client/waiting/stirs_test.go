package waiting

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestStirsCountWhatHappensToTheKey: every change of a key that was read, and every break of the listening; not
// what was read, and not what is told of the queue.
func TestStirsCountWhatHappensToTheKey(t *testing.T) {
	s := redistest.Real(t)
	h := newHub(t, s, nil)
	turn := enter(t, h, "orders")
	turn.Expect("name")
	read(t, h, "orders")
	before, listening := turn.Stirs()
	assert.True(t, listening)

	s.Do("PUBLISH", "wake:test", "name head")
	assert.Equal(t, First, wait(t, turn).Kind)
	n, _ := turn.Stirs()
	assert.Equal(t, before, n, "after a message")

	s.Do("SET", "orders", "1")
	assert.Equal(t, Changed, wait(t, turn).Kind)
	n, _ = turn.Stirs()
	assert.Equal(t, before+1, n, "after a change")

	read(t, h, "orders")
	s.Do("DEL", "orders")
	redistest.Await(t, "the change", time.Minute, func() bool { n, _ = turn.Stirs(); return n == before+2 })
	turn.Forget()
	n, listening = turn.Stirs()
	assert.Equal(t, before+2, n, "after a change that was forgotten")
	assert.True(t, listening)

	s.Do("CLIENT", "KILL", "TYPE", "pubsub")
	assert.Equal(t, Reset, wait(t, turn).Kind)
	n, _ = turn.Stirs()
	assert.Greater(t, n, before+2, "after a break")

	deaf := newHub(t, s, func(o *Options) { o.Dial = s.Untracked().DialContext })
	_, listening = enter(t, deaf, "orders").Stirs()
	assert.False(t, listening, "without tracking")
}
