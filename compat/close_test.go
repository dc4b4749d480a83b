package compat_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
)

// Close beside callers in full flight, whose contexts end as well: an attempt under way is finished, or undone, before the
// connections are closed, and every other one is refused. A key that stays taken is one of which somebody was told. With a
// WaitGroup, this ended the program.
func TestCloseBesideCallers(t *testing.T) {
	const rounds, callers, keys = 15, 8, 4
	for _, stage := range []compat.Stage{compat.Legacy, compat.Bridge, compat.Modern} {
		t.Run(stage.String(), func(t *testing.T) {
			t.Parallel()
			for range rounds {
				s := redistest.Mini(t)
				seen := &redistest.Told{}
				l := newLocker(t, s, quick(func(o *compat.Options) {
					o.Stage, o.Observer, o.YieldAfter = stage, seen, -1
				}))
				var all sync.WaitGroup
				var over atomic.Bool
				for range callers {
					all.Go(func() {
						for !over.Load() {
							key := strconv.Itoa(rand.IntN(keys))
							ctx, cancel := context.WithTimeout(t.Context(), rand.N(4*time.Millisecond))
							k, err := l.Acquire(ctx, key)
							if errors.Is(err, compat.ErrUnknownOutcome) {
								seen.Note(key)
							}
							if err == nil {
								_ = k.Renew(ctx)
								if k.Release(ctx) != nil {
									seen.Note(key)
								}
							}
							cancel()
						}
					})
				}
				time.Sleep(rand.N(10 * time.Millisecond)) // the subject
				l.Close()
				over.Store(true)
				all.Wait()
				for n := range keys {
					if key := strconv.Itoa(n); s.Mini.Exists(key) && !seen.Of(key) {
						t.Errorf("key %s is taken, and nobody was told", key)
					}
				}
				if _, err := l.TryAcquire(t.Context(), "closed"); err == nil {
					t.Error("a closed Locker has acquired")
				}
			}
		})
	}
}
