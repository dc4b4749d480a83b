package observe

import (
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// blind tells a SET or SETEX of an expiry, without a condition, on a lock's key that its client had just read.
func (o *Observer) blind(c *client, l *traffic.Command, e traffic.Effect) bool {
	id := e.Key
	s := formOf(e.Value, l.At)
	a := c.attempts[id]
	if a == nil || l.InScript() || c.watched == id || e.Done != traffic.Yes || !a.read.recent(l.At) || o.locks[id] == nil && !o.named(id.Name) || !s.timed() || accompanies(id.Name) {
		return false
	}
	if a.failed || !a.read.there {
		return true
	}
	// It read a value: one that is over by its own clock is taken over, one that lasts is its own to renew.
	now := l.At
	if e.TTL > 0 {
		now = s.expires.Add(-extraOf(s.of) - e.TTL)
	}
	read := formOf(a.read.value, now)
	return !read.timed() || read.expires < now
}

// setBlindly is a client that takes a key by SET because of what it had read: nothing tells it that another
// has taken the key in between.
func (o *Observer) setBlindly(c *client, lk *lock, l *traffic.Command, e traffic.Effect, s form) {
	c.votes[vote{Legacy, blindSet}]++
	c.blindSets++
	c.sent[l.Words[0]]++
	u := o.works(c, lk)
	o.sample(c, lk, s, l.At, e.TTL)
	a := c.attempt(lk.id)
	c.pause.add(l.At.Sub(a.read.at))
	if !a.failed {
		c.tries++
		u.tries++
		u.begins(a, l.At)
	}
	u.lives(c, e.TTL)
	how := "set"
	if h := lk.holder; h != nil && !o.same(h.c, c) {
		how = "takeover"
		if a.read.known && e.OldKnown && (!a.read.there || a.read.value != e.Old) {
			how = blindSet
			o.hazard(event{At: l.At, Hazard: blindSet, Key: lk.id, By: c, Victim: h.c, Note: l.Words[0] + " over a holder that came after its GET"})
		}
	}
	a.failed = false
	o.acquire(c, lk, s, e.Value, l.At, how)
}
