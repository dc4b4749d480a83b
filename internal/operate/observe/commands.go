package observe

import (
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// effect judges what one command of a client did to one key; named tells that a taking command is on a lock.
func (o *Observer) effect(c *client, l *traffic.Command, e traffic.Effect, named bool) {
	id := e.Key
	takes, blind, begins := false, false, false
	switch e.Op {
	case traffic.OpSetNX, traffic.OpTake, traffic.OpGetSet:
		takes, begins = true, true
	case traffic.OpHashAdd:
		begins = l.InScript()
	case traffic.OpSet:
		if e.Done == traffic.No { // with XX, on a key that was not there
			return
		}
		blind = o.blind(c, l, e)
		begins = l.InScript() || blind
	}
	if !begins && o.locks[id] == nil { // no lock that is known
		return
	}
	if accompanies(id.Name) || l.InScript() && o.script.name != "" && !o.script.first(id.Name) {
		return // guards, queues and counters of our own
	}
	lk := o.lock(id)
	if lk == nil {
		return
	}
	o.counts.LockCommands++
	if h := lk.holder; h != nil && e.OldKnown && !e.There && h.lost == "" { // the key is gone without a DEL: its TTL passed
		o.loses(lk, h, "expired", l.At)
	}
	if a := c.attempts[id]; a != nil && !takes {
		a.waiting = false
	}
	if takes && e.Done == traffic.Unsettled && o.opts.Wonder != nil {
		o.opts.Wonder(id)
	}
	switch e.Op {
	case traffic.OpTake, traffic.OpSetNX:
		if e.Op == traffic.OpTake && l.InScript() && o.script.name != "" {
			return // a script of ours that hands a lock over asks whether it may: its own commands on the key come after
		}
		o.try(c, lk, l, e, named)
	case traffic.OpGet:
		if !l.InScript() {
			o.look(c, lk, l.At, e)
		}
	case traffic.OpGetSet:
		o.takeover(c, lk, l, e)
	case traffic.OpSet:
		o.overwrite(c, lk, l, e, blind)
	case traffic.OpDel:
		o.delete(c, lk, l, e)
	case traffic.OpHashAdd:
		o.hashAdd(c, lk, l, e)
	case traffic.OpExpire:
		o.expires(c, lk, l, e)
	}
}

// accompanies tells the guard, queue or counter of a lock.
func accompanies(key string) bool {
	_, _, ok := protocol.Owner([]byte(key))
	return ok
}

// expires is EXPIRE and its like: a renewal by a script, or what follows SETNX where a lock lives by its TTL.
func (o *Observer) expires(c *client, lk *lock, l *traffic.Command, e traffic.Effect) {
	if a := c.attempts[lk.id]; !l.InScript() && a != nil && a.pending && lk.holder == nil { // who sets a TTL after a try has the key
		o.settled(c, lk, a)
	}
	h := lk.holder
	if h == nil || !l.InScript() && !o.same(h.c, c) {
		return
	}
	if l.InScript() || h.bySetNX || h.ttl == 0 { // after a takeover clients give what EXPIRE can: whole seconds
		h.ttl = e.TTL
		o.use(h.c, lk.family).lives(h.c, e.TTL)
	}
	if l.InScript() {
		h.at = l.At
	}
	if f := o.family(lk.family); h.bySetNX && !h.expiring {
		h.expiring = true
		h.c.expired++
		f.expired++
		if h.form.timed() {
			f.ttl.reach(e.TTL)
		}
	}
}

// settled makes a client the holder whose try had an unknown outcome.
func (o *Observer) settled(c *client, lk *lock, a *attempt) {
	o.acquire(c, lk, formOf(a.wrote, a.last), a.wrote, a.last, "free")
	if a.noTTL {
		o.byNX(c, lk)
	}
}

// byNX notes that the present holder has taken the key without a TTL.
func (o *Observer) byNX(c *client, lk *lock) {
	if h := lk.holder; h != nil {
		h.bySetNX = true
		c.wins++
		o.family(lk.family).wins++
	}
}

// loses moves a holder that no longer has the key to those that may not know it.
func (o *Observer) loses(lk *lock, h *hold, why string, at protocol.Instant) {
	h.lost, h.lostAt = why, at
	lk.holder = nil
	lk.past = append(lk.past, h)
	if len(lk.past) > maxPast {
		o.use(lk.past[0].c, lk.family).crashed++
		lk.past = slices.Delete(lk.past, 0, 1)
	}
}

// try is SETNX or SET NX.
func (o *Observer) try(c *client, lk *lock, l *traffic.Command, e traffic.Effect, named bool) {
	s := formOf(e.Value, l.At)
	voteTry(c, e, s, named)
	u := o.tries(c, lk)
	u.lives(c, e.TTL)
	for _, h := range slices.Clone(lk.past) {
		if h.c == c { // it tries again
			o.gaveUp(lk, h, l.At)
		}
	}
	a := c.attempt(lk.id)
	if a.pending { // it tries again: the last try had failed
		a.pending, a.failed = false, true
	}
	if a.last == 0 || !a.failed || c.gone(l.At.Sub(a.last)) {
		u.begins(a, l.At)
	} else {
		c.poll.add(l.At.Sub(a.last))
	}
	if a.waiting {
		o.waited(c, lk, a)
	}
	a.last, a.before, a.looked, a.waiting, a.read, a.left = l.At, c.before, false, false, sighting{}, false
	fresh := a.wrote != e.Value
	a.wrote, a.noTTL = strings.Clone(e.Value), e.TTL == 0
	if s.timed() && (fresh || s.of.Writes != protocol.OnceForAll) { // the same text again is older
		o.sample(c, lk, s, l.At, e.TTL)
	}
	if e.TTL == 0 || s.of != nil && s.of.TakesWithTTL {
		o.mixed(c, lk, s, l.At)
	}
	a.failed, a.pending = e.Done == traffic.No, e.Done == traffic.Unsettled
	if a.failed {
		c.failures++
	}
	if e.Done == traffic.Yes {
		o.acquire(c, lk, s, e.Value, l.At, "free")
		if e.TTL == 0 {
			o.byNX(c, lk)
		}
	}
}

// voteTry says what a try makes a client look like. SETNX and SET NX without a TTL are one command.
func voteTry(c *client, e traffic.Effect, s form, named bool) {
	v := vote{s.kind, s.dialect}
	switch {
	case s.kind == Bridge && e.Op == traffic.OpTake:
		v = vote{Modern, ours}
	case e.TTL > 0 && s.kind == Legacy && s.of != nil:
		c.timeToken = s.of // a token, unless it turns out to read what it finds
		if !s.of.TakesWithTTL {
			v = vote{Modern, setNXPX}
		}
	case e.TTL > 0:
		v = vote{Modern, setNXPX}
	case s.kind == Modern:
		v = vote{Legacy, setnxUUID}
	case s.kind == Unknown && named:
		v = vote{Legacy, setnxOther}
	case s.kind == Unknown:
		v = vote{Unknown, setnxOther}
	}
	if s.quantum == time.Second && e.TTL == 0 && census.BlindSetName(e.Key.Name) {
		c.blindNames = true
	}
	c.votes[v]++
}

// sample takes in what a value says about the writer's clock. A TTL in the same command is the lease.
func (o *Observer) sample(c *client, lk *lock, s form, at protocol.Instant, ttl time.Duration) {
	u := c.uses[lk.family]
	if u == nil {
		return
	}
	if c.member { // its clock follows the server's, so what it writes tells its lease, less the delay
		c.ttl = (s.expires.Sub(at) - extraOf(s.of)).Round(2 * coarse)
		u.ttl.high = max(u.ttl.high, c.ttl)
		u.ttl.low = u.ttl.high
		return
	}
	sum := u.leads[ttl > 0]
	if sum == nil {
		sum = &leads{clock: unbounded}
		u.leads[ttl > 0] = sum
	}
	sum.of = s.of
	x := lead{at, s.expires.Sub(at) - ttl, at.Sub(c.before)}
	if by, jumped := sum.take(x, s.quantum); jumped {
		o.stepped(c, lk.id, at, by)
	}
}

// trip takes in the time between two commands of one attempt.
func (o *Observer) trip(c *client, lk *lock, d time.Duration) {
	u := c.uses[lk.family]
	if u == nil {
		return
	}
	for _, s := range u.leads {
		if d > 0 && (s.trip == 0 || d < s.trip) {
			s.trip = d
		}
	}
}

// mixed reports dialects on one key that misread each other.
func (o *Observer) mixed(c *client, lk *lock, s form, at protocol.Instant) {
	if s.kind != Legacy {
		return
	}
	if before := lk.unit; before != "" && !Compatible(before, s.dialect) && lk.isNew(s.dialect) {
		o.hazard(event{At: at, Hazard: "unit-mismatch", Key: lk.id, By: c, Note: "writes " + s.dialect + " where others write " + before})
	}
	if lk.unit == "" {
		lk.unit = s.dialect
	}
}

// Compatible tells that clients of two dialects read each other's plain numbers alike.
func Compatible(a, b string) bool {
	ms := func(d string) bool { return d == protocol.JedisMS.Name || d == protocol.ServiceStack.Name }
	return a == b || ms(a) && ms(b)
}

// look is a GET by a client.
func (o *Observer) look(c *client, lk *lock, at protocol.Instant, e traffic.Effect) {
	a := c.attempt(lk.id)
	if a.pending && !o.settle(c, lk, a, e) {
		return
	}
	if a.failed {
		if !a.looked { // the first GET of an attempt
			o.trip(c, lk, at.Sub(a.last))
			c.readAfter++
			o.misread(c, lk, at, e)
		}
		// What follows tells whether it found the value over. A transaction that fails looks like no takeover.
		a.looked, a.waiting = true, a.read.known && a.read.there && c.watched != lk.id
		return
	}
	for _, h := range o.holdsOf(lk, c) {
		if h.form.of != nil && looksFirst(h.form.of) {
			c.getRelease++
			o.family(lk.family).looked++
			if h == lk.holder {
				o.actsAs(lk, h, at)
			} else { // it finds out that it has lost the key, and leaves it
				a.left = true
				o.leaves(lk, h, c, at)
			}
		}
	}
}

// settle decides a try of unknown outcome by the GET that follows it. It tells whether that is possible: a
// loser reads next, but so does a winner whose release looks before it deletes.
func (o *Observer) settle(c *client, lk *lock, a *attempt, e traffic.Effect) bool {
	s := formOf(a.wrote, a.last)
	switch {
	case e.OldKnown && e.There && e.Old == a.wrote && lk.holder == nil:
		o.settled(c, lk, a)
		return true
	case !e.OldKnown && s.of != nil && looksFirst(s.of):
		return false
	}
	a.pending, a.failed = false, true
	return true
}

// looksFirst tells that clients of a dialect GET before they DEL, or while they hold.
func looksFirst(d *protocol.Dialect) bool {
	return d.Release == protocol.ReleaseNotSmaller || d.Release == protocol.ReleaseMine || d.MineExpires
}

// misread reports a value that the reader's dialect cannot read.
func (o *Observer) misread(c *client, lk *lock, at protocol.Instant, e traffic.Effect) {
	v := c.leading()
	d, _ := protocol.DialectNamed(v.dialect)
	if !e.OldKnown || !e.There || d == nil || v.kind != Legacy && v.kind != Member {
		return
	}
	if _, ok := d.Read(e.Old); !ok && lk.isNew(e.Old) {
		o.hazard(event{At: at, Hazard: "foreign-value", Key: lk.id, By: c, Victim: ownerOf(lk), Note: "reads a value that " + d.Name + " cannot parse"})
	}
}

// isNew notes a dialect or a value that others misread on a key, and tells whether it is told for the first time.
func (lk *lock) isNew(odd string) bool {
	if lk.odd[odd] || len(lk.odd) >= mostOdd {
		return false
	}
	if lk.odd == nil {
		lk.odd = map[string]bool{}
	}
	lk.odd[strings.Clone(odd)] = true
	return true
}

func ownerOf(lk *lock) *client {
	if lk.holder == nil {
		return nil
	}
	return lk.holder.c
}

// holdsOf returns the holds that a client may believe in: its own; without any those of the other connections of its row, as
// a pool may send the release over another one. A process that starts again does not take over its dead predecessor's hold.
func (o *Observer) holdsOf(lk *lock, c *client) []*hold {
	all := lk.past
	if lk.holder != nil {
		all = append([]*hold{lk.holder}, lk.past...)
	}
	var own, row []*hold
	for _, h := range all {
		switch {
		case h.c == c:
			own = append(own, h)
		case o.same(h.c, c) && (h.lost == "" || !o.crashed(lk, h)):
			row = append(row, h)
		}
	}
	if len(own) > 0 {
		return own
	}
	return row
}

// hashAdd is HSET or HINCRBY in a script: a hash lock is taken, or taken once more.
func (o *Observer) hashAdd(c *client, lk *lock, l *traffic.Command, e traffic.Effect) {
	if !l.InScript() || e.Done != traffic.Yes {
		return
	}
	if census.RedissonHolder(e.Value) {
		c.votes[vote{Redisson, Redisson}]++
	} else {
		c.votes[vote{Unknown, hashUID}]++
	}
	if h := lk.holder; h != nil && h.value == e.Value {
		o.works(c, lk)
		return // counted up or down
	}
	u := o.tries(c, lk)
	u.begins(c.attempt(lk.id), l.At)
	o.acquire(c, lk, form{kind: Redisson}, e.Value, l.At, "free")
}

// overwrite is SET on a lock's key.
func (o *Observer) overwrite(c *client, lk *lock, l *traffic.Command, e traffic.Effect, blind bool) {
	s := formOf(e.Value, l.At)
	if l.InScript() && o.script.name != "" {
		o.scriptSet(c, lk, l, e, s)
		return
	}
	h := lk.holder
	a := c.attempt(lk.id)
	mine := h != nil && o.same(h.c, c) && !a.failed
	if blind && mine && h.c != c { // another connection of its pool, or another client of its host
		mine = a.read.there && a.read.value == h.value
	}
	switch {
	case mine || h != nil && h.value == e.Value && !blind:
		h.at = l.At
		h.value, h.form = strings.Clone(e.Value), s
	case !l.InScript() && c.watched == lk.id && s.kind == Legacy:
		c.votes[vote{Legacy, protocol.ServiceStack.Name}] += 2
		o.acquire(c, lk, s, e.Value, l.At, "takeover")
	case blind:
		o.setBlindly(c, lk, l, e, s)
	case h == nil && s.kind == Unknown:
	case h == nil:
		o.acquire(c, lk, s, e.Value, l.At, "set")
	default:
		o.hazard(event{At: l.At, Hazard: "clobber", Key: lk.id, By: c, Victim: h.c, Note: "SET over a holder's value"})
	}
}

// settleBy takes in what a read of ours found: it decides a try whose outcome was open.
func (o *Observer) settleBy(id traffic.Key) {
	lk := o.locks[id]
	if lk == nil || lk.holder != nil {
		return
	}
	value, _, ok := o.Keys.Value(id, o.last)
	for _, c := range o.clients {
		at := c.attempts[id]
		if at == nil || !at.pending {
			continue
		}
		at.pending, at.failed = false, true
		if s := formOf(value, at.last); ok && value == at.wrote && (s.kind != Unknown || o.named(id.Name)) {
			at.failed = false
			o.settled(c, lk, at)
		}
	}
}
