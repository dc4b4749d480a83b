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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Close beside callers in full flight, whose contexts end as well: an attempt under way is finished, or undone, before the
// connections are closed, and every other one is refused. A key that stays taken is one of which somebody was told. With a
// WaitGroup, this ended the program.
func TestCloseBesideCallers(t *testing.T) {
	const callers, keys = 8, 4
	for _, stage := range []lockmigrate.Stage{lockmigrate.StageLegacy, lockmigrate.StageBridge, lockmigrate.StageModern} {
		t.Run(stage.String(), func(t *testing.T) {
			t.Parallel()
			for range redistest.Rounds(4, 15) {
				s := redistest.Mini(t)
				seen := &redistest.Told{}
				// The embedded server's time stands still: what a TTL or a claim would end stays. None is over before the test.
				l := newLocker(t, s, quick(inStage(t, s, stage), func(o *compat.Options) {
					o.Observer, o.Yield, o.TTL, o.Lease, o.ReplyTimeout = seen.Observe, -1, 2*time.Minute, 2*time.Minute, time.Minute
				}))
				var all sync.WaitGroup
				var over atomic.Bool
				for range callers {
					all.Go(func() {
						for !over.Load() {
							key := strconv.Itoa(rand.IntN(keys))
							ctx, cancel := context.WithTimeout(t.Context(), rand.N(4*time.Millisecond))
							k, err := l.Acquire(ctx, key)
							if errors.Is(err, lockmigrate.ErrUnknownOutcome) {
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

// Who waits for the namespace is told of Close too.
func TestCloseEndsTheWaitForANamespace(t *testing.T) {
	s := redistest.Mini(t)
	pool := poolTo(t, s.Addr)
	s.Mini.Close()
	l, err := compat.New(pool, quick(func(o *compat.Options) { o.Namespace = "orders" }))
	require.NoError(t, err)
	ended := make(chan error, 2)
	go func() {
		_, err := l.Acquire(context.Background(), "lock.order.1")
		ended <- err
	}()
	go func() { ended <- l.Ready(context.Background()) }()
	time.Sleep(200 * time.Millisecond) // the subject
	l.Close()
	closed(t, ended)
	closed(t, ended)
}

// closed expects the error of a closed Locker, soon.
func closed(t testing.TB, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, lifetime.ErrClosed)
		assert.NotErrorIs(t, err, lockmigrate.ErrNotAcquired)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits on after Close")
	}
}
