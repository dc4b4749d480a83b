package model

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Scheme is which generation of lock code a client runs.
type Scheme uint8

const (
	Legacy   Scheme = iota // the unmodified old code
	GoLegacy               // this project's client of the old scheme
	Bridge                 // the bridge: excludes legacy and modern
	Modern                 // token and TTL
	Sidecar                // the unmodified old code behind a sidecar
)

// Schemes is how many there are.
const Schemes = int(Sidecar) + 1

var schemeNames = [...]string{"legacy", "go-legacy", "bridge", "modern", "sidecar"}

func (s Scheme) String() string { return schemeNames[s] }

// SchemeNames are the names of all schemes.
func SchemeNames() []string { return schemeNames[:] }

// SchemeNamed finds a scheme by its name.
func SchemeNamed(name string) (Scheme, bool) {
	i := slices.Index(schemeNames[:], name)
	return Scheme(max(i, 0)), i >= 0
}

// Old tells that a scheme puts an expiry on the key instead of a token.
func (s Scheme) Old() bool { return s == Legacy || s == GoLegacy || s == Sidecar }

// faithful tells that a scheme is code that nobody changes: it never looks at its deadline, and throws where the old code throws.
func (s Scheme) faithful() bool { return s == Legacy || s == Sidecar }

// Member is the configuration of one client.
type Member struct {
	Name    string
	Scheme  Scheme
	Dialect *protocol.Dialect // of the client itself, or of the fleet that a bridge lives beside
	Key     string
	Owner   string // what an owner's part of a value holds; also seeds the tokens

	Lease    time.Duration // legacy: how long the value lasts; bridge, modern: the TTL
	Poll     time.Duration
	Patience time.Duration // how much sleep to spend in one turn
	Renew    time.Duration // between two renewals while holding; 0 is never
	Release  protocol.Release

	Grace      time.Duration // bridge: how long after its expiry a legacy value is taken over
	Settle     time.Duration // bridge: how long to wait after a takeover before trusting it; 0 is not at all (an ablation)
	Alone      bool          // bridge: as at stage modern, it takes nothing over
	NoGuard    bool          // bridge: without the second key (an ablation)
	PutBacks   int           // bridge: how often a live legacy value is overwritten while settling (an ablation)
	NoDeadline bool          // believe in the lock until release, whatever the time (an ablation)
	// FromReply counts the lock's validity from the reply instead of from before the command (an
	// ablation).
	FromReply bool
	// Truthful writes the bridge's true expiry instead of a far-future number (an ablation).
	Truthful bool
	// Plain is a modern token that is no number, as other libraries write it.
	Plain bool
	// Fence is the key of the fencing counter; empty for none.
	Fence string
	// NotAfter is the server's time after which the member's commands are refused: the end of its lease on
	// the namespace's stage; 0 is none.
	NotAfter protocol.Instant
	// Redisson makes a modern client take Redisson's lock.
	Redisson bool
	// Queue makes modern and bridge clients wait in the server's queue instead of asking again and again.
	Queue bool
	// Polls, with Queue, makes it listen to no message: it finds a lock that was handed to it when it asks.
	Polls bool
	// Tracks makes a bridge or modern client hear of the next change of a key that it has found held, as client tracking does.
	// Only the simulator knows it: to the explorer every sleep may end at any time.
	Tracks bool
	// Claim, of a client that queues, is for how long a lock is its own that is handed to it, before it
	// has spoken; 0 is a third of Lease. MaxSleep is the longest time between two of its questions; 0 is Lease.
	Claim    time.Duration
	MaxSleep time.Duration
	QueueTTL time.Duration // of a bridge's queue; 0: more than four polls and a lease
	// Twice makes a client behind a sidecar send each DEL twice.
	Twice bool
	// Behind names the sidecar that a client talks to, of scheme Sidecar, or of Modern, which stands for a script of the service then: with Queue in stage modern, with OldStage in stage legacy, else in
	// stage bridge. Host is how far the sidecar's clock is ahead of the client's own; they are on one host, so it is 0 (else an ablation).
	Behind   string
	OldStage bool
	// Held makes the sidecar hold each SETNX back: it asks first, on its own connection, that the lock be kept for it. The SETNX
	// follows whatever comes of that.
	Held bool
	Host time.Duration
	// Share is for how long at a time a modern client that queues leaves the key to clients who only poll; 0 is never.
	Share time.Duration
	// Yield is for how long at a time a bridge client leaves the key to old clients; 0 is never.
	Yield time.Duration

	Mutation *Mutation // a planted bug; nil everywhere but in tests
}

// Mutation is a planted bug that sits between the machines and their driver.
type Mutation struct {
	// Reply alters what the machine hears of the command that it sent.
	Reply func(s *Session, sent *protocol.Command, heard protocol.Reply) protocol.Reply
	// Step alters what the machine wants next, given what it sent and heard last.
	Step func(s *Session, sent *protocol.Command, heard protocol.Reply, next protocol.Step) protocol.Step
}

// CompatMember is who as a service with package compat plays it: at stage bridge, or with modern at stage modern, beside old clients
// of these terms. It keeps who's name, keys and dialect.
func CompatMember(who Member, terms protocol.MemberTerms, modern bool) Member {
	terms.Dialect = who.Dialect
	terms = terms.WithDefaults()
	who.Scheme, who.Behind, who.OldStage = Bridge, "", false
	who.Lease, who.Renew = terms.TTL, terms.Renew()
	who.Grace, who.Settle, who.Claim, who.Yield = terms.Grace(), terms.Settle(), terms.Claim(), max(terms.Yield, 0)
	who.Poll, who.Queue, who.Tracks, who.QueueTTL = protocol.LongestSleep, true, true, terms.QueueTTL()
	who.Alone = modern
	return who
}

// BehindSidecar is who as it is, behind a sidecar at stage bridge of its own. The sidecar repairs the lock three times a lease.
func BehindSidecar(who Member, terms protocol.MemberTerms) Member {
	terms.Dialect = who.Dialect
	terms = terms.WithDefaults()
	who.Scheme, who.Behind, who.Queue, who.Renew = Sidecar, who.Name, false, who.Lease/3
	who.Grace, who.Settle, who.Yield = terms.Grace(), terms.Settle(), max(terms.Yield, 0)
	return who
}
