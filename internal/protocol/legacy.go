package protocol

import (
	"strings"
	"time"
)

// LegacyAcquire is the old lock, as the SETNX/GETSET article has it:
//
//	while patience >= 0 {
//		SETNX key, now + lease + 1           1: acquired
//		GET key                              not expired: held by another
//		GETSET key, now + lease + 1          the old value is the value read: acquired
//		patience -= poll; sleep poll
//	}
//
// The dialect decides the value's form, the meaning of expired, who wins after GETSET, and what a
// vanished key means. Three rules are added, which change no command on the wire that the old code
// would have sent:
//
//   - A GETSET that finds nothing has created the key, as SETNX would have: nobody was robbed, so it
//     counts as acquired. The old code walks away and leaves its own value behind, a ghost for a lease.
//   - A lost reply is settled by reading the key, as far as the value on it can prove anything.
//   - The expiry is computed again for each attempt. Some old code computes it once and, after a long
//     wait, writes one that is past.
//
// Faithful turns these off, and makes the machine do with foreign values what the old code does: that
// is the legacy client of the simulator.
type LegacyAcquire struct {
	Dialect  *Dialect
	Key      string
	Owner    string // what an owner's part of the value holds; unique to this run
	Lease    time.Duration
	Poll     time.Duration
	Patience time.Duration // how much sleep to spend; 0 makes one attempt
	Faithful bool
	NotAfter Instant // on the server's clock: what writes is refused later than this; 0: no bound
	Guard    string  // with NotAfter: the bridge's second key, respected by what writes

	at      legacyState
	began   Instant // the clock at the start of this attempt
	written string  // the value that we offer
	expiry  Instant // what it stands for, on our own clock
	read    string  // the value that GET returned
	found   bool    // GET returned one
	foreign bool    // the last value seen is not of this dialect
	retried bool    // a SETNX that stayed without a reply has been sent again
}

type legacyState uint8

const (
	begin legacyState = iota
	askedSetNX
	askedWatch
	askedGet
	askedUnwatch
	askedGetSet
	askedCommit
	slept
	resolvesSetNX // asked GET after a SETNX without a reply
	resolvesTake  // asked GET after a GETSET or EXEC without a reply
)

// Value returns what the lock wrote on the key, valid once Acquired or Unsure.
func (a *LegacyAcquire) Value() string { return a.written }

// Expiry returns the end of the lease on the client's own clock, valid once Acquired or Unsure.
func (a *LegacyAcquire) Expiry() Instant { return a.expiry }

// Seen returns the value on the key that stopped the last attempt, and whether it is foreign.
func (a *LegacyAcquire) Seen() (value string, foreign bool) { return a.read, a.foreign }

// Next implements Machine.
func (a *LegacyAcquire) Next(now Instant, reply Reply) Step {
	if reply.Kind == Fault {
		return a.refused(reply)
	}
	if reply.Kind == Silence {
		return a.resolve()
	}
	switch a.at {
	case begin, slept:
		return a.attempt(now)

	case askedSetNX:
		if reply.is(1) {
			return done(Acquired)
		}
		if a.Dialect.Transaction {
			return a.ask(askedWatch, Command{Op: Watch, Key: a.Key})
		}
		return a.ask(askedGet, Command{Op: Get, Key: a.Key})

	case askedWatch:
		return a.ask(askedGet, Command{Op: Get, Key: a.Key})

	case askedGet:
		return a.judge(now, reply)

	case askedUnwatch:
		return a.pause()

	case askedGetSet:
		return a.compare(now, reply)

	case askedCommit:
		if reply.Kind == Text {
			return done(Acquired)
		}
		return a.pause() // the key changed under WATCH

	case resolvesSetNX:
		if reply.Kind == Text && reply.Text == a.written {
			// Ours, or the twin of a client that computed the same expiry in the same instant.
			return a.ours()
		}
		if reply.Kind == Nil && !a.retried {
			// If the lost SETNX arrives after all, it finds the key taken, by us or by another.
			a.retried = true
			return a.ask(askedSetNX, Command{Op: SetNX, Key: a.Key, Value: a.written})
		}
		return a.judge(now, reply)

	default: // resolvesTake
		if reply.Kind == Text && reply.Text == a.written {
			return done(Unsure) // it ran, but what it replaced will never be known
		}
		return a.pause()
	}
}

