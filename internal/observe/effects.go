package observe

import (
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// effect judges what one command of a client did to one key.
func (o *Observer) effect(c *client, l *Line, e Effect) {
	id := keyID{e.DB, e.Key}
	switch e.Op {
	case OpSetNX, OpTake, OpGetSet:
	case OpHashAdd:
		if !l.Lua() && o.locks[id] == nil {
			return
		}
	case OpSet:
		if o.locks[id] == nil && !l.Lua() {
			return
		}
	default:
		if o.locks[id] == nil {
			return
		}
	}
	if accompanies(e.Key) || l.Lua() && o.script.name != "" && !(o.script.keys > 0 && o.script.words[3] == e.Key) {
		return // guards, queues and counters of our own
	}
	lk := o.lock(id)
	if lk == nil {
		return
	}
	o.lockOps++
	o.vanished(lk, e, l.At)
	if e.Done == Unsettled && (e.Op == OpSetNX || e.Op == OpTake || e.Op == OpGetSet) && o.opts.Wonder != nil {
		o.opts.Wonder(e.DB, e.Key)
	}
	switch e.Op {
	case OpSetNX, OpTake:
		o.try(c, lk, l, e)
	case OpGet:
		if !l.Lua() {
			o.look(c, lk, l.At, e)
		}
	case OpGetSet:
		o.takeover(c, lk, l, e)
	case OpSet:
		o.overwrite(c, lk, l, e)
	case OpDel:
		o.delete(c, lk, l, e)
	case OpHashAdd:
		o.hashAdd(c, lk, l, e)
	case OpExpire:
		if h := lk.holder; h != nil && l.Lua() {
			h.at = l.At
			h.c.ttl = e.TTL
		}
	}
}

// accompanies tells the guard or fencing counter of a lock.
func accompanies(key string) bool {
	key = strings.TrimSuffix(key, ":")
	return strings.HasSuffix(key, ":lockmigrate:guard") || strings.HasSuffix(key, ":lockmigrate:fence")
}

// vanished ends the holder whose key is gone without a DEL: its TTL passed.
func (o *Observer) vanished(lk *lock, e Effect, at protocol.Instant) {
	if h := lk.holder; h != nil && e.OldKnown && !e.There && h.lost == "" {
		o.loses(lk, h, "expired", at)
	}
}

// loses moves a holder that no longer has the key to those that may not know it.
func (o *Observer) loses(lk *lock, h *hold, why string, at protocol.Instant) {
	h.lost = why
	lk.holder = nil
	lk.past = append(lk.past, h)
	if len(lk.past) > maxPast {
		lk.past = slices.Delete(lk.past, 0, 1)
	}
}

// try is SETNX or SET NX.
func (o *Observer) try(c *client, lk *lock, l *Line, e Effect) {
	s := shapeOf(e.Value, l.At)
	o.voteTry(c, l, e, s)
	if e.TTL > 0 {
		c.ttl = e.TTL
	}
	c.tries++
	o.uses(c, lk)
	for _, h := range slices.Clone(lk.past) {
		if h.c == c { // whoever tries again no longer believes to hold; when it left is not known
			o.ended(lk, h, l.At, "left")
		}
	}
	a := c.attempt(lk.id)
	if a.pending { // it tries again: the last try had failed
		a.pending, a.failed = false, true
	}
	gap := l.At.Sub(a.last)
	if a.last == 0 || gap > time.Minute || !a.failed {
		a.first = l.At
	} else {
		c.poll.add(gap)
	}
	a.last, a.looked, a.readKnown = l.At, false, false
	a.wrote = strings.Clone(e.Value)
	if s.base != 0 && e.Op == OpSetNX {
		o.sample(c, lk, s, l.At)
	}
	o.mixed(c, lk, s, l.At)
	a.failed, a.pending = e.Done == No, e.Done == Unsettled
	if e.Done == Yes {
		o.acquire(c, lk, s, e.Value, l.At, "free")
	}
}

// voteTry says what a try makes a client look like.
func (o *Observer) voteTry(c *client, l *Line, e Effect, s shape) {
	v := vote{s.kind, s.dialect}
	switch name := o.script.name; {
	case l.Lua() && strings.HasPrefix(name, "modern_"), s.kind == Bridge && e.Op == OpTake:
		v = vote{Modern, ours}
	case l.Lua() && strings.HasPrefix(name, "bridge_"):
		v = vote{Bridge, ours}
	case e.Op == OpTake && e.TTL > 0 && s.kind != Legacy:
		v = vote{Modern, setNXPX}
	case e.Op == OpSetNX && s.kind == Modern:
		v = vote{Legacy, setnxUUID}
	case e.Op == OpSetNX && s.kind == Unknown:
		v = vote{Unknown, setnxOther}
	case s.kind == Unknown:
		return
	}
	c.votes[v]++
}

// uses counts a client's use of a family of keys.
func (o *Observer) uses(c *client, lk *lock) {
	if len(c.keys) < 64 || c.keys[lk.family] > 0 {
		c.keys[lk.family]++
	}
}

// sample takes in what a value says about the writer's clock.
func (o *Observer) sample(c *client, lk *lock, s shape, at protocol.Instant) {
	p := pair{c, lk.family}
	sum := o.sums[p]
	if sum == nil {
		if len(o.sums) >= o.opts.MaxClients {
			return
		}
		sum = &sums{}
		o.sums[p] = sum
	}
	if by, stepped := sum.take(s.base.Sub(at), s.quantum); stepped {
		o.stepped(c, lk.id.name, at, by)
	}
}

// trip takes in the time between two commands of one attempt.
func (o *Observer) trip(c *client, lk *lock, d time.Duration) {
	if s := o.sums[pair{c, lk.family}]; s != nil && d > 0 && (s.trip == 0 || d < s.trip) {
		s.trip = d
	}
}

// mixed reports dialects on one key that misread each other.
func (o *Observer) mixed(c *client, lk *lock, s shape, at protocol.Instant) {
	if s.kind != Legacy {
		return
	}
	if before := lk.unit; before != "" && before != s.dialect && !lk.odd[s.dialect] && !compatible(before, s.dialect) {
		if lk.odd == nil {
			lk.odd = map[string]bool{}
		}
		lk.odd[s.dialect] = true
		o.hazard(Event{At: at, Hazard: "unit-mismatch", Key: lk.id.name, By: c, Note: "writes " + s.dialect + " where others write " + before})
	}
	if lk.unit == "" {
		lk.unit = s.dialect
	}
}

// compatible tells that two dialects read each other's plain numbers alike.
func compatible(a, b string) bool {
	ms := func(d string) bool { return d == protocol.JedisMS.Name || d == protocol.ServiceStack.Name }
	return ms(a) && ms(b)
}

// look is a GET by a client.
func (o *Observer) look(c *client, lk *lock, at protocol.Instant, e Effect) {
	a := c.attempt(lk.id)
	if a.pending && !o.settle(c, lk, a, e) {
		return
	}
	if a.failed && !a.looked {
		o.trip(c, lk, at.Sub(a.last))
		a.looked = true
		a.read, a.readThere, a.readKnown = e.Old, e.There, e.OldKnown
		o.misread(c, lk, at, e)
		return
	}
	if a.failed { // a second GET of one attempt
		a.read, a.readThere, a.readKnown = e.Old, e.There, e.OldKnown
		return
	}
	for _, h := range o.holdsOf(lk, c) {
		if h.shape.of != nil && looksFirst(h.shape.of) {
			c.getRelease++
			o.actsAs(lk, h, at)
			if h != lk.holder { // it finds out that it has lost the key, and leaves it
				o.ended(lk, h, at, "lost")
				c.released++
			}
		}
	}
}

// settle decides a try of unknown outcome by the GET that follows it. It tells whether that is possible: a
// loser reads next, but so does a winner whose release looks before it deletes.
func (o *Observer) settle(c *client, lk *lock, a *attempt, e Effect) bool {
	s := shapeOf(a.wrote, a.last)
	switch {
	case e.OldKnown && e.There && e.Old == a.wrote && lk.holder == nil:
		o.acquire(c, lk, s, a.wrote, a.last, "free")
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
func (o *Observer) misread(c *client, lk *lock, at protocol.Instant, e Effect) {
	d := dialectOf(c)
	if !e.OldKnown || !e.There || d == nil {
		return
	}
	if _, ok := d.Read(e.Old); ok || lk.odd[e.Old] {
		return
	}
	if lk.odd == nil {
		lk.odd = map[string]bool{}
	}
	if len(lk.odd) < 64 {
		lk.odd[strings.Clone(e.Old)] = true
		o.hazard(Event{At: at, Hazard: "foreign-value", Key: lk.id.name, By: c, Victim: ownerOf(lk), Note: "reads a value that " + d.Name + " cannot parse"})
	}
}

// dialectOf returns the dialect of a legacy client, nil if it has none.
func dialectOf(c *client) *protocol.Dialect {
	v := c.leading()
	if v.kind != Legacy {
		return nil
	}
	d, err := protocol.DialectNamed(v.dialect)
	if err != nil {
		return nil
	}
	return d
}

func ownerOf(lk *lock) *client {
	if lk.holder == nil {
		return nil
	}
	return lk.holder.c
}

// holdsOf returns the holds that a client may believe in.
func (o *Observer) holdsOf(lk *lock, c *client) []*hold {
	var all []*hold
	if h := lk.holder; h != nil && o.same(h.c, c) {
		all = append(all, h)
	}
	for _, h := range lk.past {
		if o.same(h.c, c) {
			all = append(all, h)
		}
	}
	return all
}

// hashAdd is HSET or HINCRBY in a script: a hash lock is taken, or taken once more.
func (o *Observer) hashAdd(c *client, lk *lock, l *Line, e Effect) {
	if !l.Lua() || e.Done != Yes {
		return
	}
	if isRedissonHolder(e.Value) {
		c.votes[vote{Redisson, Redisson}]++
	} else {
		c.votes[vote{Unknown, hashUID}]++
	}
	c.tries++
	o.uses(c, lk)
	if h := lk.holder; h != nil && h.value == e.Value {
		return // counted up or down
	}
	o.acquire(c, lk, shape{kind: Redisson}, e.Value, l.At, "free")
}

// overwrite is SET on a lock's key.
func (o *Observer) overwrite(c *client, lk *lock, l *Line, e Effect) {
	s := shapeOf(e.Value, l.At)
	if l.Lua() && o.script.name != "" {
		o.scriptSet(c, lk, l, e, s)
		return
	}
	h := lk.holder
	switch {
	case h != nil && (o.same(h.c, c) && !c.attempt(lk.id).failed || h.value == e.Value):
		h.at, h.value, h.shape = l.At, strings.Clone(e.Value), s // renewed
	case !l.Lua() && c.watched == lk.id && s.kind == Legacy:
		c.votes[vote{Legacy, protocol.ServiceStack.Name}] += 2
		o.acquire(c, lk, s, e.Value, l.At, "takeover")
	case h == nil && s.kind == Unknown:
	case h == nil:
		o.acquire(c, lk, s, e.Value, l.At, "set")
	default:
		o.hazard(Event{At: l.At, Hazard: "clobber", Key: lk.id.name, By: c, Victim: h.c, Note: "SET over a holder's value"})
	}
}

// scriptSet is a SET by a script of ours.
func (o *Observer) scriptSet(c *client, lk *lock, l *Line, e Effect, s shape) {
	h := lk.holder
	if h != nil && h.value == e.Value {
		h.at = l.At
		return
	}
	owner := o.tokens[e.Value]
	switch name := o.script.name; {
	case name == "compare_set.lua" || name == "gated_compare_set.lua":
		if h != nil {
			h.at, h.value, h.shape = l.At, strings.Clone(e.Value), s
		}
	case name == "gated_set.lua":
		o.acquire(c, lk, s, e.Value, l.At, "takeover")
	case strings.HasPrefix(name, "bridge_"):
		c.votes[vote{Bridge, ours}]++
		c.ttl = e.TTL
		for _, p := range lk.past {
			if p.value == e.Value { // put back after a stale DEL or a clobber
				p.lost, p.at = "", l.At
				lk.past = slices.DeleteFunc(lk.past, func(x *hold) bool { return x == p })
				lk.holder = p
				return
			}
		}
		how := "free"
		if e.There {
			how = "takeover"
		}
		c.tries++
		o.uses(c, lk)
		o.acquire(c, lk, s, e.Value, l.At, how)
	case strings.HasPrefix(name, "modern_"):
		if owner == nil {
			owner = c
		}
		owner.votes[vote{Modern, ours}]++
		if name == "modern_release.lua" && h != nil {
			o.release(lk, h, c, l.At)
		}
		o.uses(owner, lk)
		o.acquire(owner, lk, s, e.Value, l.At, "free")
	}
}

// Settle takes in what a read of ours found: it decides a try whose outcome was open.
func (o *Observer) Settle(db int, key string) {
	id := keyID{db, key}
	lk := o.locks[id]
	if lk == nil || lk.holder != nil {
		return
	}
	value, _, ok := o.Keys.Value(db, key, o.last)
	for _, c := range o.clients {
		at := c.attempts[id]
		if at == nil || !at.pending {
			continue
		}
		at.pending, at.failed = false, true
		if s := shapeOf(value, at.last); ok && value == at.wrote && s.kind != Unknown {
			at.failed = false
			o.acquire(c, lk, s, value, at.last, "free")
		}
	}
}
