package demo

import (
	"sync"
	"time"
)

// Referee watches who is inside a lock. It sees only members walking in and out, in this process and by one
// monotonic clock: no lock, no server and no value tells it what to believe.
//
// A member enters after its lock says that it holds, and leaves before it says release, so whatever the
// referee sees as two inside at once really was.
type Referee struct {
	began time.Time

	mu       sync.Mutex
	inside   map[string]map[string]time.Duration // key -> member -> since
	turns    int
	overlaps []Overlap
}

// Overlap is two members inside the same lock at once.
type Overlap struct {
	Key   string
	First string        // was inside
	Then  string        // came in beside it
	At    time.Duration // since the demo began
	Since time.Duration // when First had entered
}

// NewReferee returns a referee whose times count from began.
func NewReferee(began time.Time) *Referee {
	return &Referee{began: began, inside: map[string]map[string]time.Duration{}}
}

// Enter says that a member is inside, and returns the members that it overlaps.
func (r *Referee) Enter(key, member string) []Overlap {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.began)
	r.turns++
	if r.inside[key] == nil {
		r.inside[key] = map[string]time.Duration{}
	}
	var found []Overlap
	for other, since := range r.inside[key] {
		found = append(found, Overlap{Key: key, First: other, Then: member, At: now, Since: since})
	}
	r.overlaps = append(r.overlaps, found...)
	r.inside[key][member] = now
	return found
}

// Leave says that a member is not inside any more: it left, or it crashed.
func (r *Referee) Leave(key, member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside[key], member)
}

// Count returns the turns and overlaps so far.
func (r *Referee) Count() (turns, overlaps int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns, len(r.overlaps)
}

// Overlaps returns what it saw.
func (r *Referee) Overlaps() []Overlap {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Overlap(nil), r.overlaps...)
}

// Inside returns who is inside a key, empty for nobody.
func (r *Referee) Inside(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for member := range r.inside[key] {
		return member
	}
	return ""
}
