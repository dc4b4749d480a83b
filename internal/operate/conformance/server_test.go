package conformance

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Between the look for a free port and the start another server may take it: what answers then is not ours, and holds other cases' keys.
func TestAnotherServerOnThePortIsNotOurs(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	other := redistest.Real(t, "--dbfilename", "theirs.rdb")
	s := &server{addr: other.Addr, name: "ours.rdb", ended: make(chan struct{})}
	assert.ErrorContains(t, s.answers(context.Background()), "another server")
	s.name = "theirs.rdb"
	assert.NoError(t, s.answers(context.Background()))
}
