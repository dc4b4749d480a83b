package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// One packet in twenty is lost, each way, between every client and the server; then one in five. TCP repairs
// it, late: locks get slow, and stay exclusive. The legacy ones do so where they compare before they delete: a bare DEL that TCP delivers
// after the lease is the old scheme's stale-delete.
func TestPacketLoss(t *testing.T) {
	server := newLossy(t)
	s := &site{t: t, server: server.Server, all: []*redistest.Server{server.Server}, sides: []side{direct(server.Addr), direct(server.Addr)}}
	c := newCrew(t, append([]kind{comparing}, kinds[1:]...), 8*time.Millisecond, s.sides...)
	c.progress(20 * time.Second)
	for _, loss := range []int64{50, 200} {
		server.loss.Store(loss)
		time.Sleep(2 * ttl) // the subject is time on a bad network
		server.loss.Store(0)
		c.progress(lease + ttl + 10*time.Second)
	}
	c.end()
	assert.Empty(t, c.overlaps, redistest.Violated)
	checked, wrong := c.unexplained()
	assert.Empty(t, wrong)
	s.nothingLeft()
	assert.Greater(t, server.lost.Load(), int64(50), "the network was bad")
	t.Logf("%d packets lost; %d turns, %d told of a loss, %d turns with fencing tokens", server.lost.Load(), c.referee.Since().Turns, c.told, checked)
}
