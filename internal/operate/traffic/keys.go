package traffic

import (
	"maps"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Answer is what a command must have been answered, as far as that is known.
type Answer uint8

// The answers.
const (
	Unsettled Answer = iota // the key's state before it is not known
	No
	Yes
)

// Op is what a command means for a lock.
type Op uint8

// The ops.
const (
	OpSetNX   Op = iota // SETNX
	OpTake              // SET NX
	OpSet               // SET and its like, whatever was there
	OpGet               // GET
	OpGetSet            // GETSET, SET GET
	OpDel               // DEL, UNLINK, GETDEL
	OpExpire            // a new TTL
	OpHashAdd           // HSET, HINCRBY ... of one field
)

// Effect is what one command did to one key.
type Effect struct {
	Op       Op
	Key      Key
	Value    string // written: a string, or a hash's field
	Old      string // the string before; "" with There unset for none
	OldKnown bool   // Old and There are known
	There    bool   // the key existed
	Done     Answer // the command changed the key
	TTL      time.Duration
}

type kind uint8

const (
	unknown kind = iota // nothing is known
	absent              // no such key
	there               // it exists; what it holds is not known
	text                // a string
	hash                // a hash
)

// entry is the state of one key.
type entry struct {
	kind    kind
	value   string
	expires protocol.Instant // 0 for no TTL
}

// Key is a key of a database.
type Key struct {
	DB   int
	Name string
}

// Keys is a copy of the keys that matter, moved on by replaying commands. It is not safe for concurrent use.
type Keys struct {
	Limit int // of keys kept; those beyond stay unknown

	// complete tells that every key of database db is here: what is missing does not exist. Elsewhere what
	// is missing is unknown, and only keys that lock commands touch are kept.
	complete bool
	db       int
	scanning bool // a SCAN is under way
	m        map[Key]entry
	effects  []Effect
}

// NewKeys returns a copy that knows nothing.
func NewKeys(limit int) *Keys { return &Keys{Limit: limit, m: map[Key]entry{}} }

// Scanning says that the reads of a whole SCAN of a database follow: what writes from here on is kept.
func (k *Keys) Scanning(db int) { k.scanning, k.db = true, db }

// Complete says that the SCAN is over: a key of its database that is missing here does not exist.
func (k *Keys) Complete() {
	k.complete, k.scanning = k.scanning, false
	maps.DeleteFunc(k.m, func(id Key, e entry) bool { return e.kind == absent && k.whole(id) })
}

// IsComplete tells that the state of every key of the database is known.
func (k *Keys) IsComplete() bool { return k.complete }

// whole tells that a key which is missing here does not exist.
func (k *Keys) whole(id Key) bool { return k.complete && id.DB == k.db }

// Learn takes in a string that a read of ours found at this point of the stream. Its TTL follows by LearnTTL.
func (k *Keys) Learn(id Key, value string) {
	k.put(id, entry{kind: text, value: value, expires: k.m[id].expires}, true)
}

// LearnAbsent takes in that there is no such key.
func (k *Keys) LearnAbsent(id Key) { k.put(id, entry{kind: absent}, true) }

// LearnThere takes in that a key of another type exists. One that was a hash is taken for it still.
func (k *Keys) LearnThere(id Key) {
	e := entry{kind: there}
	if k.m[id].kind == hash {
		e.kind = hash
	}
	k.put(id, e, true)
}

// LearnTTL takes in the reply of PTTL.
func (k *Keys) LearnTTL(id Key, now protocol.Instant, ms int64) {
	e, ok := k.m[id]
	switch {
	case !ok:
		return
	case ms == -2:
		e = entry{kind: absent}
	case ms == -1:
		e.expires = 0
	default:
		e.expires = now.Add(time.Duration(ms) * time.Millisecond)
	}
	k.put(id, e, true)
}

// Value returns the string on a key, and until when it has a TTL (0 for none).
func (k *Keys) Value(id Key, now protocol.Instant) (value string, expires protocol.Instant, ok bool) {
	e := k.look(id, now)
	return e.value, e.expires, e.kind == text
}

// look returns a key's state at an instant: the TTL is taken into account as the server does.
func (k *Keys) look(id Key, now protocol.Instant) entry {
	e, ok := k.m[id]
	if !ok {
		if k.whole(id) {
			return entry{kind: absent}
		}
		return entry{}
	}
	if e.expires == 0 {
		return e
	}
	// A line's stamp is taken after its command, the TTL counts from before it, and a busy machine may stop
	// the server in between: around the end of a TTL the stamps do not tell whether the key was there.
	switch past := millis(now) - millis(e.expires); {
	case past > vague:
		e = entry{kind: absent}
		k.put(id, e, true)
	case past >= -vague:
		return entry{}
	}
	return e
}

// vague is for how many milliseconds before and after the end of a TTL a key's state is taken for unknown.
const vague = 5

func millis(t protocol.Instant) int64 { return int64(t) / int64(time.Millisecond) }

// put keeps a state. Keys that no lock command has touched are kept only while the copy is complete.
func (k *Keys) put(id Key, e entry, lock bool) {
	_, tracked := k.m[id]
	switch {
	case e.kind == absent && k.whole(id):
		delete(k.m, id)
		return
	case tracked:
	case !lock && !k.whole(id) && !(k.scanning && id.DB == k.db):
		return
	case len(k.m) >= k.Limit:
		k.complete, k.scanning = false, false // from here on what is missing is unknown
		return
	}
	k.m[id] = e
}

// forget says that a command may have done anything to a key.
func (k *Keys) forget(id Key) {
	if _, tracked := k.m[id]; tracked || k.whole(id) || k.scanning {
		k.put(id, entry{kind: unknown}, false)
	}
}

// forgetAll says that a command may have done anything to any key.
func (k *Keys) forgetAll() {
	k.complete, k.scanning = false, false
	clear(k.m)
}

// flush empties a database, or all for -1.
func (k *Keys) flush(db int) {
	for id := range k.m {
		if db < 0 || id.DB == db {
			k.put(id, entry{kind: absent}, true)
		}
	}
}
