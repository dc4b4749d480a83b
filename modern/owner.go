package modern

import (
	"context"

	"github.com/lockmigrate/lockmigrate/internal/client/leased"
)

// WithOwner makes acquisitions with the context reentrant: what an owner holds on a Locker, it acquires again at once, as another
// Lock of the same hold. The key is given back with the last of them. Without an owner every acquisition stands for itself, and
// acquiring twice waits for oneself.
//
// The empty id is no owner. Carry an owner no further than the work that may share its locks: two goroutines with one owner do
// not exclude each other. The Lockers of modern/redisson know the same owners.
func WithOwner(ctx context.Context, id string) context.Context { return leased.WithOwner(ctx, id) }

// Owner returns the owner of a context.
func Owner(ctx context.Context) (id string, ok bool) { return leased.Owner(ctx) }
