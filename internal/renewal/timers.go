package renewal

import (
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Timers watch the deadlines of leases that nobody renews by itself: one timer a lease, and no goroutine that would have to
// be closed.
type Timers struct {
	Now func() protocol.Instant // monotonic

	mu sync.Mutex
}

// Add takes a lease in.
func (w *Timers) Add(s *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.index = 1
	s.timer = time.AfterFunc(s.Until().Sub(w.Now()), func() { w.ring(s) })
}

// Extend is as Renewer.Extend.
func (w *Timers) Extend(s *Lease, until protocol.Instant) (why Loss, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.index == 0 || s.Until() <= w.Now() {
		s.index = 0
		return Deadline, false
	}
	s.extend(until) // a timer that rings early is set once more
	return 0, true
}

// Rest is as Renewer.Rest: nothing was sent before either.
func (w *Timers) Rest(*Lease) {}

// Remove takes a lease out, and tells whether it was in.
func (w *Timers) Remove(s *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := s.index != 0
	if in {
		s.timer.Stop()
	}
	s.index = 0
	return in
}

func (w *Timers) ring(s *Lease) {
	w.mu.Lock()
	if s.index == 0 {
		w.mu.Unlock()
		return
	}
	if left := s.Until().Sub(w.Now()); left > 0 {
		s.timer.Reset(left)
		w.mu.Unlock()
		return
	}
	s.index = 0
	w.mu.Unlock()
	s.Owner.Lost(Deadline)
}
