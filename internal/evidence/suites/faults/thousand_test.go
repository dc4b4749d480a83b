package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// The server dies under a thousand holders and a thousand waiters, and comes back with nothing. Within a
// TTL and a second every holder knows whether it still holds, and every waiter has the lock, or an error,
// or has been cancelled. None hangs.
func TestRestartUnderAThousandHoldersAndAThousandWaiters(t *testing.T) {
	const each = 1000
	const long = 4 * time.Second // TTL: two thousand locks on two processors
	for name, open := range map[string]func(lockmigrate.Pool) (lockmigrate.Locker, error){
		"modern": func(p lockmigrate.Pool) (lockmigrate.Locker, error) { return modern.New(p, modern.Options{TTL: long}) },
		"bridge": func(p lockmigrate.Pool) (lockmigrate.Locker, error) { return compat.New(p, compat.Options{TTL: long}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Real(t)
			// Waiters are in another process than the holders: nothing between them but the server.
			holding, err := open(s.Pool())
			require.NoError(t, err)
			waiting, err := open(s.Pool())
			require.NoError(t, err)
			held := make([]lockmigrate.Lock, each)
			var starting sync.WaitGroup
			for i := range each {
				starting.Go(func() {
					k, err := holding.Acquire(t.Context(), fmt.Sprintf("k%d", i))
					if assert.NoError(t, err) {
						held[i] = k
					}
				})
			}
			starting.Wait()
			require.False(t, t.Failed())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var mu sync.Mutex
			outcome := map[string]int{}
			var waiters sync.WaitGroup
			for i := range each {
				waiters.Go(func() {
					k, err := waiting.Acquire(ctx, fmt.Sprintf("k%d", i))
					what := "acquired"
					switch {
					case err == nil:
						defer func() { _ = k.Release(context.Background()) }()
					case errors.Is(err, context.Canceled):
						what = "cancelled"
					default:
						what = "told of the failure"
					}
					mu.Lock()
					outcome[what]++
					mu.Unlock()
				})
			}
			time.Sleep(100 * time.Millisecond) // the subject is a crowd that waits already
			s.Kill()
			s.Start()
			restarted := time.Now()

			// The key is free or taken by a waiter: a holder either notices and is told, or its renewal fails.
			for _, k := range held {
				select {
				case <-k.Context().Done():
				case <-time.After(time.Until(restarted.Add(long + time.Second))):
					t.Fatal("a holder does not know within a TTL and a second")
				}
				require.ErrorIs(t, context.Cause(k.Context()), lockmigrate.ErrLost)
			}
			knew := time.Since(restarted)
			resolved := make(chan struct{})
			go func() { waiters.Wait(); close(resolved) }()
			select {
			case <-resolved:
			case <-time.After(time.Until(restarted.Add(long + time.Second))):
				cancel() // some wait for others who have the lock by now: legitimate; none may hang
				select {
				case <-resolved:
				case <-time.After(2 * time.Second):
					t.Fatal("a waiter hangs")
				}
			}
			t.Logf("%d holders knew after %v; waiters after %v: %v", each, knew, time.Since(restarted), outcome)
			for _, k := range held {
				_ = k.Release(t.Context())
			}
			assert.NoError(t, holding.Close())
			assert.NoError(t, waiting.Close())
		})
	}
}
