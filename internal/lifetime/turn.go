package lifetime

import (
	"context"
	"sync"
)

// turn is a mutex whose waiters leave when their contexts end. Locking costs nothing while nobody waits. One goroutine may
// lock it and another unlock it: a command whose caller has left keeps the turn until its reply.
type turn struct {
	mu    sync.Mutex
	taken bool
	freed chan struct{} // closed at the next unlock; nil while nobody waits
}

func (t *turn) lock(ctx context.Context) error {
	for {
		t.mu.Lock()
		if !t.taken {
			t.taken = true
			t.mu.Unlock()
			return nil
		}
		if t.freed == nil {
			t.freed = make(chan struct{})
		}
		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *turn) unlock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}