// attempt starts the loop's body: compute the expiry, try the free key.
func (a *LegacyAcquire) attempt(now Instant) Step {
	a.began, a.retried = now, false
	if a.written == "" || a.Dialect.Writes != OnceForAll || !a.Faithful {
		a.offer(now)
	}
	return a.ask(askedSetNX, Command{Op: SetNX, Key: a.Key, Value: a.written})
}

// judge looks at the value on the key: is its lease over?
func (a *LegacyAcquire) judge(now Instant, reply Reply) Step {
	a.read, a.found, a.foreign = reply.Text, reply.Kind == Text, false
	reading := Live
	switch {
	case a.found:
		reading = a.reading(a.read, now)
	case a.Dialect.Missing == MissingExpired:
		reading = Expired
	case a.Dialect.Missing == MissingFails && a.Faithful:
		return done(Threw)
	}
	if reading == Unreadable {
		if a.Faithful {
			return done(Threw)
		}
		a.foreign = true
	}
	if reading != Expired {
		if a.Dialect.Transaction {
			return a.ask(askedUnwatch, Command{Op: Unwatch})
		}
		return a.pause()
	}

	if a.Dialect.Writes == EachCommand {
		a.offer(now)
	}
	if a.Dialect.Transaction {
		if a.Dialect.QuotesOnTake {
			a.written = `"` + a.written + `"`
		}
		return a.ask(askedCommit, Command{Op: Commit, Key: a.Key, Value: a.written})
	}
	return a.ask(askedGetSet, Command{Op: GetSet, Key: a.Key, Value: a.written})
}

// compare decides the takeover by the value that GETSET replaced.
func (a *LegacyAcquire) compare(now Instant, reply Reply) Step {
	old, replaced := reply.Text, reply.Kind == Text
	if !replaced && !a.Faithful {
		return done(Acquired) // the key was free: we created it
	}
	won := false
	switch a.Dialect.Win {
	case OldIsRead:
		won = replaced && a.found && old == a.read
	case OldIsReadText:
		won = replaced == a.found && old == a.read
	case OldIsExpired:
		reading := Expired // nothing reads as an expiry long past
		if replaced {
			reading = a.reading(old, now)
		} else if a.Dialect.Missing == MissingFails {
			reading = Unreadable
		}
		if reading == Unreadable && a.Faithful {
			return done(Threw)
		}
		won = reading == Expired
	}
	if won {
		return done(Acquired)
	}
	a.read, a.found = old, replaced
	return a.pause()
}

// refused ends the run, except where the server says that the key is not a string: that is a foreign
// value like any other.
func (a *LegacyAcquire) refused(reply Reply) Step {
	if !strings.HasPrefix(reply.Text, "WRONGTYPE") {
		if a.at == resolvesSetNX || a.at == resolvesTake || a.retried {
			return done(Unsure) // a refusal now (LOADING, READONLY) says nothing about the command before it
		}
		return done(Failed)
	}
	if a.Faithful {
		return done(Threw)
	}
	a.read, a.found, a.foreign = "", false, true
	if a.Dialect.Transaction {
		return a.ask(askedUnwatch, Command{Op: Unwatch})
	}
	return a.pause()
}

// pause ends an attempt that failed.
func (a *LegacyAcquire) pause() Step {
	a.Patience -= a.Poll
	if a.Patience < 0 {
		if a.foreign {
			return done(Foreign)
		}
		return done(Busy)
	}
	a.at = slept
	return sleep(a.Poll)
}

// resolve asks what became of a command whose reply was lost.
func (a *LegacyAcquire) resolve() Step {
	switch a.at {
	case askedSetNX:
		return a.ask(resolvesSetNX, Command{Op: Get, Key: a.Key})
	case askedGetSet, askedCommit:
		return a.ask(resolvesTake, Command{Op: Get, Key: a.Key})
	case resolvesSetNX, resolvesTake:
		return done(Unsure)
	default:
		return done(Failed) // WATCH, GET and UNWATCH leave nothing behind
	}
}

func (a *LegacyAcquire) ours() Step {
	if a.Dialect.Unique {
		return done(Acquired)
	}
	return done(Unsure)
}

