// Package fleet has a fleet work within this process: workers take turns at locks of any package, and a referee counts them. A rehearsal plays a fleet's
// migration on a private server: the shipped protocol code of old clients with their own clocks, members of package compat, sidecars, and a record that
// moves through the stages and back; each act is measured. The demo is a rehearsal with a fleet and acts of its own.
package fleet

import (
	"context"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
)

// Held is a lock in a worker's hands, of whichever package.
type Held interface {
	Context() context.Context
	Release(ctx context.Context) error
}

// Take waits for a lock on a key.
type Take func(ctx context.Context, key string) (Held, error)

// Of fits a Locker's Acquire to a worker.
func Of[L Held](take func(context.Context, string) (L, error)) Take {
	return func(ctx context.Context, key string) (Held, error) {
		lock, err := take(ctx, key)
		if err != nil {
			return nil, err // not a nil lock in an interface
		}
		return lock, nil
	}
}

// Worker is one service: it takes a lock, works for a moment inside, gives the lock back, and comes again.
type Worker struct {
	Name   string
	Member bool // of a namespace: itself, or by its sidecar
	Take   Take
	Key    func() string        // of the next turn
	Hold   func() time.Duration // how long the work takes
	Think  func() time.Duration // between two turns
	Dies   func() bool          // it dies inside, as by kill -9, and gives nothing back; nil: never
	Close  func()               // behind its last turn; nil: there is nothing to close

	role  role // in an act
	stop  context.CancelFunc
	ended chan struct{}
}

const (
	replyTimeout = 5 * time.Second
	lastRelease  = 500 * time.Millisecond // of a worker whose fleet ends; one that alone is told to stop gives back what it holds
)

// Start lets a worker work until Stop, or until ctx ends; its first turn begins after a moment.
func (w *Worker) Start(ctx context.Context, r *Referee, moment time.Duration) {
	fleet := ctx
	ctx, w.stop = context.WithCancel(ctx)
	w.ended = make(chan struct{})
	go func() {
		defer close(w.ended)
		defer w.stop()
		if w.Close != nil {
			defer w.Close()
		}
		_ = lifetime.Sleep(ctx, moment)
		for ctx.Err() == nil {
			if died := w.turn(ctx, fleet, r); !died { // who died is back at once
				_ = lifetime.Sleep(ctx, w.Think())
			}
		}
	}()
}

// Stop ends a worker's work behind its present turn.
func (w *Worker) Stop() { w.stop() }

// Wait returns when a worker that was stopped does not work any more.
func (w *Worker) Wait(ctx context.Context) error {
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *Worker) turn(ctx, fleet context.Context, r *Referee) (died bool) {
	key, began := w.Key(), time.Now()
	r.waits(key, 1)
	lock, err := w.Take(ctx, key)
	r.waits(key, -1)
	if err != nil {
		if ctx.Err() == nil {
			r.failed(err)
		}
		return false
	}
	r.enter(w, key, time.Since(began))
	_ = lifetime.Sleep(lock.Context(), w.Hold())
	died = w.Dies != nil && w.Dies()
	r.leave(w, key)
	if died {
		return true
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), replyTimeout)
	defer cancel()
	defer context.AfterFunc(fleet, func() { time.AfterFunc(lastRelease, cancel) })()
	r.failed(lock.Release(bounded))
	return false
}
