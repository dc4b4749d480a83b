package lockers

import (
	"context"
	"errors"

	"github.com/lockmigrate/lockmigrate"
)

type ownerKey struct{}

// WithOwner returns a context with an owner: modern.WithOwner has the promise.
func WithOwner(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, ownerKey{}, id)
}

// ownerOf returns the owner of a context, empty for none.
func ownerOf(ctx context.Context) string {
	id, _ := ctx.Value(ownerKey{}).(string)
	return id
}

type ownership struct{ key, owner string }

// reenter takes another Lock of a hold that the context's owner has; nil where it has none.
func (l *Locker) reenter(ctx context.Context, key string) lockmigrate.Lock {
	owner := ownerOf(ctx)
	if owner == "" {
		return nil
	}
	l.mu.Lock()
	h := l.owned[ownership{key, owner}]
	l.mu.Unlock()
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count == 0 || h.Over() != nil || l.Clock.Now() >= h.Lease.Until() { // a process that was stopped may come here before its watch
		return nil
	}
	h.count++
	return &lock{hold: h}
}

// own notes what the context's owner holds.
func (l *Locker) own(ctx context.Context, h *Hold) {
	owner := ownerOf(ctx)
	if owner == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owned == nil {
		l.owned = make(map[ownership]*Hold)
	}
	h.owner = ownership{h.key, owner}
	l.owned[h.owner] = h
}

func (l *Locker) disown(h *Hold) {
	if h.owner == (ownership{}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owned[h.owner] == h {
		delete(l.owned, h.owner)
	}
}

// lost returns why a hold is over if it was lost. That the last of its Locks was released meanwhile is no error.
func lost(over error) error {
	if errors.Is(over, lockmigrate.ErrLost) {
		return over
	}
	return nil
}
