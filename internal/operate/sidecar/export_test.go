package sidecar

import (
	"context"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Holds looks at all keys, when no command is under way, and tells of which stages something is held: what the sidecar would report.
func (s *Sidecar) Holds(ctx context.Context) (low, high stages.Stage) {
	s.keys.mu.Lock()
	for _, w := range s.keys.all {
		w.acts, w.attempt, w.next = [3]time.Time{}, time.Time{}, time.Time{}
	}
	s.keys.mu.Unlock()
	s.keep(ctx, s.keys.due(time.Now()))
	low, high, _ = s.keys.stages(0)
	return low, high
}

// Follow has it take a stage, as the answer to a report.
func (s *Sidecar) Follow(stage stages.Stage) {
	o := *s.order.Load()
	o.Stage, o.Epoch = stage, o.Epoch+1
	s.order.Store(&o)
}
