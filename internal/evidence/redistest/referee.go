package redistest

import (
	"sync/atomic"
	"testing"
)

// Referee watches who is inside one lock, in this process: it sees goroutines walk in and out, and no lock, server or
// value tells it what to believe. Two inside at once fail the test.
type Referee struct {
	t             testing.TB
	inside, turns atomic.Int64
}

// NewReferee returns a referee of one lock.
func NewReferee(t testing.TB) *Referee { return &Referee{t: t} }

// Turn is one turn inside. Call it between the acquisition and the release.
func (r *Referee) Turn(work func()) {
	if n := r.inside.Add(1); n != 1 {
		r.t.Errorf("%s: %d are inside at once", Violated, n)
	}
	work()
	r.turns.Add(1)
	r.inside.Add(-1)
}

// Turns returns how many turns are over.
func (r *Referee) Turns() int64 { return r.turns.Load() }
