package observe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// takeover is GETSET: by the holder it renews, by a waiter it wins or clobbers.
func (o *Observer) takeover(c *client, lk *lock, l *traffic.Command, e traffic.Effect) {
	s := formOf(e.Value, l.At)
	if s.kind == Legacy {
		c.votes[vote{s.kind, s.dialect}]++
	} else if s.kind == Unknown {
		c.votes[vote{Unknown, "getset"}]++
		return // a counter that is read and reset
	}
	o.works(c, lk).lives(c, e.TTL)
	at := c.attempt(lk.id)
	if h := lk.holder; h == nil || !o.same(h.c, c) || at.failed {
		o.tookOver(c, lk, at, l, e.Value)
	}
	at.waiting = false
	if at.looked {
		o.trip(c, lk, l.At.Sub(at.last))
		c.pause.add(l.At.Sub(at.read.at))
	}
	if at.pending {
		at.pending, at.failed = false, true
	}
	h := lk.holder
	recomputed := at.wrote != e.Value
	if s.of == protocol.RedisPyFloat && at.wrote != "" && at.failed && recomputed { // redis-py sends the same text twice
		c.votes[vote{Legacy, protocol.RedisObjects.Name}] += 2
		c.textAnew++
	} else if s.of == protocol.RedisPyFloat && at.failed && !recomputed {
		c.textTwice++
	}
	if s.timed() && (e.TTL > 0 || recomputed && s.of.Writes == protocol.EachCommand) {
		o.sample(c, lk, s, l.At, e.TTL) // it read its clock for this command
	}
	at.wrote, at.noTTL = strings.Clone(e.Value), e.TTL == 0
	if h != nil && o.same(h.c, c) && !at.failed {
		o.actsAs(lk, h, l.At)
		h.at = l.At
		h.value, h.form = at.wrote, s
		return
	}
	switch o.wins(c, at, lk, s, l, e) {
	case traffic.Yes:
		if at.read.known && e.OldKnown && e.Old != at.read.value && h != nil && !o.same(h.c, c) {
			o.hazard(event{At: l.At, Hazard: "double-win", Key: lk.id, By: c, Victim: h.c, Note: "wins over a value that came after the one it had read"})
		}
		at.failed = false
		o.acquire(c, lk, s, e.Value, l.At, "takeover")
	case traffic.No:
		at.failed = true
		clobber := event{At: l.At, Hazard: "clobber", Key: lk.id, By: c, Victim: ownerOf(lk)}
		if old := formOf(e.Old, l.At); old.expires != 0 && s.expires != 0 {
			clobber.Note = "moves the winner's expiry by " + s.expires.Sub(old.expires).Round(time.Millisecond).String()
		}
		o.hazard(clobber)
	default:
		at.failed = true
	}
}

// wins says whether a GETSET wins, by the rule of its dialect.
func (o *Observer) wins(c *client, at *attempt, lk *lock, s form, l *traffic.Command, e traffic.Effect) traffic.Answer {
	rule := protocol.OldIsRead
	if s.of != nil {
		rule = s.of.Win
	}
	switch {
	case !e.OldKnown:
		return traffic.Unsettled
	case !e.There && (rule == protocol.OldIsExpired || rule == protocol.OldIsRead && at.read.known && !at.read.there):
		return traffic.Yes // an absent value is over, and equals one that was absent
	case !e.There:
		return traffic.No
	case at.read.known && at.read.there && e.Old == at.read.value:
		return traffic.Yes
	case rule != protocol.OldIsExpired && !at.read.known && !at.looked:
		return traffic.Unsettled // its GET was not seen: another connection, or before the window
	case rule != protocol.OldIsExpired:
		return traffic.No
	}
	// The old value is expired by the writer's own clock, which reads its own expiry less the lease.
	old := formOf(e.Old, s.expires)
	if !old.timed() || !s.timed() {
		return traffic.Unsettled
	}
	lease, known := o.lease(c, lk.family)
	now := s.expires.Add(-extraOf(s.of) - lease.likely)
	if lease.varies || c.member { // the clock of a member is the server's
		now = l.At.Add(c.clock.offset)
	}
	switch {
	case !known && !c.member:
		return traffic.Unsettled
	case old.expires < now:
		return traffic.Yes
	}
	return traffic.No
}

