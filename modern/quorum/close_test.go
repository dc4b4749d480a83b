package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
)

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
