package lockmigrate

import (
	"context"
	"time"
)

// Held is a lock that we hold, or held. The locks of all packages have these methods. So code that works under a lock need not know its kind.
type Held interface {
	// Key returns the lock's key.
	Key() string

	// Token returns the value that makes the lock ours on the server.
	Token() string

	// Fence returns the fencing token. It is 0 where the kind of lock draws none.
	Fence() int64

	// Expiry returns until when the lock is certainly ours if no renewal succeeds any more. It is a
	// deadline of this process's monotonic clock.
	Expiry() time.Time

	// Context returns a context with the values of the acquiring context. It ends when the lock is lost, at the latest at Expiry:
	// its cause matches ErrLost. At a release it ends with ErrReleased.
	Context() context.Context

	// Renew extends the lease to its full length from now. ErrLost means that the lock is not ours any
	// more. ErrReleased means that Release was called. After any other error it is held as before, until its Expiry.
	Renew(ctx context.Context) error

	// Release gives the lock back. Until the server has confirmed that, Context still ends at Expiry.
	Release(ctx context.Context) error
}
