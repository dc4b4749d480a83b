package stages

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/redistest"
)

// A wait whose time is over in the midst of a look, at whichever of its two round trips, finishes the look and says who was in
// the way; and a step that nobody is in the way of is made.
func TestALookIsFinished(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a := newFake(t, store, "a")
		a.report()
		for slow := range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			pool := &redistest.Faulty{Pool: s.Pool(), Before: func(n int, _ string) {
				if n == slow {
					<-ctx.Done()
				}
			}}
			mover := Mover{Store: &Store{Pool: pool, Namespace: store.Namespace, ReplyTimeout: time.Minute}, Look: time.Millisecond}
			err := mover.Run(ctx, Bridge, func(View, []Blocker) {})
			cancel()
			var waited *Waited
			if !errors.As(err, &waited) || !errors.Is(err, context.DeadlineExceeded) || waited.Blockers[0].Member != "a" {
				t.Errorf("slow at round trip %d: %v", slow, err)
			}
		}
		a.report()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		pool := &redistest.Faulty{Pool: s.Pool(), Before: func(n int, _ string) { <-ctx.Done() }}
		mover := Mover{Store: &Store{Pool: pool, Namespace: store.Namespace, ReplyTimeout: time.Minute}, Look: time.Millisecond}
		if err := mover.Run(ctx, Bridge, func(View, []Blocker) {}); err != nil {
			t.Errorf("nobody was in the way: %v", err)
		}
	})
}
