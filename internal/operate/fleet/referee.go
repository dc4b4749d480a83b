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
	all     []*Worker
	inside  map[string][]*Worker
	waiting map[string]int
	freed   map[string]time.Time // when a key was given back that somebody waits for
	sheet   Sheet
}

// Sheet is what a referee has counted.
type Sheet struct {
	Turns, Overlaps, Lost int
	WithMembers           int // overlaps of which one was a member
	Waits, Handovers      []time.Duration
	Failures              map[string]int
}

// NewReferee returns a referee who has seen nobody.
func NewReferee() *Referee {
	return &Referee{inside: map[string][]*Worker{}, waiting: map[string]int{}, freed: map[string]time.Time{}}
}

func (r *Referee) workers(w *Worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, w)
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
	w.Turns++
	w.Longest = max(w.Longest, waited)
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

func (r *Referee) leave(w *Worker, key string, died bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside[key] = slices.DeleteFunc(r.inside[key], func(other *Worker) bool { return other == w })
	delete(r.freed, key)
	if died {
		w.Died++
	}
	if r.waiting[key] > 0 && len(r.inside[key]) == 0 {
		r.freed[key] = time.Now()
	}
}

func (r *Referee) failed(w *Worker, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, lockmigrate.ErrLost):
		w.Lost++
		r.sheet.Lost++
	default:
		w.Errors, w.Err = w.Errors+1, err
		if r.sheet.Failures == nil {
			r.sheet.Failures = map[string]int{}
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

// Records are those of all workers so far, by their names, and who is inside anywhere.
func (r *Referee) Records() (names []string, records []Record, inside []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.all {
		names, records = append(names, w.Name), append(records, w.Record)
	}
	for _, workers := range r.inside {
		for _, w := range workers {
			inside = append(inside, w.Name)
		}
	}
	return names, records, inside
}
