package lockmigrate

import "context"

type ownerKey struct{}

// WithOwner makes acquisitions with the context reentrant, in packages modern and modern/redisson: what an owner holds on a Locker, it
// acquires again at once, as another Lock of the same hold. The key is given back with the last of them. Without an owner every
// acquisition stands for itself, and acquiring twice waits for oneself.
//
// The empty id is no owner. Carry an owner no further than the work that may share its locks: two goroutines with one owner do
// not exclude each other.
func WithOwner(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, ownerKey{}, id)
}

// Owner returns the owner of a context.
func Owner(ctx context.Context) (id string, ok bool) {
	id, ok = ctx.Value(ownerKey{}).(string)
	return id, ok && id != ""
}
