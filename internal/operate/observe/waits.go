package observe

import (
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// What a waiter does with the expiry that it reads bounds its clock:
//
//	it does not take over   its clock has not reached the expiry
//	it takes over           its clock has reached it
//
// So its lease need not be known, and may be another each time: what it writes, less its clock, is the lease.

// nearBounds are those that a poll or two have brought together. So far two bounds may also miss each other: a clock drifts.
const nearBounds = 50 * time.Millisecond

// longestPause is how long after the begin of a window a GETSET may still belong to a GET before it.
const longestPause = 10 * time.Second

// bounds are of a duration.
type bounds struct{ low, high time.Duration }

const forever = 1 << 61

// unbounded are no bounds.
var unbounded = bounds{-forever, forever}

// and is what holds by both.
func (b bounds) and(o bounds) bounds { return bounds{max(b.low, o.low), min(b.high, o.high)} }

// reach widens what lies above 0; at first there is nothing.
func (b *bounds) reach(d time.Duration) {
	if b.low == 0 || d < b.low {
		b.low = d
	}
	b.high = max(b.high, d)
}

func (b bounds) has(d time.Duration) bool { return d >= b.low && d <= b.high }

// narrow tells that both are so near to each other that the lease is known.
func (b bounds) narrow() bool {
	return b.high < forever && b.high-b.low <= max(nearBounds, b.high/50)
}

// middle lies halfway between two bounds; of one bound it is that.
func (b bounds) middle() time.Duration {
	switch {
	case b.high == forever:
		return max(b.low, 0)
	case b.low <= 0:
		return b.high
	}
	return ((b.low + b.high) / 2).Round(time.Millisecond)
}

// waited takes in that a waiter has read an expiry and not taken it over: its next command on the key was another try.
func (o *Observer) waited(c *client, lk *lock, a *attempt) {
	s := c.leads(lk.family)
	own, read := formOf(a.wrote, a.read.at), formOf(a.read.value, a.read.at)
	if s == nil || !a.noTTL || !alikeTimes(own, read) {
		return
	}
	at := a.read.at // it reads its clock after the GET
	if own.of.StaleClock {
		if at = a.before; at == 0 { // or before the try, and after its last command
			return
		}
	}
	s.clock.high = min(s.clock.high, read.expires.Sub(at)+slackOf(own, read))
}

// tookOver takes in that a waiter has read an expiry and takes it over. It must be called before the attempt is changed.
func (o *Observer) tookOver(c *client, lk *lock, a *attempt, l *traffic.Command, text string) {
	// Its GET came over another connection, or threads share this one: then who waited is not known. A GET may have come before the
	// window. A text that is older than that of the last try is another thread's.
	own := formOf(text, l.At)
	alone := a.looked && own.expires >= formOf(a.wrote, l.At).expires
	if !alone && !a.pending && (a.last != 0 || l.At.Sub(o.first) > longestPause) {
		if o.pooled == nil || len(o.pooled) >= maxClients {
			o.pooled = map[string]bool{}
		}
		o.pooled[hostOf(c.addr)] = true
	}
	s := c.leads(lk.family)
	if !alone || !a.read.known || !a.read.there || !a.noTTL || s == nil || s.n < enough {
		return
	}
	read := formOf(a.read.value, a.read.at)
	if !alikeTimes(own, read) || own.of.MineExpires && ownerIn(text) == ownerIn(a.read.value) { // its own lock is over for it at any time
		return
	}
	s.clock.low = max(s.clock.low, read.expires.Sub(l.At)-slackOf(own, read))
}

// alikeTimes tells that a client whose own text is the first reads the second as it is meant.
func alikeTimes(own, read form) bool {
	return own.timed() && read.timed() && own.of.Unit == read.of.Unit
}

func slackOf(own, read form) time.Duration {
	return 2*max(own.quantum, read.quantum) + time.Millisecond
}

// ownerIn is the owner in a value of a dialect whose values have one.
func ownerIn(value string) string {
	owner, _, _ := strings.Cut(value, ":")
	return owner
}

// leaseWithin bounds a family's lease by what all its waiters did. Clients of one lease cannot contradict each other: where they do,
// the leases differ, or the commands are not what they seem, and there are no bounds.
func leaseWithin(fleet []*host) bounds {
	w := unbounded
	for _, h := range fleet {
		w = w.and(h.within)
	}
	switch {
	case w.low <= w.high:
		return w
	case w.low-w.high <= nearBounds:
		return bounds{w.high, w.low}
	}
	return unbounded
}
