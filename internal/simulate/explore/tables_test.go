package explore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// TestExpiredKeysStayGone: the search is breadth first in steps, not in ticks, so a server whose key has expired at tick 7
// may be found before another run meets an equal one, at tick 5.
func TestExpiredKeysStayGone(t *testing.T) {
	m := world("ticks=10\nm modern")
	tables := newTables(m)
	held := server{}
	held.store.Put(model.Entry{Key: key, Value: "token", ExpireMS: int64(m.serverClock(6)) / 1e6})
	expired := tables.server(&held, 7)
	require.Equal(t, expired, tables.server(&server{}, 5))
	get := tables.command(&protocol.Command{Op: protocol.Get, Key: key})
	require.Equal(t, protocol.Nil, tables.replies[tables.executed(expired, get, 0, 0, 0, 5).reply].Kind)
}

// TestCommandsAreToldApart: a number stands for all that a client may say differently from one time to the next.
func TestCommandsAreToldApart(t *testing.T) {
	tables := newTables(world("ticks=10\nx bridge"))
	seen := map[uint32]bool{}
	for _, c := range []protocol.Command{
		{Op: protocol.BridgeTake}, {Op: protocol.BridgeTake, Stood: "y"}, {Op: protocol.BridgeTake, Entry: "x"},
		{Op: protocol.BridgeSettle},
		{Op: protocol.BridgeTake, Grace: 1}, {Op: protocol.BridgeTake, NotAfter: 1},
		{Op: protocol.QueueRelease}, {Op: protocol.QueueRelease, Channel: "m"}, {Op: protocol.QueueRelease, Channel: "m", Claim: 1},
	} {
		id := tables.command(&c)
		require.False(t, seen[id], "%+v", c)
		seen[id] = true
	}
}
