package lifetime

import (
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Timers watch the deadlines of leases that nobody renews by itself: one timer a lease, and no goroutine that would have to
// be closed. NewTimers makes one.
type Timers struct {
	now func() protocol.Instant // monotonic

	mu  sync.Mutex
	all map[*Lease]*time.Timer
}

// NewTimers returns a watch over nothing yet.
func NewTimers(now func() protocol.Instant) *Timers {
	return &Timers{now: now, all: make(map[*Lease]*time.Timer)}
}

// Add takes a lease in.
func (w *Timers) Add(s *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[s] = time.AfterFunc(s.Until().Sub(w.now()), func() { w.ring(s) })
}

// Len returns how many leases there are.
func (w *Timers) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.all)
}

// Extend is as Renewer.Extend.
func (w *Timers) Extend(s *Lease, until protocol.Instant) (why Loss, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[s] == nil || s.Until() <= w.now() {
		w.drop(s)
		return Deadline, false
	}
	s.extend(until) // the timer rings at the old deadline, and is set once more
	return 0, true
}

// Rest is as Renewer.Rest: nothing was sent before either.
func (w *Timers) Rest(*Lease) {}

// Remove takes a lease out, and tells whether it was in.
func (w *Timers) Remove(s *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.drop(s)
}

// drop is Remove for those who hold mu.
func (w *Timers) drop(s *Lease) bool {
	timer := w.all[s]
	if timer == nil {
		return false
	}
	timer.Stop()
	delete(w.all, s)
	return true
}

func (w *Timers) ring(s *Lease) {
	w.mu.Lock()
	timer := w.all[s]
	if timer == nil {
		w.mu.Unlock()
		return
	}
	if left := s.Until().Sub(w.now()); left > 0 {
		timer.Reset(left)
		w.mu.Unlock()
		return
	}
	w.drop(s)
	w.mu.Unlock()
	s.Owner.Lost(Deadline)
}
