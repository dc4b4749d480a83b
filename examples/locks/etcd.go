package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
)

// Etcd is a half of the mutexes of etcd's concurrency package, each with a session of its own; ttl is in whole seconds. Session.Done tells of a lease
// that is gone, up to half a second after its end. So the lease is also extended here, and the lock ends before it.
func Etcd(name string, client *clientv3.Client, ttl time.Duration) lockmigrate.Locker {
	type lock struct {
		*concurrency.Mutex
		session *concurrency.Session
	}
	take := func(by func(*concurrency.Mutex, context.Context) error) func(context.Context, string) (*lock, error) {
		return func(ctx context.Context, key string) (*lock, error) {
			lease, err := client.Grant(ctx, int64(ttl/time.Second))
			if err != nil {
				return nil, err
			}
			session, err := concurrency.NewSession(client, concurrency.WithLease(lease.ID)) // lives longer than ctx
			if err != nil {
				return nil, err
			}
			m := concurrency.NewMutex(session, key)
			if err := by(m, ctx); err != nil {
				go func() { _ = session.Close() }() // takes the lock with it, or the place in the queue
				if errors.Is(err, concurrency.ErrLocked) {
					err = fmt.Errorf("%w: %w", lockmigrate.ErrNotAcquired, err)
				}
				return nil, err
			}
			return &lock{m, session}, nil
		}
	}
	return handover.Wrap(name, handover.Funcs[*lock]{
		Acquire:    take((*concurrency.Mutex).Lock),
		TryAcquire: take((*concurrency.Mutex).TryLock),
		Extend: func(ctx context.Context, l *lock) error {
			_, err := client.KeepAliveOnce(ctx, l.session.Lease())
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				err = fmt.Errorf("%w: %w", lockmigrate.ErrLost, err)
			}
			return err
		},
		Release: func(ctx context.Context, l *lock) error {
			l.session.Orphan() // no more of KeepAlive
			_, err := client.Revoke(ctx, l.session.Lease())
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				err = fmt.Errorf("%w: %w", lockmigrate.ErrLost, err)
			}
			return err
		},
		Lost: func(l *lock) <-chan struct{} { return l.session.Done() },
		TTL:  ttl,
	})
}
