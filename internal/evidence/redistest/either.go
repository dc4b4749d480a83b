package redistest

import "context"

// Either makes one type of the Lockers of all packages, for tests of what they have in common: a Locker of locks L whose locks are
// seen as K, an interface that L implements.
type Either[K, L any] struct {
	Inner interface {
		TryAcquire(ctx context.Context, key string) (L, error)
		Acquire(ctx context.Context, key string) (L, error)
		Do(ctx context.Context, key string, work func(ctx context.Context) error) error
		Close() error
	}
}

// TryAcquire makes one attempt.
func (o Either[K, L]) TryAcquire(ctx context.Context, key string) (K, error) {
	return as[K](o.Inner.TryAcquire(ctx, key))
}

// Acquire waits for the lock.
func (o Either[K, L]) Acquire(ctx context.Context, key string) (K, error) {
	return as[K](o.Inner.Acquire(ctx, key))
}

// Do holds the lock while work runs.
func (o Either[K, L]) Do(ctx context.Context, key string, work func(ctx context.Context) error) error {
	return o.Inner.Do(ctx, key, work)
}

// Close closes the Locker.
func (o Either[K, L]) Close() error { return o.Inner.Close() }

func as[K, L any](lock L, err error) (none K, _ error) {
	if err != nil { // a nil *Lock in an interface is no nil
		return none, err
	}
	return any(lock).(K), nil
}
