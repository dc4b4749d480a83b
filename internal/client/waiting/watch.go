package waiting

import (
	"context"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const (
	// A key's change is of interest to the first in its queue at once. It watches the key only when its
	// turn does not come by itself within armAfter: while waiters hand the key on to each other quickly,
	// there is nothing to be learnt from watching it, and a watch costs a round trip and, on the server, a
	// message to the watcher before the grant to the next one. A key that another client has freed by then is
	// found by arming: so this is how much later than at once that may be. An old client hands the key to
	// nobody: behind one, the first watches at once.
	armAfter = 10 * time.Millisecond
	// The next one watches too, later, and looks after the change had time to be acted on: the first may
	// be gone. All others are told when they become the first, or look when the holder's TTL is over.
	armSecond  = 200 * time.Millisecond
	lookSecond = 50 * time.Millisecond
	// contendedFor is how long after a wait a key is taken to be contended: the next one to want it goes into
	// the queue without trying first.
	contendedFor = time.Second
	// Soon is how many may stand before a waiter that polls for it to look more often: it may be given the key in a moment.
	Soon = 4
)

// Watch is whether one who waits in a queue on the server watches the key. Once it had a reason to, its
// questions go over the tracked connection and watch the key by themselves.
type Watch struct {
	wanted bool // ask over the tracked connection
	set    bool // the key is watched: the next change will be told
}

// Over returns what the next question goes over: plain, or the tracked connection.
func (w *Watch) Over(plain Runner, turn *Turn) Runner {
	w.set = w.wanted
	if w.wanted {
		return turn
	}
	return plain
}

// Listen has the next question go over the tracked connection, so that it watches the key from that moment on.
func (w *Watch) Listen() { w.wanted = true }

// Listened tells that the last question went over the tracked connection.
func (w *Watch) Listened() bool { return w.set }

// Sleep waits for an event that concerns a waiter with so many others before it, for d at most. Old tells that
// the holder is an old client.
func (w *Watch) Sleep(ctx context.Context, turn *Turn, before int, old bool, d time.Duration) (Event, error) {
	h := turn.hub
	now := h.opts.Now()
	end, arm := now.Add(d), now.Add(armAfter)
	switch {
	case before > 0:
		arm = now.Add(armSecond)
	case old:
		arm = now
	}
	if before > 1 || turn.Mode() != Tracking {
		w.wanted, arm = false, end
	}
	for {
		until := end
		if !w.set {
			until = min(end, arm)
		}
		event, err := Event{Kind: Timer}, error(nil)
		if until > now {
			event, err = turn.Wait(ctx, max(until.Sub(h.opts.Now()), 0))
		}
		switch {
		case err != nil:
			return event, err
		case event.Kind == Timer && !w.set && until < end:
			w.set, w.wanted = true, true
			if exists, err := turn.arm(ctx); err != nil || !exists {
				return Event{Kind: Changed}, err
			}
		case event.Kind == Changed && before > 0:
			end = min(end, h.opts.Now().Add(lookSecond))
		default:
			return event, nil
		}
	}
}

// Contended remembers which keys were waited for lately; keys may share a place, which only costs a better
// guess.
type Contended struct {
	seed   maphash.Seed
	places [256]atomic.Int64 // protocol.Instant
}

// NewContended returns one that remembers nothing.
func NewContended() *Contended { return &Contended{seed: maphash.MakeSeed()} }

func (c *Contended) place(key string) *atomic.Int64 {
	return &c.places[maphash.String(c.seed, key)%uint64(len(c.places))]
}

// Mark notes that somebody waits for a key.
func (c *Contended) Mark(key string, now protocol.Instant) { c.place(key).Store(int64(now)) }

// Lately tells that somebody waited for it a moment ago.
func (c *Contended) Lately(key string, now func() protocol.Instant) bool {
	last := protocol.Instant(c.place(key).Load())
	return last != 0 && now().Sub(last) < contendedFor
}
