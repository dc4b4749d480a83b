// Package model is what the simulator and the explorer have in common: the server and its clients, as plain values.
//
// # The server
//
// A Store is as much of the Redis server as the lock protocols use. It executes the commands and the server scripts of package protocol on a handful of keys, with the
// server's own clock given from outside. It agrees with a real redis-server and with miniredis on
// random command sequences (differential_test.go); adding an operation is one function in one table
// (commands.go), and the differential test then covers it.
//
// Deliberately absent: memory limits and eviction, other data types than strings and a bare hash,
// other databases, lazy expiry's effect on notifications.
//
// # Its clients
//
// A Session is a client of a lock. It takes turns, and in each turn runs the real protocol machines to acquire, renew and release
// one key. It has no clock, no connection and no randomness. Its driver tells it the client's clock and the last reply, and carries
// out its steps: in virtual time (package sim), or one interleaving after another (package explore).
package model

import (
	"encoding/binary"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Store is the server's memory. Its zero value is an empty server; Fork copies it.
type Store struct {
	entries []Entry
	watches []watch
	// Overrides replaces operations, for planted bugs: nil everywhere else.
	Overrides map[protocol.Op]Operation
	// Last says what the last command changed, for the referee.
	Last Effect
	// Listening tells how many connections listen on a channel; nil means none ever.
	Listening func(channel string) int
	// SetNX counts how often the server has run SETNX, as INFO tells it; it does not with NoStats.
	SetNX   int64
	NoStats bool
	// Published holds the messages that the last command sent.
	Published []Message

	call call // the command in execution, here so that it need not be allocated
}

// Message is what PUBLISH sent.
type Message struct{ Channel, Text string }

// Entry is one key.
type Entry struct {
	Key   string
	Value string
	// ExpireMS is the server's clock, in milliseconds, after which the key is gone; 0 is never.
	ExpireMS int64
	// Writer is whatever the caller passed with the command that wrote the value.
	Writer uint64
	Kind   Kind
	// Fields are a hash's fields and counts, or a sorted set's members and scores in order. The slice is
	// never changed in place: copies of a store share it.
	Fields []Field
}

// Kind is a key's type.
type Kind uint8

const (
	String Kind = iota
	Hash
	SortedSet
)

// Field is a field of a hash, or a member of a sorted set.
type Field struct {
	Name string
	N    int64
}

// Effect is what one command changed on the key that it names.
type Effect struct {
	Wrote   bool // the value was written, perhaps with the same text
	Removed bool // the key was deleted
	// Had tells that the key existed before; Before is what it held then.
	Had    bool
	Before Entry
}

type watch struct {
	conn  uint32
	key   string
	lived bool // the key existed when it was watched
	dirty bool
}

// call is one command in execution.
type call struct {
	*Store
	command *protocol.Command
	ms      int64 // the server's clock in milliseconds
	now     protocol.Instant
	conn    uint32
	writer  uint64
}

// Exec runs one command at the server's own time now, for the connection conn. Whatever it writes
// is marked with writer.
func (s *Store) Exec(now protocol.Instant, conn uint32, writer uint64, command *protocol.Command) protocol.Reply {
	s.Last, s.Published = Effect{}, s.Published[:0]
	s.call = call{Store: s, command: command, ms: int64(now) / 1e6, now: now, conn: conn, writer: writer}
	c := &s.call
	if operation := s.Overrides[command.Op]; operation != nil {
		return operation(c)
	}
	if int(command.Op) >= len(operations) || operations[command.Op].run == nil {
		return fault("ERR unknown command")
	}
	if i := c.find(command.Key); i >= 0 {
		s.Last.Had, s.Last.Before = true, s.entries[i]
	}
	return operations[command.Op].run(c)
}

// Look returns what a key holds at the server's time now.
func (s *Store) Look(now protocol.Instant, key string) (Entry, bool) {
	if i := s.index(key); i >= 0 && !s.entries[i].expired(int64(now)/1e6) {
		return s.entries[i], true
	}
	return Entry{}, false
}

// index is where a key is, expired or not, or -1.
func (s *Store) index(key string) int {
	for i := range s.entries {
		if s.entries[i].Key == key {
			return i
		}
	}
	return -1
}

// Put sets a key from outside, as a test or a scenario's opening position does.
func (s *Store) Put(e Entry) {
	if i := s.index(e.Key); i >= 0 {
		s.entries[i] = e
	} else {
		s.entries = append(s.entries, e)
	}
}

// Endless returns a key beside the lock's that has no TTL; empty: there is none. A companion that nobody removes must end by itself.
func (s *Store) Endless(lock string) string {
	for i := range s.entries {
		if e := &s.entries[i]; e.ExpireMS == 0 && e.Key != lock {
			return e.Key
		}
	}
	return ""
}

// Expired tells whether there is a key whose time is over and that nobody has asked for since.
func (s *Store) Expired(now protocol.Instant) bool {
	return slices.ContainsFunc(s.entries, func(e Entry) bool { return e.expired(int64(now) / 1e6) })
}

// Expire removes the keys whose time is over, as Redis does by and by.
func (s *Store) Expire(now protocol.Instant) {
	for i := len(s.entries) - 1; i >= 0; i-- {
		if s.entries[i].expired(int64(now) / 1e6) {
			s.drop(i)
		}
	}
}

// Reset empties the server, keeping its memory.
func (s *Store) Reset() {
	s.entries, s.watches, s.Last, s.SetNX = s.entries[:0], s.watches[:0], Effect{}, 0
}

// Entries returns the keys, expired ones included; the slice belongs to the store.
func (s *Store) Entries() []Entry { return s.entries }

// Restore replaces all keys, as a failover to another copy of them does. Connections are new then, so
// nothing is watched any more.
func (s *Store) Restore(entries []Entry) {
	s.entries, s.watches = append(s.entries[:0], entries...), s.watches[:0]
}

// Fork copies the store, reusing into's memory.
func (s *Store) Fork(into *Store) {
	into.entries = append(into.entries[:0], s.entries...)
	into.watches = append(into.watches[:0], s.watches...)
	into.Overrides, into.Listening, into.Last = s.Overrides, s.Listening, Effect{}
	into.SetNX, into.NoStats = s.SetNX, s.NoStats
}

// AppendState writes what decides the server's future behaviour at time now; keys in their order of
// creation, which never changes a reply, may make two equal states look different.
func (s *Store) AppendState(b []byte, now protocol.Instant) []byte {
	ms := int64(now) / 1e6
	for i := range s.entries {
		e := &s.entries[i]
		if e.expired(ms) {
			continue
		}
		b = append(b, byte(len(e.Key)))
		b = append(b, e.Key...)
		b = append(b, byte(len(e.Value)))
		b = append(b, e.Value...)
		b = binary.AppendVarint(b, e.ExpireMS)
		b = binary.AppendUvarint(b, e.Writer)
		b = append(b, byte(e.Kind), byte(len(e.Fields)))
		for _, f := range e.Fields {
			b = append(append(b, f.Name...), 0)
			b = binary.AppendVarint(b, f.N)
		}
	}
	if !s.NoStats {
		b = binary.AppendVarint(append(b, 'n'), s.SetNX)
	}
	for i := range s.watches {
		w := &s.watches[i]
		b = append(b, 'w', byte(w.conn), bit(w.lived)|bit(w.dirty)<<1)
	}
	return b
}

func (e *Entry) expired(ms int64) bool { return e.ExpireMS != 0 && ms > e.ExpireMS }

func (s *Store) drop(i int) {
	s.touch(s.entries[i].Key)
	s.entries = append(s.entries[:i], s.entries[i+1:]...)
}

// touch spoils the transactions that watch a key.
func (s *Store) touch(key string) {
	for i := range s.watches {
		if s.watches[i].key == key {
			s.watches[i].dirty = true
		}
	}
}

// find returns the index of a living key, or -1. A key that has expired is removed, as Redis does on
// access.
func (c *call) find(key string) int {
	i := c.index(key)
	if i >= 0 && c.entries[i].expired(c.ms) {
		c.drop(i)
		return -1
	}
	return i
}

// write sets a key's value; ttlMS 0 leaves it without a TTL, keepTTL leaves the TTL that it has.
func (c *call) write(key, value string, ttlMS int64) {
	entry := Entry{Key: key, Value: value, Writer: c.writer}
	switch i := c.find(key); {
	case ttlMS == keepTTL && i >= 0:
		entry.ExpireMS = c.entries[i].ExpireMS
	case ttlMS > 0:
		entry.ExpireMS = c.ms + ttlMS
	}
	c.noteWrite(key)
	c.touch(key)
	c.Put(entry)
}

const keepTTL = -1

// remove deletes a living key, and tells whether there was one.
func (c *call) remove(key string) bool {
	i := c.find(key)
	if i < 0 {
		return false
	}
	if key == c.command.Key {
		c.Last.Removed = true
	}
	c.drop(i)
	return true
}

func (c *call) noteWrite(key string) {
	if key == c.command.Key {
		c.Last.Wrote = true
	}
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
