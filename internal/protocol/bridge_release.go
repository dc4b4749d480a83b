package protocol

import "time"

// BridgeRelease deletes key and guard where they still hold our value.
//
//	release   ours, or the key was absent   Released
//	          another's value on the key    Displaced: as at a renewal; the guard is gone
//	          nothing was ours              NotOurs: the lock had been lost before
//	clear     whatever it comes to          Displaced
//
// The value of another is deleted too if it is Leftover: see Dialect.Leftover.
//
// A reply that does not come is asked for once more; "nothing was ours" is then our own doing. A displacement is told as often as it
// is asked for: with Hand the first release leaves the guard, and a second one deletes it. A refusal is followed by a release
// that names no key but these two: where a key beside them is denied, it frees the lock, or tells the displacement likewise.
type BridgeRelease struct {
	Key      string
	Guard    string
	Value    string
	Yield    Yield
	Queue    string // the queue's key; empty for none
	Hand     bool   // the lock was ours and settled: the first in the queue may have it
	Fence    string // with Hand: the fencing counter's key, for the next holder; empty for none
	FenceTTL time.Duration
	Entry    string        // ours in the queue, to be removed; empty for none
	Stood    string        // another one of ours, likewise
	Taken    Instant       // a reading from before the keys were taken; 0: unknown
	Behind   int           // how many of this process wait for the key without an entry in the queue
	Leftover string        // deleted where it stands in our place; empty: nothing is
	Breath   time.Duration // see Dialect.Breath

	asked  bool
	again  bool
	bare   bool // the keys beside the lock's own were refused
	told   bool // the displacement is known: the guard is being deleted
	clears bool // Leftover is being deleted
	held   time.Duration
	seen   string
}

// Seen returns the value that stands in our place. Valid once Displaced.
func (r *BridgeRelease) Seen() string { return r.seen }

// Next implements Machine.
func (r *BridgeRelease) Next(now Instant, reply Reply) Step {
	switch {
	case !r.asked:
		r.asked = true
		if r.Taken != 0 {
			r.held = max(now.Sub(r.Taken), 0)
		}
		return r.ask()
	case r.clears:
		return done(Displaced)
	case r.told:
		return r.clear()
	case reply.Kind == Silence && !r.again:
		r.again = true
		return r.ask()
	case reply.Kind == Fault && !r.bare:
		r.bare = true
		return r.ask()
	case reply.Kind == Silence, reply.Kind == Fault && r.again:
		return done(Unsure)
	case reply.Kind == Fault:
		return done(Failed)
	}
	switch {
	case reply.Int == DropTheirs:
		r.seen = reply.Text
		if r.Hand {
			r.told, r.Hand = true, false
			return r.ask()
		}
		return r.clear()
	case reply.Int == DropNothing && !r.again:
		return done(NotOurs)
	default:
		return done(Released)
	}
}

// clear deletes the value in our place if it is Leftover.
func (r *BridgeRelease) clear() Step {
	r.told = false
	if r.Leftover == "" || r.seen != r.Leftover {
		return done(Displaced)
	}
	r.clears = true
	return send(Command{Op: CompareDel, Key: r.Key, Value: r.Leftover})
}

func (r *BridgeRelease) ask() Step {
	c := Command{Op: BridgeDrop, Key: r.Key, Guard: r.Guard, Value: r.Value, Hand: r.Hand, Breath: r.Breath}
	if r.bare {
		return send(c)
	}
	c.Held, c.Behind, c.Queue, c.Entry, c.Stood = r.held, r.Behind, r.Queue, r.Entry, r.Stood
	c.Fence, c.FenceTTL = r.Fence, r.FenceTTL
	return send(r.Yield.on(c))
}
