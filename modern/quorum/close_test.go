package quorum_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
)

func TestCloseBesideCallers(t *testing.T) {
	const callers = 6
	for range redistest.Rounds(5, 15) {
		var pools []lockmigrate.Pool
		for range 3 {
			pools = append(pools, redistest.Mini(t).Pool())
		}
		q, err := quorum.New(pools, modern.Options{Poll: time.Millisecond})
		require.NoError(t, err)
		var all sync.WaitGroup
		var over atomic.Bool
		for n := range callers {
			all.Go(func() {
				for !over.Load() {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Millisecond))
					if lock, err := q.Acquire(ctx, strconv.Itoa(n%2)); err == nil {
						_ = lock.Renew(ctx)
						_ = lock.Release(ctx)
					}
					cancel()
				}
			})
		}
		time.Sleep(rand.N(5 * time.Millisecond)) // the subject
		q.Close()
		over.Store(true)
		all.Wait()
		_, err = q.TryAcquire(t.Context(), "closed")
		assert.ErrorContains(t, err, "the Locker is closed")
	}
}

// Renewals to a server that does not answer do not pile up: the release and Close wait for none of them.
func TestRenewalsDoNotPileUp(t *testing.T) {
	const renewals, patience = 50, 100 * time.Millisecond
	var pools []lockmigrate.Pool
	var silent *redistest.Server
	for range 3 {
		silent = redistest.Real(t)
		pools = append(pools, silent.Pool())
	}
	q, err := quorum.New(pools, modern.Options{TTL: time.Minute, ReplyTimeout: patience})
	require.NoError(t, err)
	lock, err := q.Acquire(t.Context(), "k")
	require.NoError(t, err)
	thaw := silent.Freeze()
	defer thaw()
	for range renewals {
		require.NoError(t, lock.Renew(t.Context()))
	}
	require.NoError(t, lock.Release(t.Context()))
	began := time.Now()
	q.Close()
	assert.Less(t, time.Since(began), renewals*patience/2)
}
