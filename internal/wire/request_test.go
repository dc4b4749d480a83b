package wire_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// No command has more arguments than a request has room for, and none but the boxes is allocated.
func TestRequestHoldsEveryCommand(t *testing.T) {
	c := protocol.Command{
		Key: "orders", Value: "5123456789012345678", Old: "DELIFEQ", TTL: time.Minute, Fence: "{orders}:fence", FenceTTL: time.Hour,
		Queue: "{orders}:queue", Channel: "wake", Claim: time.Second, QueueTTL: time.Hour, Guard: "{orders}:guard",
		Grace: time.Second, NotAfter: 1,
	}
	for op := range protocol.Op(255) {
		c.Op = op
		request, err := wire.RequestOf(c)
		if err != nil {
			continue
		}
		assert.Less(t, len(request.Args()), 21, "%s of op %d has no room to spare", request.Name, op)
	}
	c.Op = protocol.BridgeTake
	request, err := wire.RequestOf(c)
	require.NoError(t, err)
	assert.Equal(t, []any{scripts.BridgeAcquire.Digest, 5, "orders", "{orders}:guard", "{orders}:fence"}, request.Args()[:5])
	request.ByText()
	assert.Equal(t, "EVAL", request.Name)
	assert.Equal(t, scripts.BridgeAcquire.Source, request.Args()[0])
}