// acquire makes a client the holder of a key.
func (o *Observer) acquire(c *client, lk *lock, s form, value string, at protocol.Instant, how string) {
	h := &hold{c: c, ttl: c.ttl, at: at, began: at, value: strings.Clone(value), form: s, how: how}
	c.acquired++
	try := c.attempt(lk.id)
	u := o.works(c, lk)
	u.acquired, u.idle = u.acquired+1, 0
	if try.first != 0 && at.Sub(try.first) < 10*time.Minute {
		u.wait.add(at.Sub(try.first))
	}
	lk.user(c).acquired++
	try.failed, try.pending, try.last = false, false, 0
	if before := lk.holder; before != nil {
		taken := !o.same(before.c, c) || how == "takeover"
		if taken {
			o.superseded(lk, before, h)
			o.loses(lk, before, how, at)
		}
		if !taken || before.c == c { // it tried for its own lock: it no longer believed to hold it
			o.gaveUp(lk, before, at)
		}
	}
	for _, p := range lk.past {
		if len(p.successors) < maxPast && !o.same(p.c, c) {
			p.successors = append(p.successors, h)
		}
	}
	lk.holder = h
	o.acquired[cmp.Or(c.leading().kind, Unknown)]++
}

// superseded judges a takeover by the lease of the holder before: too early, or late.
func (o *Observer) superseded(lk *lock, before, after *hold) {
	if after.how != "takeover" {
		return
	}
	first := after.c.attempt(lk.id).first
	o.judge(before, lk, func(lease time.Duration) {
		over := after.at.Sub(before.at.Add(lease)) // how long the lease had been over
		slack := 50 * time.Millisecond
		if q := before.form.quantum; q > time.Millisecond {
			slack += q
		}
		poll := max(time.Duration(spread(&after.c.poll).At(0.5)*float64(time.Millisecond)), 100*time.Millisecond)
		switch {
		case over < -slack:
			o.hazard(event{At: after.at, Hazard: "early-takeover", Key: lk.id, By: after.c, Victim: before.c,
				Note: fmt.Sprintf("%v before the lease was over", (-over).Round(time.Millisecond))})
		case over > 2*poll+500*time.Millisecond+slack && first != 0 && first < before.at.Add(lease):
			o.hazard(event{At: after.at, Hazard: "late-takeover", Key: lk.id, By: after.c, Victim: before.c,
				Note: fmt.Sprintf("%v after the lease was over, and it had been waiting", over.Round(time.Millisecond))})
		}
	})
}

// judge tells the lease of a hold of the old scheme, as soon as it is certain.
func (o *Observer) judge(h *hold, lk *lock, tell func(lease time.Duration)) {
	if h.form.kind != Legacy || h.form.forever {
		return
	}
	o.later(func() {
		if lease, ok := o.leaseOf(h, lk); ok {
			tell(lease)
		}
	})
}

// later runs a judgement that wants a lease at the end of the window, when the lease is as certain as it gets. Where it is given, or too many
// judgements wait, it runs at once.
func (o *Observer) later(judge func()) {
	if o.opts.Lease > 0 || len(o.deferred) >= 10_000 {
		judge()
		return
	}
	o.deferred = append(o.deferred, judge)
}

// delete is DEL.
func (o *Observer) delete(c *client, lk *lock, l *traffic.Command, e traffic.Effect) {
	if at := c.attempts[lk.id]; at != nil && at.pending {
		// It deletes after a try of unknown outcome: it had acquired.
		at.pending = false
		if lk.holder == nil {
			o.settled(c, lk, at)
		}
	}
	if l.InScript() {
		o.scriptDelete(c, lk, l, e)
		return
	}
	h := lk.holder
	var mine []*hold
	if at := c.attempts[lk.id]; at == nil || !at.left { // else it is the end of a hold that its GET has ended
		mine = o.holdsOf(lk, c)
	}
	switch {
	case h != nil && len(mine) > 0 && mine[0] == h:
		c.blindDelete++
		if h.form.of != nil && h.form.of.Unit == protocol.FloatSeconds && c.getRelease == 0 {
			o.family(lk.family).blind++
		}
		o.release(lk, h, c, l.At)
		return
	case len(mine) > 0:
		last := mine[len(mine)-1]
		o.leaves(lk, last, c, l.At)
		if e.Done == traffic.Yes && h != nil {
			o.stale(c, lk, l.At, h, fmt.Sprintf("it had lost the key (%s) and deleted its successor's", last.lost))
		}
	case h == nil:
		if e.Done == traffic.Yes && e.OldKnown && formOf(e.Old, l.At).kind == Legacy {
			c.released++ // acquired before the window
		}
	case hostOf(h.c.addr) == hostOf(c.addr) && c.acquired == 0:
		o.release(lk, h, h.c, l.At) // another connection of the holder's pool
	default:
		o.stale(c, lk, l.At, h, "it did not hold the key")
	}
}

