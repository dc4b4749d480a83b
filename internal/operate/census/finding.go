// Package census looks at the keys of a server and tells which of them are locks: their format and
// dialect, held or over.
//
// # What a format can and cannot tell
//
// A lock key carries no label. A number that reads as a moment near now may be the expiry of a lock or the
// time of somebody's last login, and a UUID with a TTL may be a lock's token or a session's. So every finding
// has a confidence: high where form, moment and name (or the operator's --match) agree, medium where the form
// is rare outside of locks, low where nothing but a common form speaks for it.
//
// # States
//
//   - held: takes the lock from everybody else. An expiry that has not passed, a token with a TTL; also a
//     token without TTL, since nobody else gets the lock until it is deleted. A time in whole milliseconds or
//     seconds counts as a token where the key's TTL ends within two minutes of it: its writers live by the TTL.
//   - expired: an expiry that has passed by the server's clock; the next legacy client to come takes it over.
//   - ghost: nobody holds it and nothing will remove it: an expiry that passed longer ago than GhostAfter, so
//     that nobody has wanted the lock since; a bridge value, a Redisson hash or a reentrant hash without the
//     TTL that its writers always set.
//   - unknown: the value does not tell.
//
// # Bridge and modern
//
// A modern lock's token is by default a number of the same kind as a bridge value; what tells them apart is the
// guard, a second key that only the bridge has. So beside such a number the guard is read too. Guards, fencing
// counters and queues are parts of their lock and not listed by themselves.
//
// The clock is the server's TIME. A holder's own clock may differ, and legacy clients judge by theirs.
package census

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Format is the form of a lock's value; the names are those of the command line.
type Format string

// The formats that have a name here. Those of the dialects stand in the table of dialects.
const (
	ExpiryS       Format = "expiry-s"
	ExpiryNS      Format = "expiry-ns"
	SecPIDThread  Format = "sec-pid-thread"
	BlindSet      Format = "blind-set" // a time on a key that, by its name, belongs to clients which overwrite a holder
	Bridge        Format = "bridge"
	Token         Format = "token"
	TokenNoTTL    Format = "token-no-ttl"
	Redisson      Format = "redisson"
	HashUID       Format = "hash-uid"
	UnknownFormat Format = "unknown"
)

// State is what a lock's value means for those who want the lock.
type State string

// The states; the package documentation defines them.
const (
	Held         State = "held"
	Expired      State = "expired"
	Ghost        State = "ghost"
	UnknownState State = "unknown"
)

// Confidence says how sure a finding is.
type Confidence uint8

// The confidences, in order. None is for keys that are no locks as far as anything can be seen.
const (
	None Confidence = iota
	Low
	Medium
	High
)

// String returns the name on the command line.
func (c Confidence) String() string { return [...]string{"none", "low", "medium", "high"}[c&3] }

// NoTTL is the TTL of a key that has none.
const NoTTL = -1

// Look is what was read of one key.
type Look struct {
	Key   []byte
	Type  string // as TYPE says; empty where it was not asked
	Value []byte // of a string, at most Peek bytes of it
	TTL   int64  // milliseconds, NoTTL for none

	Fields []Field // of a hash with at most MaxFields of them, else none

	Guard    []byte // the value of the key's guard, empty for none; read only beside a bridge value
	SawGuard bool   // the guard was looked for
	asked    bool   // it was tried, at least
}

// Field is a field of a hash.
type Field struct{ Name, Value []byte }

const (
	// Peek is how much of a value is read: no lock's value is as long.
	Peek = 128
	// MaxFields is how many fields a lock's hash has at most: Redisson's read-write lock has a mode and a holder.
	MaxFields = 2
)

// Finding is what a key turns out to be.
type Finding struct {
	Format     Format
	State      State
	Expires    protocol.Instant // on the server's clock, where HasExpiry
	HasExpiry  bool
	Confidence Confidence
	Beside     bool     // a key that accompanies a lock, and is none itself
	Dialects   []string // which dialects write this, the likelier first
	Perhaps    []string // of a token that is a time: dialects whose clients write the same, and may set a TTL too
	Note       string
}

// Judge holds what classification depends on beside the key.
type Judge struct {
	Now        protocol.Instant // the server's clock
	GhostAfter time.Duration    // how long past its expiry a value counts as a ghost
	Chosen     bool             // the operator says that these keys are locks
}