func (a *LegacyAcquire) ask(next legacyState, c Command) Step {
	a.at = next
	c.NotAfter, c.Guard = a.NotAfter, a.Guard
	return send(c)
}

func (a *LegacyAcquire) offer(now Instant) {
	a.written, a.expiry = a.Dialect.Expiry(now, a.Lease, a.Owner)
}

func (a *LegacyAcquire) reading(value string, now Instant) Reading {
	if a.Dialect.StaleClock {
		now = a.began
	}
	if a.Faithful {
		return a.Dialect.JudgeAsOldCode(value, now, a.Owner)
	}
	return a.Dialect.Judge(value, now, a.Owner)
}

// LegacyRenew moves the lease of a lock that is still ours to now + lease + 1, by one
// compare-and-set script: the old scheme has no renewal that could not overwrite a successor.
//
// After a renewal without an answer the key holds the old value or the new one. The command may still arrive. So its
// owner remembers both, and the next renewal settles the matter first:
//
//	compare_set old pending     1: done now; 0: done before, or the key is not ours. The old value is never there again
//	compare_set pending new     1: renewed; 0: lost
type LegacyRenew struct {
	Dialect       *Dialect
	Key           string
	Owner         string
	Lease         time.Duration
	Value         string  // what we wrote last
	ValueExpiry   Instant // the end of the lease that Value stands for, on our own clock
	Pending       string  // what a renewal without an answer may have written over it; empty for none
	PendingExpiry Instant
	NotAfter      Instant // on the server's clock: refused later than this; 0: no bound

	at     renewState
	next   string
	expiry Instant
}

type renewState uint8

const (
	renewBegin renewState = iota
	renewSettles
	renewAsked
	renewResolves
)

// Written returns what the key holds once Renewed.
func (r *LegacyRenew) Written() string { return r.next }

// Expiry returns the end of the new lease on the client's own clock.
func (r *LegacyRenew) Expiry() Instant { return r.expiry }

// Next implements Machine.
func (r *LegacyRenew) Next(now Instant, reply Reply) Step {
	switch r.at {
	case renewBegin:
		if r.Pending != "" {
			r.at = renewSettles
			return send(Command{Op: CompareSet, Key: r.Key, Old: r.Value, Value: r.Pending, NotAfter: r.NotAfter})
		}
		return r.ask(now)
	case renewSettles:
		switch reply.Kind {
		case Fault:
			return done(Failed)
		case Silence:
			return done(Unsure)
		}
		r.Value, r.ValueExpiry, r.Pending = r.Pending, r.PendingExpiry, ""
		return r.ask(now)
	case renewAsked:
		switch {
		case reply.Kind == Fault:
			r.Pending = "" // it has not run
			return done(Failed)
		case reply.Kind == Silence:
			r.at = renewResolves
			return send(Command{Op: Get, Key: r.Key})
		case reply.is(1):
			return r.renewed()
		default:
			return done(Lost)
		}
	default:
		return r.settle(reply)
	}
}

// ask sends the renewal. Whatever ends the run from here on, the key may hold the new value.
func (r *LegacyRenew) ask(now Instant) Step {
	r.next, r.expiry = r.Dialect.Expiry(now, r.Lease, r.Owner)
	r.at, r.Pending, r.PendingExpiry = renewAsked, r.next, r.expiry
	return send(Command{Op: CompareSet, Key: r.Key, Old: r.Value, Value: r.next, NotAfter: r.NotAfter})
}

// settle reads the key after a renewal without a reply. Both values are ours, so either proves that
// nobody has come between; only the new one proves the new lease.
func (r *LegacyRenew) settle(reply Reply) Step {
	switch {
	case reply.Kind == Silence, reply.Kind == Fault:
		return done(Unsure)
	case reply.Kind == Text && reply.Text == r.next:
		return r.renewed()
	case reply.Kind == Text && reply.Text == r.Value: // the command may arrive yet
		return done(Failed)
	default:
		return done(Lost)
	}
}

func (r *LegacyRenew) renewed() Step {
	r.Value, r.ValueExpiry, r.Pending = r.next, r.expiry, ""
	return done(Renewed)
}
