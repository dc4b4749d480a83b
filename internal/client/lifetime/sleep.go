package lifetime

import (
	"context"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// Sleep waits for d, or until ctx ends: then it returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	if topology.Sleep(ctx, d) {
		return nil
	}
	return context.Cause(ctx)
}
