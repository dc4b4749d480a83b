package redistest

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/lockmigrate/lockmigrate"
)

// Told collects the keys that may have something on the server, as somebody was told: as an observer those of
// losses and unknown outcomes, and what callers Note. The zero value is empty; it is safe for concurrent use.
type Told struct{ keys sync.Map }

// Note adds a key.
func (r *Told) Note(key string) { r.keys.Store(key, true) }

// Of tells whether somebody was told of a key.
func (r *Told) Of(key string) bool {
	_, told := r.keys.Load(key)
	return told
}

// Observe implements lockmigrate.Observer.
func (r *Told) Observe(e lockmigrate.Event) {
	if e.Kind == lockmigrate.EventLost || errors.Is(e.Err, lockmigrate.ErrUnknownOutcome) {
		r.Note(e.Key)
	}
}

// Mode is what an observer was last told to wake the waiters of its Locker. The zero value is idle; it is safe for concurrent use.
type Mode struct{ last atomic.Value }

// Observe implements lockmigrate.Observer.
func (m *Mode) Observe(e lockmigrate.Event) {
	if e.Kind == lockmigrate.EventMode {
		m.last.Store(e.Mode)
	}
}

// Is returns the mode.
func (m *Mode) Is() string {
	mode, _ := m.last.Load().(string)
	return cmp.Or(mode, "idle")
}

// BeginTurn takes a lock and gives it back, and tells when it is over.
func BeginTurn(ctx context.Context, acquire func(context.Context, string) (lockmigrate.Lock, error), key string) <-chan error {
	over := make(chan error, 1)
	go func() {
		k, err := acquire(ctx, key)
		if err == nil {
			err = k.Release(ctx)
		}
		over <- err
	}()
	return over
}
