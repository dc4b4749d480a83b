// Package observe tells from a server's MONITOR stream who locks what: in which dialect, with which lease,
// poll interval and clock, and what went wrong while it looked.
//
// # How it knows
//
// MONITOR shows every command in the order in which the server ran it, but no reply. Since the order is
// total, the replies follow: Keys replays each command on a copy of the keys and says what the server must
// have answered. The keys' state at the start comes from reads of our own, which pass through the same
// stream and so have an exact place in that order. Where a key's state is not known (a recorded file, a
// key never seen before), an outcome is unknown until a later command of the same client settles it; it is
// never guessed.
//
// # What follows from a legacy value
//
// A legacy value is the client's own now + lease + extra, and MONITOR stamps the command with the server's
// clock. So value - extra - stamp = offset + lease - delay - rounding, with delay >= 0: the largest of many
// samples is the closest to offset + lease. What a waiter reads, and whether it takes over, bounds its lease
// whatever the clocks are (waits.go). Clocks tells the two apart; see there for what it assumes. Where the
// command sets a TTL too, the TTL is the lease, and what is left is the offset. In dialects of whole seconds
// the spread of the samples bounds what rounding has taken; whether a language cuts or rounds is told by the fleet,
// and the error bar is never below half a second.
//
// # What a client is
//
// What its commands make it look like, unless what it does says better: an EXPIRE after each SETNX makes a
// lock that lives by its TTL (setnx-expire); a SET over a key that it had just read makes a client that
// overwrites others (blind-set); a time that SET NX writes with a TTL is a token until its client reads one.
//
// # What it cannot know
//
// A connection is not a thread: a pool that sends SETNX over one connection and DEL over another shows
// two clients of one host. Group by host or name where that is so. A crashed holder looks like one that
// works for ever; an overlap is therefore reported only when the earlier holder acts as a holder again.
package observe
