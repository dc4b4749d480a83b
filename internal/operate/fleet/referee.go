package fleet

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
)

// Referee counts who is inside. It sees only workers walking in and out, in this process: no lock, no server and no value tells it what to
// believe. A worker enters after its lock says that it holds, and leaves before it says release, so whatever the referee sees as two inside
// at once really was. It says of a key that was given back when the next worker came in, if one waited.
type Referee struct {
	Entered func(w *Worker, beside []*Worker) // after every entrance: who was inside already; nil for nobody

	mu      sync.Mutex
	inside  map[string][]*Worker
	waiting map[string]int
	freed   map[string]time.Time // when a key was given back that somebody waits for
	sheet   Sheet
	turns   map[string]int // of each worker, since the beginning
	last    error
}

// Sheet is what a referee has counted.
type Sheet struct {
	Turns, Overlaps, Lost int
	WithMembers           int // overlaps of which one was a member
	Waits, Handovers      []time.Duration
	Failures              map[string]int64
}

func (s *Sheet) failed() (n int64) {
	for _, times := range s.Failures {
		n += times
	}
	return n
}

// NewReferee returns a referee who has seen nobody.
func NewReferee() *Referee {
	return &Referee{inside: map[string][]*Worker{}, waiting: map[string]int{}, turns: map[string]int{}, freed: map[string]time.Time{}}
}

func (r *Referee) waits(key string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[key] += n
}

func (r *Referee) enter(w *Worker, key string, waited time.Duration) {
	now := time.Now()
	r.mu.Lock()
	beside := slices.Clone(r.inside[key])
	r.inside[key] = append(r.inside[key], w)
	r.turns[w.Name]++
	r.sheet.Turns++
	r.sheet.Waits = append(r.sheet.Waits, waited)
	if freed, ok := r.freed[key]; ok {
		r.sheet.Handovers = append(r.sheet.Handovers, now.Sub(freed))
		delete(r.freed, key)
	}
	r.sheet.Overlaps += len(beside)
	for _, other := range beside {
		if w.Member || other.Member {
			r.sheet.WithMembers++
		}
	}
	r.mu.Unlock()
	if r.Entered != nil {
		r.Entered(w, beside)
	}
}

func (r *Referee) leave(w *Worker, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside[key] = slices.DeleteFunc(r.inside[key], func(other *Worker) bool { return other == w })
	delete(r.freed, key)
	if r.waiting[key] > 0 && len(r.inside[key]) == 0 {
		r.freed[key] = time.Now()
	}
}

func (r *Referee) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, lockmigrate.ErrLost):
		r.sheet.Lost++
	default:
		r.last = err
		if r.sheet.Failures == nil {
			r.sheet.Failures = map[string]int64{}
		}
		r.sheet.Failures[err.Error()]++
	}
}

// Since returns what was counted since it was asked last.
func (r *Referee) Since() Sheet {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sheet
	r.sheet = Sheet{}
	return s
}

// Turns are how often a worker of a name was inside.
func (r *Referee) Turns(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns[name]
}

// Last is the last error of a worker, apart from losses.
func (r *Referee) Last() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
