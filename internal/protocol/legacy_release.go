package protocol

// LegacyRelease gives the key back in one of the ways that old holders do:
//
//	ReleaseBlind       DEL key
//	ReleaseUnexpired   own lease unexpired by the own clock: DEL key
//	ReleaseNotSmaller  GET key; the number there >= the own one: DEL key
//	ReleaseMine        GET key; the own value, unexpired: DEL key
//	ReleaseCompare     one script: GET key, the own value: DEL key
//	ReleaseNever       nothing
//
// A DEL without a reply is sent again only while the key still holds a value that we wrote, and only where the server has ended the
// connection. Else it may be on its way yet: TCP delivers it seconds later, also after the connection was closed here. A second DEL that
// is confirmed before that would let a successor in, and the first one would delete the successor's key. So the key is looked at
// until the first DEL has come, or the lease is over. ReleaseCompare harms nobody late, and is sent again.
//
// After a renewal without an answer the value that we wrote is either of two, see LegacyRenew. ReleaseCompare then asks for the older one
// first: if that is not on the key, the renewal has run, or nothing of ours is there.
type LegacyRelease struct {
	Dialect  *Dialect
	Key      string
	Policy   Release
	Value    string  // what we wrote on the key
	Pending  string  // what a renewal without an answer may have written over it; empty for none
	Expiry   Instant // the end of the lease on our own clock
	Again    bool    // an earlier release may have run: ask first whether the key still holds our value
	OnItsWay bool    // a DEL that was sent may run yet
	Faithful bool

	at      releaseState
	retried bool
	second  bool // ReleaseCompare asks for Pending
}

type releaseState uint8

const (
	releaseBegin releaseState = iota
	releaseAsked
	releaseRead
	releaseResolves
)

// Next implements Machine.
func (r *LegacyRelease) Next(now Instant, reply Reply) Step {
	if reply.Kind == Fault {
		if r.retried { // it says nothing about the DEL whose reply was lost
			return done(Unsure)
		}
		return done(Failed)
	}
	if reply.Kind == Silence {
		return r.resolve(reply.Over)
	}
	switch r.at {
	case releaseBegin:
		if r.Again && r.Policy != ReleaseCompare { // which asks by itself
			r.retried = true
			return r.ask(releaseResolves, Command{Op: Get, Key: r.Key})
		}
		return r.start(now)
	case releaseRead:
		return r.judge(now, reply)
	case releaseResolves:
		if !r.ours(reply) {
			return done(Released)
		}
		if r.OnItsWay {
			return done(Unsure)
		}
		r.second = false
		return r.start(now)
	default: // releaseAsked
		switch {
		case !reply.is(0):
			return done(Released)
		case r.Policy == ReleaseCompare && r.Pending != "" && !r.second:
			r.second = true
			return r.ask(releaseAsked, Command{Op: CompareDel, Key: r.Key, Value: r.Pending})
		case r.retried: // the DEL before this one, whose reply was lost, has run after the GET
			return done(Released)
		}
		return done(NotOurs)
	}
}

// ours tells whether the key holds a value of ours.
func (r *LegacyRelease) ours(reply Reply) bool {
	return reply.Kind == Text && (reply.Text == r.Value || r.Pending != "" && reply.Text == r.Pending)
}

func (r *LegacyRelease) start(now Instant) Step {
	switch r.Policy {
	case ReleaseBlind:
		return r.ask(releaseAsked, Command{Op: Del, Key: r.Key})
	case ReleaseUnexpired:
		if now >= r.Expiry {
			return done(NotOurs)
		}
		return r.ask(releaseAsked, Command{Op: Del, Key: r.Key})
	case ReleaseCompare:
		return r.ask(releaseAsked, Command{Op: CompareDel, Key: r.Key, Value: r.Value})
	case ReleaseNever:
		return done(NotOurs)
	default:
		return r.ask(releaseRead, Command{Op: Get, Key: r.Key})
	}
}

// judge looks at the value before the DEL; between the two commands anything can happen.
func (r *LegacyRelease) judge(now Instant, reply Reply) Step {
	mine := false
	if r.Policy == ReleaseMine {
		mine = r.ours(reply) && now < r.Expiry
	} else {
		there, readable := r.Dialect.Read(reply.Text)
		own, _ := r.Dialect.Read(r.Value)
		if !readable && r.Faithful {
			return done(Threw)
		}
		mine = readable && !there.before(own)
	}
	if !mine {
		return done(NotOurs)
	}
	return r.ask(releaseAsked, Command{Op: Del, Key: r.Key})
}

func (r *LegacyRelease) resolve(over bool) Step {
	if r.at == releaseAsked && r.Policy != ReleaseCompare && !over {
		r.OnItsWay = true
	}
	if r.at == releaseAsked && !r.retried {
		r.retried = true
		return r.ask(releaseResolves, Command{Op: Get, Key: r.Key})
	}
	return done(Unsure)
}

func (r *LegacyRelease) ask(next releaseState, c Command) Step {
	r.at = next
	return send(c)
}