// OnePool is what a DEL by another connection of the holder's host may be too.
const OnePool = "both are of one host, perhaps of one pool"

// stale is a DEL that removed another's lock.
func (o *Observer) stale(c *client, lk *lock, at protocol.Instant, victim *hold, note string) {
	if hostOf(c.addr) == hostOf(victim.c.addr) {
		note += "; " + OnePool
	}
	o.hazard(event{At: at, Hazard: "stale-delete", Key: lk.id, By: c, Victim: victim.c, Note: note})
	o.loses(lk, victim, "stale-delete", at)
}

// scriptDelete is DEL by a script, which as a rule has compared before.
func (o *Observer) scriptDelete(c *client, lk *lock, l *traffic.Command, e traffic.Effect) {
	h := lk.holder
	switch {
	case h == nil || e.Done == traffic.No:
	case o.script.name != "" || slices.ContainsFunc(o.script.args(), func(a string) bool { return a == h.value }) || o.same(h.c, c):
		o.release(lk, h, h.c, l.At)
	default:
		o.stale(c, lk, l.At, h, "a script that did not name the holder's token")
	}
}

// release ends a hold by the holder's own doing.
func (o *Observer) release(lk *lock, h *hold, by *client, at protocol.Instant) {
	o.leaves(lk, h, by, at)
	since := h.at
	o.judge(h, lk, func(lease time.Duration) {
		if at.Sub(since) > lease+h.form.quantum {
			o.hazard(event{At: at, Hazard: "overrun", Key: lk.id, By: h.c, Note: fmt.Sprintf("released %v after its lease was over", (at.Sub(since) - lease).Round(time.Millisecond))})
		}
	})
}

// leaves ends a hold that its client gives up, itself or by another connection: until then it has believed to hold.
func (o *Observer) leaves(lk *lock, h *hold, by *client, at protocol.Instant) {
	by.released++
	o.actsAs(lk, h, at)
	o.finished(lk, h, at)
	o.ended(lk, h, at)
}

// ended ends a hold and forgets it.
func (o *Observer) ended(lk *lock, h *hold, at protocol.Instant) {
	h.ended = at
	if lk.holder == h {
		lk.holder = nil
	}
	lk.past = slices.DeleteFunc(lk.past, func(p *hold) bool { return p == h })
}

// gaveUp ends a hold that its client no longer believes in: when it left is not known.
func (o *Observer) gaveUp(lk *lock, h *hold, at protocol.Instant) {
	o.ended(lk, h, at)
	o.use(h.c, lk.family).left++
}

// acts is a client's script on a key: a renewal or release by each hold whose token it names.
func (o *Observer) acts(lk *lock, c *client, at protocol.Instant) {
	args := o.script.args()
	for _, p := range slices.Clone(lk.past) {
		if p.c != c || !slices.Contains(args, p.value) || o.script.name == "bridge_settle.lua" {
			continue
		}
		o.actsAs(lk, p, at)
		if strings.HasSuffix(o.script.name, "_release.lua") || o.script.name == "" {
			o.finished(lk, p, at)
			o.ended(lk, p, at)
		}
	}
}

// actsAs is a holder that shows at an instant that it believed to hold until then: a client that acquired
// the key meanwhile overlapped with it.
func (o *Observer) actsAs(lk *lock, h *hold, at protocol.Instant) {
	for _, s := range h.successors {
		o.overlapN++
		ov := overlap{lk, h, s, cmp.Or(s.ended, at), causeOf(h, s)}
		o.overlaps = newest(append(o.overlaps, ov))
		o.later(func() { o.family(lk.family).overlaps[o.cause(ov)]++ })
	}
	h.successors = nil
}

// causeOf names why two held at once.
func causeOf(first, second *hold) string {
	switch first.lost {
	case "stale-delete", "lost-update":
		return first.lost
	case "expired":
		return "overrun"
	}
	return second.how
}
