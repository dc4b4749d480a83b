package lockmigrate

import (
	"context"
	"time"
)

// Locker takes locks on keys. New of each lock package returns one, so a service keeps any kind in one variable: to change the kind it
// changes one line. It is safe for concurrent use. The package documentation of each kind has its guarantees. What the kinds add:
//
//   - legacy: nothing renews a lock but Lock.Renew. Acquire looks again each Options.Poll.
//   - modern: locks are renewed while they are held. Waiters get a key in the order in which they came. modern.WithOwner makes it reentrant.
//   - modern/redisson: renewed and reentrant too; waiters have no order.
//   - modern/quorum: renewed; waiters poll.
//   - compat: renewed. Each attempt is made in the stage that stands at the time. compat.Locker tells which one that is, and
//     whether the Locker can acquire.
type Locker interface {
	// TryAcquire makes one attempt. ErrNotAcquired means that another client holds the lock.
	TryAcquire(ctx context.Context, key string) (Lock, error)

	// Acquire waits until the lock is ours, Options.Wait is over or ctx ends; the last two are ErrNotAcquired. With modern and
	// compat a server that is away or takes no writes does not end a wait. A failure that the first attempt meets is its error.
	Acquire(ctx context.Context, key string) (Lock, error)

	// Do holds the lock while it runs work. The context of the work ends when ctx or the lease does. The lock is given back on
	// every way out, panics included. The error is work's own; without one, it is that of the release. If the lock was lost,
	// the error matches ErrLost whatever work returned: the work may have overlapped another holder's. When ctx is over, Do
	// returns within 250 ms of the end of work, whatever the server does.
	Do(ctx context.Context, key string, work func(ctx context.Context) error) error

	// Close ends the renewals, closes the Locker's own connections, and returns when nothing of it runs any more. Release locks
	// first. Those that are held are lost to their holders at once; those of package legacy when their leases end. On the
	// server they stay until their leases end. The error says how many they are. Callers who still wait get an error. What
	// an attempt may have left on the server is told to the observer as ErrUnknownOutcome.
	Close() error
}

// Lock is a lock that we hold, or held: what every Locker returns. So code that works under a lock need not know its
// kind. Its methods may be called by any goroutine.
type Lock interface {
	// Key returns the lock's key.
	Key() string

	// Token returns what we wrote on the key: the value that makes the lock ours there. In stage legacy it is the value that was
	// confirmed last; others may write the same.
	Token() string

	// Fence returns the fencing token: larger than every earlier holder's. With it a store can refuse the writes of a holder that was
	// overtaken. That holds while the server keeps the counter; docs/guarantees.md says what holds when it has lost it. It is 0
	// without Options.FenceTTL, in stage legacy, and where the kind of lock draws none.
	Fence() int64

	// Stage returns in which way the key is held: as old clients hold it, as the bridge does, or by a token with a TTL.
	// A lock that outlives a stage change is renewed and released in the way it was taken.
	Stage() Stage

	// Expiry returns until when the lock is certainly ours if no renewal succeeds any more. It is a deadline of this process's
	// monotonic clock, counted from before the last successful command was sent.
	Expiry() time.Time

	// Context returns a context with the values of the acquiring context. It ends when the lock is lost, at the latest at Expiry:
	// its cause matches ErrLost. At a release it ends with ErrReleased. A release that failed changes nothing about that.
	Context() context.Context

	// Renew extends the lease to its full length from now. Lockers that renew by themselves do not need it: call it to be sure
	// before a step that must not be done twice. ErrLost means that the lock is not ours any more, or that the reply came after
	// Expiry. ErrReleased means that Release was called. After any other error it is held as before, until its Expiry.
	Renew(ctx context.Context) error

	// Release gives the lock back. ErrLost means that it was lost before; what still is ours, such as the guard of a displaced
	// holder, is given back nevertheless. ErrUnknownOutcome means that no reply came: the key may stay taken until the time that
	// the error tells. The renewals end with the call in any case.
	//
	// After another error than ErrLost the Locker tries again in the background until Expiry. It pauses for 50 ms to 1 s: a server
	// that refuses now (READONLY, NOPERM, OOM, LOADING) may run it later. Release may be called again too: the first call after the
	// lock was given back returns nil. What cannot be released ends with the lease, and so does the holder's context.
	//
	// When ctx ends before the reply, or has ended before, the release goes on in the background.
	Release(ctx context.Context) error
}
