package protocol

import (
	"strconv"
	"strings"
	"time"
)

// Entry is one waiter in a key's queue: how it wants the lock. The queue is a sorted set beside the key; the score of an
// entry is its ticket, drawn from the server's clock and never twice for one key.
type Entry struct {
	Claim   time.Duration // for how long the lock may be its own before it has spoken
	Until   Instant       // on the server's clock: it is given no lock later than this; 0: no bound
	Guarded bool          // a bridge client: it gets the guard with the key
	Channel string        // where it hears of a grant, or Polls
	Token   string        // what the key, and the guard, will hold. It stands last, since it may hold a blank
}

// lasts is for how long a claim is certainly on the server: it counts in whole milliseconds.
func lasts(claim time.Duration) time.Duration { return claim.Truncate(time.Millisecond) }

// String returns the entry as it stands in the queue: "<claim ms> <until ms> <1 if guarded> <channel> <token>".
func (e Entry) String() string {
	b := make([]byte, 0, 48+len(e.Channel)+len(e.Token))
	b = append(strconv.AppendInt(b, e.Claim.Milliseconds(), 10), ' ')
	b = append(strconv.AppendInt(b, int64(e.Until)/int64(time.Millisecond), 10), ' ')
	if e.Guarded {
		b = append(b, "1 "...)
	} else {
		b = append(b, "0 "...)
	}
	b = append(append(b, e.Channel...), ' ')
	return string(append(b, e.Token...))
}

// ParseEntry reads one.
func ParseEntry(s string) (e Entry, ok bool) {
	parts := strings.SplitN(s, " ", 5)
	if len(parts) < 5 {
		return e, false
	}
	claim, err1 := strconv.ParseInt(parts[0], 10, 64)
	until, err2 := strconv.ParseInt(parts[1], 10, 64)
	e = Entry{time.Duration(claim) * time.Millisecond, Instant(until * int64(time.Millisecond)), parts[2] == "1", parts[3], parts[4]}
	return e, err1 == nil && err2 == nil
}

// TokenEntry returns the entry of a token client's command that has a Channel.
func (c *Command) TokenEntry() string {
	return Entry{Claim: c.Claim, Channel: c.Channel, Token: c.Value}.String()
}

// ReadMessage reads what a script publishes to waiters: "<ticket> <fence> <token>" to the one who gets the key, and "head <token>" to the
// one whose turn it may be to take it.
func ReadMessage(text string) (token string, said Reply, ok bool) {
	first, rest, ok := strings.Cut(text, " ")
	if first == "head" {
		return rest, Reply{Kind: Woke}, ok
	}
	second, token, ok := strings.Cut(rest, " ")
	ticket, err1 := strconv.ParseInt(first, 10, 64)
	fence, err2 := strconv.ParseInt(second, 10, 64)
	return token, Reply{Kind: Granted, Int: fence, Int2: ticket}, ok && err1 == nil && err2 == nil
}
