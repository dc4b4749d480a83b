package sidecar_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestASidecarFollowsWhenItsCommandsDo: a command that a sidecar sent under the record as it was takes keys over by that record, and the server
// may run it until the sidecar's lease from then ends. Until that moment the sidecar does not count as one that follows a correction.
func TestASidecarFollowsWhenItsCommandsDo(t *testing.T) {
	t.Parallel()
	b := newBed(t, stages.Bridge, "jedis-ms")
	const lease = 6 * time.Second
	s := b.sidecar("one", "", func(o *sidecar.Options) { o.MemberLease = lease })
	idle := b.sidecar("two", "", func(o *sidecar.Options) { o.MemberLease = lease })
	view, err := b.store.Show(t.Context())
	require.NoError(t, err)
	sent := time.Now()
	says(t, b.client(s), "1", "SETNX", "lock:a", ends(time.Minute))
	to := view.Record
	to.ClockLag = 3 * time.Second
	blockers, err := b.store.Set(t.Context(), view.Record.Epoch, view.Record, to, true)
	require.NoError(t, err)
	require.Empty(t, blockers)
	late := func() (names []string) {
		view, err := b.store.Show(t.Context())
		require.NoError(t, err)
		late, _ := view.ChangingOver()
		for _, m := range late {
			names = append(names, m.ID)
		}
		return names
	}
	for _, c := range []*started{s, idle} { // both act by the corrected record
		redistest.Await(t, "the correction", lease, func() bool { _, epoch, _ := c.Stage(); return epoch == view.Record.Epoch+1 })
	}
	redistest.Await(t, "the idle one", time.Second, func() bool { return len(late()) == 1 })
	if time.Since(sent) < lease*2/3 { // the lease lasts at least so long from any report
		assert.Contains(t, late()[0], "sidecar:one/")
	}
	redistest.Await(t, "the other one", 2*lease, func() bool { return len(late()) == 0 })
	assert.Greater(t, time.Since(sent), lease*2/3)
}
