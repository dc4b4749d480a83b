package observe_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// TestFailoversRemembered: a promoted replica says that it has taken a master's place. One that has none beside it and was not promoted
// may have forgotten, so nothing is said.
func TestFailoversRemembered(t *testing.T) {
	t.Parallel()
	r := redistest.NewReplicated(t)
	of := func(s *redistest.Server) *profile.Failovers {
		end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
		require.NoError(t, err)
		w, err := observe.StartMasters(context.Background(), end, observe.Options{}, observe.Limits{For: 50 * time.Millisecond, Load: 10})
		require.NoError(t, err)
		require.NoError(t, w.Wait())
		return w.Profile().Failovers
	}
	before := of(r.Master)
	require.NotNil(t, before)
	assert.Zero(t, before.Seen)
	assert.Zero(t, before.Every())
	assert.Nil(t, of(r.Replica), "a replica's place is not a master's")

	r.Promote()
	after := of(r.Replica)
	require.NotNil(t, after)
	assert.EqualValues(t, 1, after.Seen)
	assert.Positive(t, after.Every())
	assert.Nil(t, of(redistest.Real(t)))
}
