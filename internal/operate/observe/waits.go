package observe

import (
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// What waiters do bounds their lease. A client writes clock + lease when it tries, and then reads another's expiry:
//
//	it does not take over   its clock has not reached the expiry: the lease is longer than what it wrote less what it read
//	it takes over           its clock has reached it: the lease is no longer than that, and the time until the GETSET
//
// Both texts are on the wire. So neither clock has to be known, and drifts, steps and delays of others change nothing.

// within bounds a lease; 0 is no bound.
type within struct{ low, high time.Duration }

// and is what holds by both.
func (w within) and(o within) within {
	w.low = max(w.low, o.low)
	if w.high == 0 || o.high > 0 && o.high < w.high {
		w.high = o.high
	}
	return w
}

// has tells that a lease lies within.
func (w within) has(lease time.Duration) bool {
	return lease >= w.low && (w.high == 0 || lease <= w.high)
}

// narrow tells that both bounds are known, and so near to each other that the lease is known.
func (w within) narrow() bool {
	return w.high > 0 && w.high-w.low <= max(nearBounds, w.high/50)
}

// middle lies halfway between two bounds; of one bound it is that.
func (w within) middle() time.Duration {
	if w.high == 0 {
		return w.low
	}
	return ((w.low + w.high) / 2).Round(time.Millisecond)
}

// nearBounds are those that a poll or two have brought together. So far two bounds may also miss each other: a client may read
// its clock some time before it sends what it writes.
const nearBounds = 50 * time.Millisecond

// longestPause is how long after the begin of a window a GETSET may still belong to a GET before it.
const longestPause = 10 * time.Second

// waited takes in that a waiter has read an expiry and not taken it over: its next command on the key was another try.
func (o *Observer) waited(c *client, lk *lock, a *attempt) {
	if by, slack, ok := a.beyond(a.wrote); ok && a.fresh && a.noTTL {
		if s := o.sums[pair{c, lk.family, false}]; s != nil {
			s.lease.low = max(s.lease.low, by-slack)
		}
	}
}

// tookOver takes in that a waiter has read an expiry and takes it over. It must be called before the attempt is changed.
func (o *Observer) tookOver(c *client, lk *lock, a *attempt, l *traffic.Command, text string) {
	// Its GET came over another connection, or threads share this one: then who waited is not known. A GET may have come before the
	// window. A text that is older than that of the last try is another thread's.
	alone := a.looked && shapeOf(text, l.At).expires >= shapeOf(a.wrote, l.At).expires
	if !alone && !a.pending && (a.last != 0 || l.At.Sub(o.first) > longestPause) {
		if o.pooled == nil || len(o.pooled) >= o.opts.MaxClients {
			o.pooled = map[string]bool{}
		}
		o.pooled[hostOf(c.addr)] = true
	}
	switch {
	case !alone:
		return
	case !a.readKnown || !a.readThere || !a.noTTL:
		return
	}
	s := o.sums[pair{c, lk.family, false}]
	by, slack, ok := a.beyond(text)
	if s == nil || s.n < enough || !ok {
		return
	}
	if s.of != nil && s.of.MineExpires && ownerIn(text) == ownerIn(a.read) {
		return // its own lock is over for it at any time
	}
	// From the instant in which the text was made to the GETSET. One of the try is older than the try by the try's delay.
	elapsed := l.At.Sub(a.last)
	if text == a.wrote {
		delay := max(0, s.top[0]-shapeOf(text, l.At).expires.Sub(a.wroteAt)) + min(max(s.trip, time.Millisecond), coarse)
		elapsed = l.At.Sub(a.wroteAt) + delay
	}
	if high := by + elapsed + slack; high > 0 && (s.lease.high == 0 || high < s.lease.high) {
		s.lease.high = high
	}
}

// ownerIn is the owner in a value of a dialect whose values have one.
func ownerIn(value string) string {
	owner, _, _ := strings.Cut(value, ":")
	return owner
}

// beyond is by how much later a client's own text expires than the one that it has read, both as it counts.
func (a *attempt) beyond(text string) (by, slack time.Duration, ok bool) {
	own, read := shapeOf(text, a.lookedAt), shapeOf(a.read, a.lookedAt)
	if !own.timed() || !read.timed() || own.of.Unit != read.of.Unit {
		return 0, 0, false // it may read the other's number as another time
	}
	return own.expires.Sub(read.expires), 2*max(own.quantum, read.quantum) + time.Millisecond, true
}

// looks notes a GET after a try that failed. What follows tells whether it found the value over. A transaction that fails looks like
// no takeover.
func (a *attempt) looks(c *client, lk *lock, at protocol.Instant) {
	a.looked, a.lookedAt = true, at
	a.waiting = a.readKnown && a.readThere && c.watched != lk.id
}

// leaseWithin bounds a family's lease by what all its waiters did. Clients of one lease cannot contradict each other: where they do,
// the leases differ, or the commands are not what they seem, and there are no bounds.
func leaseWithin(fleet []*party) (w within) {
	for _, p := range fleet {
		if o := p.client.o; o == nil || !o.pooled[hostOf(p.client.addr)] {
			w = w.and(p.lease)
		}
	}
	switch {
	case w.high == 0 || w.low <= w.high:
		return w
	case w.low-w.high <= nearBounds:
		return within{w.high, w.low}
	}
	return within{}
}
