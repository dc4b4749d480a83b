package protocol

import (
	"cmp"
	"time"
)

// MemberTerms are the figures by which a member of package compat works: those that somebody gives, and those that follow from them.
// Package compat takes its own from here, and so do the members that the simulator, forecast and the explorer play.
type MemberTerms struct {
	Dialect      *Dialect      // of the old clients
	TTL          time.Duration // of a lock; 0: 30 s
	Shortest     time.Duration // lease of an old client; 0: 10 s
	ClockLag     time.Duration // of an old client's clock; 0: 1 s
	CommandDelay time.Duration // of an old client's command; 0: 250 ms
	Yield        time.Duration // for how long a contended key is left free; 0: the old clients' poll and a fifth; negative: never
}

// What a member takes where nobody says otherwise.
const (
	DefaultTTL          = 30 * time.Second
	DefaultShortest     = 10 * time.Second
	DefaultClockLag     = time.Second
	DefaultCommandDelay = 250 * time.Millisecond
)

const (
	// ShortestPeriod is the shortest time between two of anything that a member does again and again.
	ShortestPeriod = time.Millisecond
	// LongestYield is less than half of the time for which the server remembers what old clients need.
	LongestYield = 20 * time.Second
	// LongestSleep is the longest time between two looks of a waiter at a key: the last resort when a message got lost.
	LongestSleep = 5 * time.Second
	// longestClaim: what the first renewal of a lock that was handed over must notice may have happened since the grant.
	longestClaim = 3 * time.Second
)

// WithDefaults fills in the zero values.
func (t MemberTerms) WithDefaults() MemberTerms {
	t.TTL, t.Shortest = cmp.Or(t.TTL, DefaultTTL), cmp.Or(t.Shortest, DefaultShortest)
	t.ClockLag, t.CommandDelay = cmp.Or(t.ClockLag, DefaultClockLag), cmp.Or(t.CommandDelay, DefaultCommandDelay)
	t.Yield = cmp.Or(t.Yield, min(t.Dialect.Poll+t.Dialect.Poll/5, LongestYield))
	return t
}

// Grace is for how long after its expiry an old client's value is left alone.
func (t MemberTerms) Grace() time.Duration { return t.ClockLag + t.CommandDelay }

// Settle is for how long a takeover is watched before it counts.
func (t MemberTerms) Settle() time.Duration { return t.CommandDelay }

// Renew is how often a lock that is held is renewed.
func (t MemberTerms) Renew() time.Duration {
	return max(t.Dialect.RenewEvery(t.TTL, t.Shortest, t.CommandDelay), ShortestPeriod)
}

// Claim is for how long a lock that was handed over may be held by a waiter that has not spoken yet.
func (t MemberTerms) Claim() time.Duration {
	return max(min(longestClaim, t.TTL/3, (t.Shortest-t.CommandDelay)/2), ShortestPeriod).Truncate(time.Millisecond)
}

// QueueTTL is for how long the queue beside a key outlives the last look of a waiter.
func (t MemberTerms) QueueTTL() time.Duration { return 90*time.Second + t.TTL }
